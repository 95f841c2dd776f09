// Which tokens of each item count, and what follows: its own cells, its landmarks, and the tokens one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "levels/level.h"
#include "levels/tasks.h"
#include "ops/tensors.h"

namespace laplacianformer {

class TokenMask {
 public:
  // mask: (batch, tokens), bool and contiguous. It must outlive this.
  TokenMask(const Tensor& mask, const Grid& grid, int64_t heads);

  int64_t tokens(int64_t item) const { return counts_[item * heads_]; }
  int64_t landmarks(int64_t item) const { return landmark_counts_[item]; }
  // Whether every token of the item is a landmark.
  bool exact(int64_t item) const { return exact_[item]; }
  // The tokens of each landmark of the item, (landmarks); 0 where there is none.
  const int64_t* members(int64_t item) const { return members_.data() + item * grid_.landmarks(); }
  Box box(int64_t item) const;
  // The tokens of each head of each item, for tasks on packed tokens.
  const int64_t* counts() const { return counts_.data(); }

  // The tokens that count, rotated and first: (batch, heads, tokens, width) -> the same shape, float32 and dense. What
  // comes after them is not written.
  Tensor pack(const Tensor& x, const Rotation& rotation, const Level& level) const;

  // Back to where the tokens were, and rotated back; zeros elsewhere. With the layout of (batch, tokens, heads, width)
  // if `by_token`.
  Tensor unpack(const Tensor& packed, const Rotation& rotation, bool by_token, const Level& level) const;

 private:
  void read_item(int64_t item);
  void count_members(int64_t item);
  PickedRows picked(int64_t matrix, int64_t width, const Rotation& rotation) const;

  const bool* mask_;
  const Grid grid_;
  const int64_t batch_, heads_;
  std::vector<int64_t> counts_, landmark_counts_, members_;
  std::vector<int64_t> order_;  // (batch, tokens): the indices of the tokens that count.
  std::vector<Box> boxes_;
  std::vector<char> exact_;
};

}  // namespace laplacianformer
