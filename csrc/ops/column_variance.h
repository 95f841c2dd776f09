// The variance of each column of a (batch, heads, rows, columns) tensor, for each head, over batch and rows.
#pragma once

#include "levels/level.h"
#include "ops/tensors.h"

namespace laplacianformer {

// `mean` and `variance`: (heads, columns), dense, in the accumulation type.
void write_variance(const Tensor& x, const Tensor& mean, const Tensor& variance, const Level& level);

}  // namespace laplacianformer
