// The kernel exp(-|x_i - y_j|_1 / scale) and its gradient. Tensors have unit stride in their last dimension.
#pragma once

#include <tuple>

#include "levels/level.h"
#include "ops/pair_task.h"
#include "ops/tensors.h"

namespace laplacianformer {

void write_kernel(const RowPairs& pairs, const Tensor& out, const Level& level);

// The gradients of x and y from that of the kernel `out`.
std::tuple<Tensor, Tensor> kernel_gradients(const Tensor& grad, const RowPairs& pairs, const Tensor& out,
                                            const Level& level);

}  // namespace laplacianformer
