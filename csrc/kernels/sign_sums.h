// The gradient of the features: with g the weights (gradient times kernel over -scale, one for each pair),
//   d_long_l  = sum_s g_sl sign(long_l - short_s)      d_short_s = - sum_l g_sl sign(long_l - short_s).
//
// Here the features fill the lanes, not the long rows: rows are read and written as they are stored, and lanes need not
// be added up.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/panel.h"
#include "kernels/prefetch.h"
#include "kernels/product.h"
#include "kernels/simd.h"

namespace laplacianformer {
namespace {

// Long rows at a time: their features and sums stay in registers while the short rows pass. It divides kLanes.
constexpr int kSignRows = 4;
static_assert(kLanes<float> % kSignRows == 0 && kLanes<double> % kSignRows == 0);

// Features at a time: those of all short rows of a chunk, and their sums, stay in the first-level cache.
constexpr int64_t kSignFeatures = 64;

// One number for each pair, in one of two layouts. Within a subtile, those of consecutive long rows lie `row` apart,
// those of consecutive short rows `column`.
template <class R>
struct Weights {
  const R* data;
  int64_t subtile, row, column;

  INLINE Weights at(int64_t l) const {
    return {data + l / kLanes<R> * subtile + l % kLanes<R> * row, subtile, row, column};
  }
};

// The weights that a panel of `count` short rows holds.
template <class R>
INLINE Weights<R> panel_weights(const R* panel, int64_t count) {
  return {panel, subtile_size<R>(count), 1, kLanes<R>};
}

// One vector of features of `Rows` long rows, x, against that of a short row, y: adds to the sums d of the long rows,
// and returns the sum for the short row. Of two rows, the first takes a product and two additions, the second two
// multiply-adds and an addition: an even load on the units that only add, and on those that only multiply, multiply-add
// and find signs.
template <class R, int Rows>
INLINE Vec<R> sign_step(const Vec<R>* x, Vec<R> y, const R* weights, int64_t row, Vec<R>* d) {
  Vec<R> sum = splat<R>(0);
  for (int i = 0; i + 1 < Rows; i += 2) {
    const Vec<R> term = in_register<R>(splat<R>(weights[i * row]) * sign<R>(x[i], y));
    const Vec<R> s = sign<R>(x[i + 1], y), g = splat<R>(weights[(i + 1) * row]);
    d[i] += term;
    d[i + 1] += g * s;
    const Vec<R> both = in_register<R>(g * s + term);
    sum = i > 0 ? sum + both : both;
  }
  if constexpr (Rows % 2 == 1) {
    const Vec<R> s = sign<R>(x[Rows - 1], y), g = splat<R>(weights[(Rows - 1) * row]);
    d[Rows - 1] += g * s;
    sum += g * s;
  }
  return sum;
}

// `features` features of up to `Rows` long rows. Adding 0 turns -0 into 0, so that the difference of equal numbers is
// never -0, whose sign bit would count.
template <class R, int Rows = kSignRows>
INLINE void sign_rows(int64_t rows, const Stored<R, R>& longs, int64_t features, const Weights<R>& weights,
                      const ShortRows<R>& shorts, const Sums<R>& d_longs, R* d_shorts) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return sign_rows<R, Rows - 1>(rows, longs, features, weights, shorts, d_longs, d_shorts);
  }
  for (int64_t k = 0; k < features; k += kWidth<R>) {
    Vec<R> x[Rows], d[Rows];
    for (int i = 0; i < Rows; ++i) {
      x[i] = load(longs.data + i * longs.stride + k) + R(0);
      d[i] = load(d_longs.from + i * d_longs.from_row + k);
    }
    const R *g = weights.data, *y = shorts.data + k;
    R* sums = d_shorts + k;
#pragma GCC unroll 2
    for (int64_t s = 0; s < shorts.count; ++s, g += weights.column, y += shorts.stride, sums += shorts.stride)
      store(sums, load(sums) + sign_step<R, Rows>(x, load(y), g, weights.row, d));
    for (int i = 0; i < Rows; ++i) store(d_longs.to + i * d_longs.row + k, d[i]);
  }
}

// How often the prefetcher steps in a block and a chunk: at least once.
INLINE int64_t sign_steps(int64_t lanes, int64_t width) {
  const int64_t steps = (lanes + kSignRows - 1) / kSignRows * ((width + kSignFeatures - 1) / kSignFeatures);
  return steps > 0 ? steps : 1;
}

// Rows of `shorts.stride` features, whole vectors. `d_shorts` gets the sums with the sign of the long side.
template <class R>
void sign_sums(const Stored<R, R>& longs, int64_t lanes, const Weights<R>& weights, ShortRows<R> shorts,
               const Sums<R>& d_longs, R* d_shorts, Prefetcher& prefetcher) {
  const int64_t width = shorts.stride;
  for (int64_t k = 0; k < width; k += kSignFeatures)
    for (int64_t l = 0; l < lanes; l += kSignRows) {
      prefetcher.step();
      sign_rows<R>(lanes - l, longs.at(l, k), smaller(kSignFeatures, width - k), weights.at(l),
                   ShortRows<R>{shorts.data + k, width, shorts.count}, d_longs.at(l, k), d_shorts + k);
    }
}

}  // namespace
}  // namespace laplacianformer
