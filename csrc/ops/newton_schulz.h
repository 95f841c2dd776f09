// Newton-Schulz iteration for the inverse of w + eps I, and its gradient. Tensors have unit stride in their last
// dimension.
#pragma once

#include <cstdint>

#include "levels/level.h"
#include "ops/tensors.h"

namespace laplacianformer {

struct NewtonSchulz {
  int64_t iterations;
  double eps;
  bool identity;           // Whether to start from a multiple of the identity or of the transpose.
  bool symmetric = false;  // For the gradient: see InverseTask.
};

void write_inverse(const Tensor& w, const NewtonSchulz& settings, const Tensor& out, const Level& level);

// The gradient of w from that of the inverse.
void write_inverse_gradient(const Tensor& grad, const Tensor& w, const NewtonSchulz& settings, const Tensor& out,
                            const Level& level);

}  // namespace laplacianformer
