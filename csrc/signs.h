// The gradient of the distances: with g the weights (gradient by kernel over -scale, per pair),
//   d_long_l  = sum_s g_sl sign(long_l - short_s)      d_short_s = - sum_l g_sl sign(long_l - short_s).
//
// Here the features fill the lanes, not the long rows: rows are read and written as they are stored, and no lanes are
// added up.
#pragma once

namespace laplacianformer {
namespace {

// Long rows at a time: their numbers and sums stay in registers while the short rows go by. It divides kLanes.
constexpr int kSignRows = 4;
static_assert(kLanes<float> % kSignRows == 0 && kLanes<double> % kSignRows == 0);

// Features at a time: those of all short rows of a chunk, and their sums, stay in the first-level cache.
constexpr int64_t kSignFeatures = 64;

// A number for each pair, in one of two layouts. Those of `kSignRows` long rows lie `row` apart, those of short rows
// `column`.
template <class R>
struct Weights {
  const R* data;
  int64_t subtile, row, column;

  INLINE const R* at(int64_t l) const { return data + l / kLanes<R> * subtile + l % kLanes<R> * row; }
};

// A vector of features of `Rows` long rows, x, against one of a short row, y: adds to the sums of the long rows, and
// returns what the short row gets. Of two rows, a product and two additions for the first, two multiply-adds and an
// addition for the second: an even load on units that only add, and units that only multiply, multiply-add and look at
// signs.
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

// `features` features of up to `Rows` long rows. Adding 0 makes -0 a 0, so that the difference of equal numbers is
// never -0, whose sign bit would show.
template <class R, int Rows = kSignRows>
INLINE void sign_rows(int64_t rows, const Stored<R, R>& longs, int64_t features, const R* weights, int64_t row,
                      int64_t column, const R* shorts, int64_t stride, int64_t count, const Sums<R>& d_longs,
                      R* d_shorts) {
  if constexpr (Rows > 1) {
    if (rows < Rows)
      return sign_rows<R, Rows - 1>(rows, longs, features, weights, row, column, shorts, stride, count, d_longs,
                                    d_shorts);
  }
  for (int64_t k = 0; k < features; k += kWidth<R>) {
    Vec<R> x[Rows], d[Rows];
    for (int i = 0; i < Rows; ++i) {
      x[i] = load(longs.data + i * longs.stride + k) + R(0);
      d[i] = load(d_longs.from + i * d_longs.from_row + k);
    }
    const R *g = weights, *y = shorts + k;
    R* sums = d_shorts + k;
#pragma GCC unroll 2
    for (int64_t s = 0; s < count; ++s, g += column, y += stride, sums += stride)
      store(sums, load(sums) + sign_step<R, Rows>(x, load(y), g, row, d));
    for (int i = 0; i < Rows; ++i) store(d_longs.to + i * d_longs.row + k, d[i]);
  }
}

// How often `Ahead` steps in a block and a chunk: at least once.
INLINE int64_t signs_steps(int64_t lanes, int64_t width) {
  const int64_t steps = (lanes + kSignRows - 1) / kSignRows * ((width + kSignFeatures - 1) / kSignFeatures);
  return steps > 0 ? steps : 1;
}

// Rows of `width` features, whole vectors; `d_shorts` gets the sums with the sign of the long side.
template <class R>
void signs(const Stored<R, R>& longs, int64_t lanes, int64_t width, const Weights<R>& weights, const R* shorts,
           int64_t count, const Sums<R>& d_longs, R* d_shorts, Ahead& ahead) {
  for (int64_t k = 0; k < width; k += kSignFeatures)
    for (int64_t l = 0; l < lanes; l += kSignRows) {
      ahead.step();
      sign_rows<R>(lanes - l, longs.at(l, k), smaller(kSignFeatures, width - k), weights.at(l), weights.row,
                   weights.column, shorts + k, width, count, d_longs.at(l, k), d_shorts + k);
    }
}

}  // namespace
}  // namespace laplacianformer
