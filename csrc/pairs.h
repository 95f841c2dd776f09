// One number for each pair of a long and a short row: the L1 distance or the dot product of the two.
//
// The distance has two forms. |x - y| summed takes three instructions a vector and is exact to rounding. With the
// sums of the rows at hand, 2 sum max(x, y) - sum x - sum y takes two; its error is a few roundings of sum |x| and
// sum |y|, so it is used where those are small beside the scale (kTotalsBound), and the first form elsewhere.
#pragma once

namespace laplacianformer {
namespace {

// Short rows at a time. Ten accumulators, two long vectors, the short number and two constants fill the sixteen
// registers of AVX2; 49 short rows are nine groups of 5 and one of 4.
constexpr int kGroup = 5;

// A partial sum takes at most this many features: shorter sums round less.
constexpr int64_t kFeatures = 64;

struct Distance {
  template <class R>
  static INLINE Vec<R> step(Vec<R> sum, Vec<R> x, const R& y, Vec<R>) {
    return sum + absolute<R>(x - splat<R>(y));
  }
};

struct Largest {
  // Where multiply-add has units of its own, the addition is better off there: 1 * x + y is rounded once, so it is
  // x + y to the bit. `one` is hidden from the compiler, which would see through this.
  template <class R>
  static INLINE Vec<R> step(Vec<R> sum, Vec<R> x, const R& y, Vec<R> one) {
    const Vec<R> largest = larger_than<R>(x, y);
    return LAPLACIANFORMER_VECTOR_BYTES >= 32 ? largest * one + sum : largest + sum;
  }
};

struct Dot {
  template <class R>
  static INLINE Vec<R> step(Vec<R> sum, Vec<R> x, const R& y, Vec<R>) {
    return sum + x * splat<R>(y);
  }
};

template <class Op, class R, int Vectors, int Rows>
INLINE void pair_tile(const R* longs, const R* shorts, int64_t stride, int64_t width, R* out, bool add) {
  Vec<R> sums[Rows][Vectors];
  for (int j = 0; j < Rows; ++j)
    for (int v = 0; v < Vectors; ++v) sums[j][v] = splat<R>(0);
  const Vec<R> one = in_register<R>(splat<R>(1));
  for (int64_t k = 0; k < width; ++k) {
    const R* x = longs + k * kLanes<R>;
    for (int j = 0; j < Rows; ++j)
      for (int v = 0; v < Vectors; ++v)
        sums[j][v] = Op::template step<R>(sums[j][v], load(x + v * kWidth<R>), shorts[j * stride + k], one);
  }
  for (int j = 0; j < Rows; ++j)
    for (int v = 0; v < Vectors; ++v) {
      R* to = out + j * kLanes<R> + v * kWidth<R>;
      store(to, add ? load(to) + sums[j][v] : sums[j][v]);
    }
}

template <class Op, class R, int Vectors, int Rows = kGroup>
INLINE void pair_group(int64_t rows, const R* longs, const R* shorts, int64_t stride, int64_t width, R* out,
                       bool add) {
  if constexpr (Rows > 0) {
    if (rows >= Rows) {
      pair_tile<Op, R, Vectors, Rows>(longs, shorts, stride, width, out, add);
    } else {
      pair_group<Op, R, Vectors, Rows - 1>(rows, longs, shorts, stride, width, out, add);
    }
  }
}

// How often `Ahead` steps in a block and a chunk: at least once.
template <class R>
INLINE int64_t pair_steps(int64_t lanes, int64_t count) {
  const int64_t groups = (count + kGroup - 1) / kGroup;
  return (lanes + kLanes<R> - 1) / kLanes<R> * (groups > 0 ? groups : 1);
}

// One subtile: `count` short rows of `stride` numbers against one or two vectors of long rows.
template <class Op, class R, int Vectors>
void pair_subtile(const R* longs, const R* shorts, int64_t stride, int64_t count, int64_t width, R* out,
                  Ahead& ahead) {
  for (int64_t k = 0; k < width || k == 0; k += kFeatures)
    for (int64_t j = 0; j < count; j += kGroup) {
      ahead.step();
      pair_group<Op, R, Vectors>(count - j, longs + k * kLanes<R>, shorts + j * stride + k, stride,
                                 smaller(kFeatures, width - k), out + j * kLanes<R>, k > 0);
    }
}

// A panel of `width` rows and `count` short rows -> a panel of `count` rows; `finish` sees each subtile of it.
template <class Op, class R, class Finish>
INLINE void pairs(const R* panel, int64_t lanes, const R* shorts, int64_t stride, int64_t count, int64_t width, R* out,
                  Ahead& ahead, Finish finish) {
  for (int64_t v = 0; v < vectors<R>(lanes); v += 2) {
    const R* longs = panel + vector_offset<R>(v, width);
    R* to = out + vector_offset<R>(v, count);
    if (v + 1 < vectors<R>(lanes)) {
      pair_subtile<Op, R, 2>(longs, shorts, stride, count, width, to, ahead);
    } else {
      pair_subtile<Op, R, 1>(longs, shorts, stride, count, width, to, ahead);
    }
    finish(to);
  }
}

template <class R>
void kernel_panel(const R* panel, int64_t lanes, const R* shorts, int64_t stride, int64_t count, int64_t width,
                  const Exponential<R>& exponential, R* out, Ahead& ahead) {
  const auto finish = [&](R* subtile) __attribute__((always_inline)) {
    for (int64_t k = 0; k < count * kLanes<R>; k += kWidth<R>)
      store(subtile + k, exponential(load(subtile + k)));
  };
  pairs<Distance>(panel, lanes, shorts, stride, count, width, out, ahead, finish);
}

// The same by the second form. Sums run in the same order everywhere, so that equal rows have distance 0, and x and
// y may swap.
template <class R>
void kernel_panel(const R* panel, const R* totals, int64_t lanes, const R* shorts, int64_t stride,
                  const R* short_totals, int64_t count, int64_t width, const Exponential<R>& given, R* out, Ahead& ahead) {
  const auto finish = [&](R* subtile) __attribute__((always_inline)) {
    const Exponential<R> exponential = given;  // Or its constants would be read again after each store.
    const Vec<R> sums[2] = {load(totals), load(totals + kWidth<R>)};
    totals += kLanes<R>;
    for (int64_t j = 0; j < count; ++j, subtile += kLanes<R>) {
      const Vec<R> zero = splat<R>(0), total = splat<R>(short_totals[j]);
      for (int v = 0; v < 2; ++v) {
        R* to = subtile + v * kWidth<R>;
        store(to, exponential.of_half(larger<R>(load(to) - (sums[v] + total), zero)));
      }
    }
  };
  pairs<Largest>(panel, lanes, shorts, stride, count, width, out, ahead, finish);
}

}  // namespace
}  // namespace laplacianformer
