// Matrix products with a panel on the left: sums over short rows, or over the long rows of a block.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/panel.h"
#include "kernels/simd.h"

namespace laplacianformer {
namespace {

// The left factor: element (i, k) at row * i + inner * (k % run) + outer * (k / run).
template <class R>
struct Left {
  const R* data;
  int64_t row, inner, run, outer;
};

// The sums: row i starts from the numbers at from + i * from_row, and is stored at to + i * row.
template <class R>
struct Sums {
  const R* from;
  int64_t from_row;
  R* to;
  int64_t row;

  INLINE Sums at(int64_t i, int64_t column) const {
    return {from + i * from_row + column, from_row, to + i * row + column, row};
  }
};

template <class R>
INLINE Sums<R> add_to(R* sums, int64_t row) {
  return {sums, row, sums, row};
}

template <class R, int Rows, int Vectors>
INLINE void product_tile(const Left<R>& left, int64_t depth, const R* right, int64_t width, const Sums<R>& out) {
  constexpr int w = kWidth<R>;
  Vec<R> sums[Rows][Vectors];
  for (int i = 0; i < Rows; ++i)
    for (int v = 0; v < Vectors; ++v) sums[i][v] = load(out.from + i * out.from_row + v * w);
  const R* data = left.data;
  for (int64_t k0 = 0; k0 < depth; k0 += left.run, data += left.outer) {
    const int64_t run = smaller(left.run, depth - k0);
    for (int64_t k = 0; k < run; ++k, right += width)
      for (int i = 0; i < Rows; ++i) {
        const Vec<R> a = splat<R>(data[i * left.row + k * left.inner]);
        for (int v = 0; v < Vectors; ++v) sums[i][v] += a * load(right + v * w);
      }
  }
  for (int i = 0; i < Rows; ++i)
    for (int v = 0; v < Vectors; ++v) store(out.to + i * out.row + v * w, sums[i][v]);
}

template <class R, int Vectors, int Rows = 6>
INLINE void product_rows(Left<R> left, int64_t rows, int64_t depth, const R* right, int64_t width, Sums<R> out) {
  for (; rows >= Rows; rows -= Rows) {
    product_tile<R, Rows, Vectors>(left, depth, right, width, out);
    left.data += Rows * left.row;
    out = out.at(Rows, 0);
  }
  if constexpr (Rows > 1) product_rows<R, Vectors, Rows - 1>(left, rows, depth, right, width, out);
}

// out = from + left @ right; the rows of both and of right (depth, width) are padded to whole vectors.
template <class R>
void product(const Left<R>& left, int64_t rows, int64_t depth, const R* right, int64_t width, const Sums<R>& out) {
  constexpr int w = kWidth<R>;
  int64_t c = 0;
  for (; c + 2 * w <= width; c += 2 * w) product_rows<R, 2>(left, rows, depth, right + c, width, out.at(0, c));
  if (c < width) product_rows<R, 1>(left, rows, depth, right + c, width, out.at(0, c));
}

// One row of `out` for each long row: out_l = from_l + sum_s panel_sl right_s.
template <class R>
void product_long(const R* panel, int64_t lanes, int64_t shorts, const R* right, int64_t width, const Sums<R>& out) {
  for (int64_t l = 0; l < lanes; l += kLanes<R>) {
    const Left<R> left{panel + l / kLanes<R> * subtile_size<R>(shorts), 1, kLanes<R>, shorts, 0};
    product(left, smaller(kLanes<R>, lanes - l), shorts, right, width, out.at(l, 0));
  }
}

// One row of `out` for each short row: out_s += sum_l panel_sl right_l.
template <class R>
void product_short(const R* panel, int64_t lanes, int64_t shorts, const R* right, int64_t width, R* out) {
  const Left<R> left{panel, kLanes<R>, 1, kLanes<R>, subtile_size<R>(shorts)};
  product(left, shorts, lanes, right, width, add_to(out, width));
}

}  // namespace
}  // namespace laplacianformer
