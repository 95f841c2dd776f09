// Tokens on a grid to the means of its cells, and the gradient back. A row of `columns` tokens after the other, each of
// `width` numbers.
#pragma once

namespace laplacianformer {
namespace {

// The mean of the tokens of a cell, summed row by row as differences from the first: equal tokens have exactly their mean.
template <class T>
void pool_typed(const T* tokens, int64_t stride, int64_t columns, const Range& y, const Range& x, int64_t width,
                float* out) {
  const float share = 1.0f / static_cast<float>(y.length() * x.length());
  for (int64_t k = 0; k < width; k += kWidth<float>) {
    const int64_t n = smaller(kWidth<float>, width - k);
    const Vec<float> first = load_part<float>(tokens + (y.begin * columns + x.begin) * stride + k, n);
    Vec<float> sum = splat(0.0f);
    for (int64_t i = y.begin; i < y.end; ++i) {
      const T* token = tokens + (i * columns + x.begin) * stride + k;
      Vec<float> row = splat(0.0f);
      for (int64_t j = x.begin; j < x.end; ++j, token += stride) {
        __builtin_prefetch(token + columns * stride);  // The same place a row later.
        row += load_part<float>(token, n) - first;
      }
      sum += row;
    }
    store_part<float>(out + k, first + sum * share, n);
  }
}

// Adds to the tokens of row `row` their share of the gradients of the cells that they are in.
void spread(const float* cells, int64_t row, int64_t rows, int64_t columns, int64_t cell_rows, int64_t cell_columns,
            int64_t width, float* tokens) {
  const int64_t first = row * cell_rows / rows;  // Of the one or two rows of cells that reach here.
  for (int64_t r = first; r < smaller(first + 2, cell_rows); ++r) {
    const Range y(r, cell_rows, rows);
    if (!y.has(row)) continue;
    for (int64_t c = 0; c < cell_columns; ++c) {
      const Range x(c, cell_columns, columns);
      const float share = 1.0f / static_cast<float>(y.length() * x.length());
      const float* cell = cells + (r * cell_columns + c) * width;
      for (int64_t j = x.begin; j < x.end; ++j)
        for (int64_t k = 0; k < width; ++k) tokens[j * width + k] += share * cell[k];
    }
  }
}

}  // namespace
}  // namespace laplacianformer
