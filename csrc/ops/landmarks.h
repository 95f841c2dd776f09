// Landmarks of the attention: tokens averaged over cells, and their gradient.
#pragma once

#include "levels/level.h"
#include "levels/tasks.h"
#include "ops/tensors.h"
#include "ops/token_mask.h"

namespace laplacianformer {

// Where the tokens are. Without a mask all of them count.
struct Layout {
  const Grid& grid;
  const TokenMask* mask;

  Box box(int64_t item) const;
};

// The means of the tokens of each landmark, (batch, heads, tokens, width) -> (batch, heads, landmarks, width), float32.
Tensor pool_tokens(const Layout& layout, const Tensor& x, const Level& level);

// Adds to the gradient of the tokens, dense, that of their landmarks.
void add_pool_gradient(const Layout& layout, const Tensor& d_landmarks, const Tensor& dx, const Level& level);

}  // namespace laplacianformer
