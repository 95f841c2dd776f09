// The rotation of pairs of channels (rotary positions).
#pragma once

#include "levels/level.h"
#include "ops/tensors.h"

namespace laplacianformer {

// `direction` is 1, or -1 to rotate back. `out` is dense, and may be x. The rotation may have a batch dimension, as x
// has.
void write_rotated(const Tensor& x, const Rotation& rotation, int direction, const Tensor& out, const Level& level);

}  // namespace laplacianformer
