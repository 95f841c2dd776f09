// The variance of each column of a (batch, heads, rows, columns) tensor, for each head, over batch and rows.
#pragma once

#include "levels/level.h"
#include "ops/tensors.h"
#include "ops/token_mask.h"

namespace laplacianformer {

// `mean` and `variance`: (heads, columns), dense, in the accumulation type. With a mask, rows are packed tokens and
// columns landmarks: only those count that are there, and a column of none gets 0.
void write_variance(const Tensor& x, const Tensor& mean, const Tensor& variance, const Level& level,
                    const TokenMask* mask = nullptr);

}  // namespace laplacianformer
