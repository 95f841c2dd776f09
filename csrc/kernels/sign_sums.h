// The gradient of the features: with g the weights (gradient times kernel over -scale, one for each pair),
//   d_long_l  = sum_s g_sl sign(long_l - short_s)      d_short_s = - sum_l g_sl sign(long_l - short_s).
//
// Here the features fill the lanes, not the long rows: rows are read and written as they are stored, and lanes need not
// be added up.
//
// Where an instruction for signs is fast but takes differences below 1 for themselves (kHasSignApart), features are
// multiplied by kSpread first: the numbers between 2^-72 and 2^30, and 0, become integers. Rows with others take the
// slower sign, with the same bits.
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
template <class R>
constexpr int kSignRows = kHasSignApart<R> ? 8 : 4;
static_assert(kLanes<float> % kSignRows<float> == 0 && kLanes<double> % kSignRows<double> == 0);

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

constexpr float kSpread = 0x1p96f;

// 2^-72 and 2^30 as bits without the sign, and a bit further left.
constexpr uint32_t kSpreadFrom = 0x1b800000u << 1, kSpreadTo = 0x4e800000u << 1;

// The short rows of a chunk, times kSpread into `to`. Returns whether the products can be used.
INLINE bool spread(const float* shorts, int64_t count, float* to) {
  using U = Simd<float>::U;
  U smallest = U{} - 1, largest = {};
  for (int64_t k = 0; k < count; k += kWidth<float>) {
    const Vec<float> x = load(shorts + k);
    const U bits = (U)x << 1, rest = bits - 1;  // 0 becomes the largest number.
    smallest = rest < smallest ? rest : smallest;
    largest = bits > largest ? bits : largest;
    store(to + k, x * kSpread);
  }
  return !any<float>(smallest < kSpreadFrom - 1) && !any<float>(largest >= kSpreadTo);
}

// The same of long rows. Infinite products are fine here, since those of the short rows are finite; so is NaN, whose
// weights are NaN.
template <int Rows>
INLINE bool can_spread(const Vec<float>* x) {
  using U = Simd<float>::U;
  U smallest = U{} - 1;
  for (int i = 0; i < Rows; ++i) {
    const U rest = ((U)x[i] << 1) - 1;
    smallest = rest < smallest ? rest : smallest;
  }
  return !any<float>(smallest < kSpreadFrom - 1);
}

// One vector of features of `Rows` long rows, x, against that of a short row, y: adds to the sums d of the long rows,
// and returns the sum for the short row.
template <class R, int Rows, bool Apart>
INLINE Vec<R> sign_step(const Vec<R>* x, Vec<R> y, const R* weights, int64_t row, Vec<R>* d) {
  Vec<R> sum = splat<R>(0);
  if constexpr (kHasSignApart<R>) {
    for (int i = 0; i < Rows; ++i) {
      const Vec<R> s = Apart ? sign_apart<R>(x[i], y) : sign<R>(x[i], y), g = load_splat(weights + i * row);
      d[i] += g * s;
      sum = i > 0 ? g * s + sum : g * s;
    }
    return sum;
  }
  // Of two rows, the first takes a product and two additions, the second two multiply-adds and an addition: an even
  // load on the units that only add, and on those that only multiply, multiply-add and find signs.
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

template <class R, int Rows, bool Apart>
INLINE void sign_vector(const Vec<R>* x, const Weights<R>& weights, const R* y, const ShortRows<R>& shorts, Vec<R>* d,
                        R* sums) {
  const R* g = weights.data;
#pragma GCC unroll 2
  for (int64_t s = 0; s < shorts.count; ++s, g += weights.column, y += shorts.stride, sums += shorts.stride)
    store(sums, load(sums) + sign_step<R, Rows, Apart>(x, load(y), g, weights.row, d));
}

// Rows of `rows.stride` features, whole vectors; times kSpread, or null if these can't be used.
template <class R>
struct SignShorts {
  ShortRows<R> rows;
  const R* spread;
};

// `features` features of up to `Rows` long rows. Adding 0 turns -0 into 0, so that the difference of equal numbers is
// never -0, whose sign bit would count.
template <class R, int Rows = kSignRows<R>>
INLINE void sign_rows(int64_t rows, const Stored<R, R>& longs, int64_t features, const Weights<R>& weights,
                      const SignShorts<R>& shorts, const Sums<R>& d_longs, R* d_shorts, Prefetcher& prefetcher) {
  if constexpr (Rows > 1) {
    if (rows < Rows)
      return sign_rows<R, Rows - 1>(rows, longs, features, weights, shorts, d_longs, d_shorts, prefetcher);
  }
  for (int64_t k = 0; k < features; k += kWidth<R>) {
    prefetcher.step();
    Vec<R> x[Rows], d[Rows];
    for (int i = 0; i < Rows; ++i) {
      x[i] = load(longs.data + i * longs.stride + k) + R(0);
      d[i] = load(d_longs.from + i * d_longs.from_row + k);
    }
    bool apart = false;
    if constexpr (kHasSignApart<R>) apart = shorts.spread && can_spread<Rows>(x);
    if (apart) {
      for (int i = 0; i < Rows; ++i) x[i] *= R(kSpread);
      sign_vector<R, Rows, true>(x, weights, shorts.spread + k, shorts.rows, d, d_shorts + k);
    } else {
      sign_vector<R, Rows, false>(x, weights, shorts.rows.data + k, shorts.rows, d, d_shorts + k);
    }
    for (int i = 0; i < Rows; ++i) store(d_longs.to + i * d_longs.row + k, d[i]);
  }
}

// How often the prefetcher steps in a block and a chunk: at least once. `width` is that of whole vectors.
template <class R>
INLINE int64_t sign_steps(int64_t lanes, int64_t width) {
  const int64_t steps = (lanes + kSignRows<R> - 1) / kSignRows<R> * (width / kWidth<R>);
  return steps > 0 ? steps : 1;
}

// `d_shorts` gets the sums with the sign of the long side.
template <class R>
void sign_sums(const Stored<R, R>& longs, int64_t lanes, const Weights<R>& weights, const SignShorts<R>& shorts,
               const Sums<R>& d_longs, R* d_shorts, Prefetcher& prefetcher) {
  const int64_t width = shorts.rows.stride;
  for (int64_t k = 0; k < width; k += kSignFeatures)
    for (int64_t l = 0; l < lanes; l += kSignRows<R>) {
      const SignShorts<R> part{{shorts.rows.data + k, width, shorts.rows.count},
                               shorts.spread ? shorts.spread + k : nullptr};
      sign_rows<R>(lanes - l, longs.at(l, k), smaller(kSignFeatures, width - k), weights.at(l), part, d_longs.at(l, k),
                   d_shorts + k, prefetcher);
    }
}

}  // namespace
}  // namespace laplacianformer
