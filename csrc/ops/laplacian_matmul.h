// The kernel times values, the kernel never stored, and its gradients. Tensors have unit stride in their last
// dimension.
#pragma once

#include <tuple>

#include "levels/level.h"
#include "ops/pair_task.h"
#include "ops/tensors.h"

namespace laplacianformer {

// `start`: what the rows of each matrix of `out` start from, (batch, value width), or null for 0. It may only be given
// where x is the side with more rows.
void write_product(const RowPairs& pairs, const Tensor& values, const void* start, const Tensor& out,
                   const Level& level);

// The gradients of x, y and the values from that of the product.
std::tuple<Tensor, Tensor, Tensor> product_gradients(const Tensor& grad, const RowPairs& pairs, const Tensor& values,
                                                     const Level& level);

}  // namespace laplacianformer
