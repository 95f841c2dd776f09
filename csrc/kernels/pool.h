// Tokens on a grid to the means of its cells, and the gradient back. Tokens are stored row by row, `width` numbers
// each.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/panel.h"
#include "kernels/simd.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// The mean of the tokens of a cell, summed row by row as differences from the first token: where all are equal, the
// mean is exact.
template <class T>
void pool(const T* tokens, int64_t stride, const Grid& grid, int64_t cell, int64_t width, float* out) {
  const CellRange y(cell / grid.columns, grid.rows, grid.height), x(cell % grid.columns, grid.columns, grid.width);
  const int64_t row_stride = grid.width * stride;
  const float fraction = 1.0f / static_cast<float>(y.length() * x.length());
  for (int64_t k = 0; k < width; k += kWidth<float>) {
    const int64_t n = smaller(kWidth<float>, width - k);
    const Vec<float> first = load_part<float>(tokens + y.begin * row_stride + x.begin * stride + k, n);
    Vec<float> sum = splat(0.0f);
    for (int64_t i = y.begin; i < y.end; ++i) {
      const T* token = tokens + i * row_stride + x.begin * stride + k;
      Vec<float> row = splat(0.0f);
      for (int64_t j = x.begin; j < x.end; ++j, token += stride) {
        __builtin_prefetch(token + row_stride);  // The same column in the next row.
        row += load_part<float>(token, n) - first;
      }
      sum += row;
    }
    store_part<float>(out + k, first + sum * fraction, n);
  }
}

// Adds to the tokens of row `row` their part of the gradients of the cells that they are in.
void pool_backward(const float* cells, const Grid& grid, int64_t row, int64_t width, float* tokens) {
  const int64_t first = row * grid.rows / grid.height;  // Of the one or two rows of cells that this row is in.
  for (int64_t r = first; r < smaller(first + 2, grid.rows); ++r) {
    const CellRange y(r, grid.rows, grid.height);
    if (!y.contains(row)) continue;
    for (int64_t c = 0; c < grid.columns; ++c) {
      const CellRange x(c, grid.columns, grid.width);
      const float fraction = 1.0f / static_cast<float>(y.length() * x.length());
      const float* cell = cells + (r * grid.columns + c) * width;
      for (int64_t j = x.begin; j < x.end; ++j)
        for (int64_t k = 0; k < width; ++k) tokens[j * width + k] += fraction * cell[k];
    }
  }
}

}  // namespace
}  // namespace laplacianformer
