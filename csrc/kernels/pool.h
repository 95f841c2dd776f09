// Tokens on a grid to the means of its cells, and the gradient back. Tokens are stored row by row, `width` numbers
// each.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/convert.h"
#include "kernels/panel.h"
#include "kernels/simd.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// The positions of a cell along the three axes. Empty for a cell that the box does not have.
struct CellRanges {
  CellRange z, y, x;

  CellRanges(const Grid& grid, const Box& box, int64_t cell)
      : z(cell / (grid.cells[1] * grid.cells[2]), box.cells[0], box.extent[0]),
        y(cell / grid.cells[2] % grid.cells[1], box.cells[1], box.extent[1]),
        x(cell % grid.cells[2], box.cells[2], box.extent[2]) {}

  int64_t tokens() const { return z.length() * y.length() * x.length(); }
};

// The mean of the tokens of a landmark, summed row by row as differences from the first token: where all are equal, the
// mean is exact. Zeros if there is none.
template <bool Masked, class T>
void pool(const T* tokens, int64_t stride, const Grid& grid, const Box& box, int64_t landmark, int64_t width,
          float* out) {
  if (Masked && box.members[landmark] == 0) {
    for (int64_t k = 0; k < width; ++k) out[k] = 0;
    return;
  }
  if (landmark < grid.prefix) return widen_row(tokens + landmark * stride, width, out);
  const CellRanges cell(grid, box, landmark - grid.prefix);
  const int64_t row_length = grid.length[2], row_stride = row_length * stride;
  const T* on_grid = tokens + grid.prefix * stride;
  const bool* mask = Masked ? box.mask + grid.prefix : nullptr;
  const float fraction = 1.0f / static_cast<float>(Masked ? box.members[landmark] : cell.tokens());
  for (int64_t k = 0; k < width; k += kWidth<float>) {
    const int64_t n = smaller(kWidth<float>, width - k);
    bool empty = true;
    Vec<float> first = splat(0.0f), sum = splat(0.0f);
    for (int64_t t = cell.z.begin; t < cell.z.end; ++t)
      for (int64_t i = cell.y.begin; i < cell.y.end; ++i) {
        const int64_t begin = (t * grid.length[1] + i) * row_length + cell.x.begin;
        const T* token = on_grid + begin * stride + k;
        Vec<float> row = splat(0.0f);
        for (int64_t j = 0; j < cell.x.length(); ++j, token += stride) {
          __builtin_prefetch(token + row_stride);  // The same column in the next row.
          if (Masked && !mask[begin + j]) continue;
          const Vec<float> x = load_part<float>(token, n);
          if (empty) first = x;
          empty = false;
          row += x - first;
        }
        sum += row;
      }
    store_part<float>(out + k, first + sum * fraction, n);
  }
}

// Calls f(cell) for the one or two cells along an axis that an index is in.
template <class F>
INLINE void cells_of(int64_t index, int64_t cells, int64_t length, F f) {
  const int64_t first = index * cells / length;
  for (int64_t cell = first; cell < smaller(first + 2, cells); ++cell)
    if (CellRange(cell, cells, length).contains(index)) f(cell);
}

// Adds to the tokens of row `row` of the grid their part of the gradients of the landmarks that they are in.
void pool_backward(const float* landmarks, const Grid& grid, const Box& box, int64_t row, int64_t width,
                   float* tokens) {
  const int64_t t = row / grid.length[1], i = row % grid.length[1];
  if (t >= box.extent[0] || i >= box.extent[1]) return;
  const bool* mask = box.mask ? box.mask + grid.prefix + row * grid.length[2] : nullptr;
  cells_of(t, box.cells[0], box.extent[0], [&](int64_t a) {
    cells_of(i, box.cells[1], box.extent[1], [&](int64_t r) {
      for (int64_t c = 0; c < box.cells[2]; ++c) {
        const int64_t cell = (a * grid.cells[1] + r) * grid.cells[2] + c, landmark = grid.prefix + cell;
        const CellRanges ranges(grid, box, cell);
        const float fraction = 1.0f / static_cast<float>(mask ? box.members[landmark] : ranges.tokens());
        const float* gradient = landmarks + landmark * width;
        for (int64_t j = ranges.x.begin; j < ranges.x.end; ++j) {
          if (mask && !mask[j]) continue;
          for (int64_t k = 0; k < width; ++k) tokens[j * width + k] += fraction * gradient[k];
        }
      }
    });
  });
}

}  // namespace
}  // namespace laplacianformer
