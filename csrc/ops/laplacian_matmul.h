// The kernel times values, the kernel never stored, and its gradients. Tensors have unit stride in their last
// dimension.
#pragma once

#include <cstdint>
#include <functional>
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

// The same where y and the values are stored in 16 bits, in more rows than x, which is float32 like the gradient of the
// product. The gradient of y is first computed in float32, for a few matrices at a time: finish(first, that of x, that
// of y), called for matrices first, first + 1, ..., may add to it before it is rounded.
std::tuple<Tensor, Tensor> product_gradients_in_16_bits(
    const Tensor& grad, const RowPairs& pairs, const Tensor& values,
    const std::function<void(int64_t first, const Tensor& dx, const Tensor& dy)>& finish, const Level& level);

}  // namespace laplacianformer
