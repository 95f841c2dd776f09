#include "ops/token_mask.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "ops/threads.h"

namespace laplacianformer {

TokenMask::TokenMask(const Tensor& mask, const Grid& grid, int64_t heads)
    : mask_(static_cast<const bool*>(mask.data_ptr())),
      grid_(grid),
      batch_(mask.size(0)),
      heads_(heads),
      counts_(batch_ * heads),
      landmark_counts_(batch_),
      members_(batch_ * grid.landmarks()),
      order_(batch_ * grid.tokens()),
      boxes_(batch_),
      exact_(batch_) {
  for (int64_t item = 0; item < batch_; ++item) {
    read_item(item);
    count_members(item);
  }
}

// The order of the tokens, and the box that holds those on the grid.
void TokenMask::read_item(int64_t item) {
  const int64_t tokens = grid_.tokens();
  const bool* mask = mask_ + item * tokens;
  int64_t count = 0;
  Box& box = boxes_[item];
  box = Box{{0, 0, 0}, {1, 1, 1}, mask, members(item)};
  for (int64_t i = 0; i < tokens; ++i) {
    if (!mask[i]) continue;
    order_[item * tokens + count++] = i;
    const int64_t cell = i - grid_.prefix;
    if (cell < 0) continue;
    const int64_t row = cell / grid_.length[2];
    const int64_t position[3] = {row / grid_.length[1], row % grid_.length[1], cell % grid_.length[2]};
    for (int axis = 0; axis < 3; ++axis) box.extent[axis] = std::max(box.extent[axis], position[axis] + 1);
  }
  std::fill_n(counts_.begin() + item * heads_, heads_, count);
  exact_[item] = true;
  for (int axis = 0; axis < 3; ++axis) {
    box.cells[axis] = std::max(int64_t{1}, std::min(box.extent[axis], grid_.cells[axis]));
    exact_[item] = exact_[item] && box.extent[axis] <= box.cells[axis];
  }
}

// A token is in one or two cells along each axis.
void TokenMask::count_members(int64_t item) {
  const Box& box = boxes_[item];
  int64_t* members = members_.data() + item * grid_.landmarks();
  for (int64_t i = 0; i < tokens(item); ++i) {
    const int64_t token = order_[item * grid_.tokens() + i], on_grid = token - grid_.prefix;
    if (on_grid < 0) {
      members[token] = 1;
      continue;
    }
    const int64_t row = on_grid / grid_.length[2];
    const int64_t position[3] = {row / grid_.length[1], row % grid_.length[1], on_grid % grid_.length[2]};
    int64_t first[3], last[3];
    for (int axis = 0; axis < 3; ++axis) {
      first[axis] = position[axis] * box.cells[axis] / box.extent[axis];
      const bool both = first[axis] + 1 < box.cells[axis] &&
                        CellRange(first[axis] + 1, box.cells[axis], box.extent[axis]).contains(position[axis]);
      last[axis] = first[axis] + both;
    }
    for (int64_t a = first[0]; a <= last[0]; ++a)
      for (int64_t r = first[1]; r <= last[1]; ++r)
        for (int64_t c = first[2]; c <= last[2]; ++c)
          ++members[grid_.prefix + (a * grid_.cells[1] + r) * grid_.cells[2] + c];
  }
  landmark_counts_[item] = std::count_if(members, members + grid_.landmarks(), [](int64_t n) { return n > 0; });
}

Box TokenMask::box(int64_t item) const { return boxes_[item]; }

PickedRows TokenMask::picked(int64_t matrix, int64_t width, const Rotation& rotation) const {
  const int64_t item = matrix / heads_;
  return {order_.data() + item * grid_.tokens(), tokens(item), width, rotation.table()};
}

Tensor TokenMask::pack(const Tensor& x, const Rotation& rotation, const Level& level) const {
  const int64_t rows = grid_.tokens(), width = x.size(3);
  const Tensor packed = empty_floats(x, {batch_, heads_, rows, width});
  Views views;
  const Rows from = views(x);
  const Type type = type_of(x);
  torch::stable::parallel_for(0, batch_ * heads_, 1 + kGrain / (1 + rows * width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      level.gather(type, picked(i, width, rotation),
                   static_cast<const char*>(from.data) + from.offsets[i] * stored_bytes(type), from.stride,
                   floats(packed) + i * rows * width);
  });
  return packed;
}

Tensor TokenMask::unpack(const Tensor& packed, const Rotation& rotation, bool by_token, const Level& level) const {
  const int64_t rows = grid_.tokens(), width = packed.size(3);
  const Tensor out = by_token ? transpose(new_zeros(packed, {batch_, rows, heads_, width}), 1, 2)
                              : new_zeros(packed, {batch_, heads_, rows, width});
  Views views;
  const Rows to = views(out);
  torch::stable::parallel_for(0, batch_ * heads_, 1 + kGrain / (1 + rows * width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      level.scatter(picked(i, width, rotation), floats(packed) + i * rows * width,
                    static_cast<float*>(to.data) + to.offsets[i], to.stride);
  });
  return out;
}

}  // namespace laplacianformer
