// The gradient of the distances: with g the weights (gradient by kernel over -scale, per pair),
//   d_long_l  = sum_s g_sl sign(long_l - short_s)      d_short_s = - sum_l g_sl sign(long_l - short_s).
#pragma once

namespace laplacianformer {
namespace {

// Short rows at a time: their sums and their numbers stay in registers while the long rows go by.
constexpr int kSignGroup = 5;

// One vector of long rows against `Rows` short ones.
template <class R, int Rows>
INLINE void sign_step(const R* longs, const R* weights, const Vec<R>* y, R* d_longs, Vec<R>* total) {
  const Vec<R> x = load(longs);
  Vec<R> d = load(d_longs);
  for (int j = 0; j < Rows; ++j) {
    const Vec<R> s = sign<R>(x, y[j]), g = in_register<R>(load(weights + j * kLanes<R>));
    d += g * s;
    total[j] += g * s;
  }
  store(d_longs, d);
}

// Two of them. A product and two additions for the first, two multiply-adds for the second: an even load on units
// that only add and units that only multiply and add.
template <class R, int Rows>
INLINE void sign_steps(const R* longs, const R* weights, const Vec<R>* y, R* d_longs, Vec<R>* total) {
  constexpr int w = kWidth<R>;
  const Vec<R> x0 = load(longs), x1 = load(longs + w);
  Vec<R> d0 = load(d_longs), d1 = load(d_longs + w);
  for (int j = 0; j < Rows; ++j) {
    const Vec<R> term = in_register<R>(load(weights + j * kLanes<R>) * sign<R>(x0, y[j]));
    const Vec<R> s = sign<R>(x1, y[j]), g = in_register<R>(load(weights + j * kLanes<R> + w));
    d0 += term;
    d1 += g * s;
    total[j] += in_register<R>(g * s + term);
  }
  store(d_longs, d0);
  store(d_longs + w, d1);
}

// One feature of `Rows` short rows against `count` vectors. `sums` gets, lane by lane, the terms of d_short.
template <class R, int Rows>
INLINE void sign_feature(const R* longs, int64_t long_size, const R* weights, int64_t weight_size, const R* shorts,
                         int64_t stride, int64_t count, R* d_longs, Vec<R>* sums) {
  Vec<R> y[Rows], total[Rows];
  for (int j = 0; j < Rows; ++j) {
    y[j] = splat<R>(shorts[j * stride]);
    total[j] = splat<R>(0);
  }
  for (; count >= 2; count -= 2, longs += long_size, d_longs += long_size, weights += weight_size)
    sign_steps<R, Rows>(longs, weights, y, d_longs, total);
  if (count) sign_step<R, Rows>(longs, weights, y, d_longs, total);
  for (int j = 0; j < Rows; ++j) sums[j * kWidth<R>] = total[j];
}

// sums_k -= the sum of the lanes of lanes_k, for up to one vector of k.
template <class R>
INLINE void subtract_lane_sums(Vec<R>* lanes, int64_t n, R* sums) {
  constexpr int w = kWidth<R>;
  for (int64_t k = 0; k < w; ++k)
    if (k >= n) lanes[k] = splat<R>(0);
  store_part<R>(sums, load_part<R>(sums, n) - add_lanes<R>(lanes), n);
}

template <class R, int Rows = kSignGroup>
INLINE void sign_group(int64_t rows, const R* longs, int64_t lanes, int64_t width, const R* weights,
                       int64_t weight_size, const R* shorts, R* d_longs, R* d_shorts, Ahead& ahead) {
  constexpr int w = kWidth<R>;
  if constexpr (Rows > 1) {
    if (rows < Rows)
      return sign_group<R, Rows - 1>(rows, longs, lanes, width, weights, weight_size, shorts, d_longs, d_shorts, ahead);
  }
  const int64_t size = subtile_size<R>(width), count = vectors<R>(lanes);
  const auto features = [&](int64_t k, int64_t n) __attribute__((always_inline)) {
    ahead.step();
    Vec<R> sums[Rows * w];
    for (int64_t i = 0; i < n; ++i)
      sign_feature<R, Rows>(longs + (k + i) * kLanes<R>, size, weights, weight_size, shorts + k + i, width, count,
                            d_longs + (k + i) * kLanes<R>, sums + i);
    for (int j = 0; j < Rows; ++j) subtract_lane_sums<R>(sums + j * w, n, d_shorts + j * width + k);
  };
  int64_t k = 0;
  for (; k + w <= width; k += w) features(k, w);
  if (k < width) features(k, width - k);
}

// How often `Ahead` steps in a block and a chunk: at least once.
template <class R>
INLINE int64_t signs_steps(int64_t count, int64_t width) {
  const int64_t groups = (count + kSignGroup - 1) / kSignGroup, squares = (width + kWidth<R> - 1) / kWidth<R>;
  return groups * squares > 0 ? groups * squares : 1;
}

// Panels of the long features, of the weights and of the long gradient; rows of the short features and gradient.
template <class R>
void signs(const R* longs, int64_t lanes, int64_t width, const R* weights, int64_t count, const R* shorts, R* d_longs,
           R* d_shorts, Ahead& ahead) {
  const int64_t size = subtile_size<R>(count);
  for (int64_t j = 0; j < count; j += kSignGroup)
    sign_group<R>(count - j, longs, lanes, width, weights + j * kLanes<R>, size, shorts + j * width, d_longs,
                  d_shorts + j * width, ahead);
}

}  // namespace
}  // namespace laplacianformer
