// One number for each pair of a long and a short row: the L1 distance or the dot product of the two.
//
// The distance has two forms. sum |x - y| takes three instructions per vector and is exact up to rounding. With the
// sums of the rows at hand, 2 sum max(x, y) - sum x - sum y takes two; its error is a few roundings of sum |x| and sum
// |y|, so it is used where those are small compared to the scale (kRowSumsBound), and the first form elsewhere.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/exponential.h"
#include "kernels/panel.h"
#include "kernels/prefetch.h"
#include "kernels/simd.h"

namespace laplacianformer {
namespace {

// Short rows per tile. Ten accumulators, two long vectors, the short number and two constants fill the sixteen
// registers of AVX2; 49 short rows are nine groups of 5 and one of 4.
constexpr int kGroup = 5;

// A partial sum is over at most this many features: shorter sums round less.
constexpr int64_t kFeatures = 64;

struct Distance {
  template <class R>
  static INLINE Vec<R> step(Vec<R> sum, Vec<R> x, const R& y, Vec<R>) {
    return sum + absolute<R>(x - splat<R>(y));
  }
};

struct Largest {
  // Where multiply-add has units of its own, the addition is faster there: 1 * x + y is rounded once, so it is x + y to
  // the bit. The value of `one` is hidden from the compiler, which would simplify the product.
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
INLINE void pair_group(int64_t rows, const R* longs, const R* shorts, int64_t stride, int64_t width, R* out, bool add) {
  if constexpr (Rows > 0) {
    if (rows >= Rows) {
      pair_tile<Op, R, Vectors, Rows>(longs, shorts, stride, width, out, add);
    } else {
      pair_group<Op, R, Vectors, Rows - 1>(rows, longs, shorts, stride, width, out, add);
    }
  }
}

// How often the prefetcher steps in a block and a chunk: at least once.
template <class R>
INLINE int64_t pair_steps(int64_t lanes, int64_t count) {
  const int64_t groups = (count + kGroup - 1) / kGroup;
  return (lanes + kLanes<R> - 1) / kLanes<R> * (groups > 0 ? groups : 1);
}

// One subtile: the short rows against one or two vectors of long rows.
template <class Op, class R, int Vectors>
void pair_subtile(const R* longs, ShortRows<R> shorts, int64_t width, R* out, Prefetcher& prefetcher) {
  for (int64_t k = 0; k < width || k == 0; k += kFeatures)
    for (int64_t j = 0; j < shorts.count; j += kGroup) {
      prefetcher.step();
      pair_group<Op, R, Vectors>(shorts.count - j, longs + k * kLanes<R>, shorts.data + j * shorts.stride + k,
                                 shorts.stride, smaller(kFeatures, width - k), out + j * kLanes<R>, k > 0);
    }
}

// A panel of `width` rows and `count` short rows -> a panel of `count` rows; `finish` is called with each subtile of
// it.
template <class Op, class R, class Finish>
INLINE void pairs(const R* panel, int64_t lanes, ShortRows<R> shorts, int64_t width, R* out, Prefetcher& prefetcher,
                  Finish finish) {
  for (int64_t v = 0; v < vectors<R>(lanes); v += 2) {
    const R* longs = panel + vector_offset<R>(v, width);
    R* to = out + vector_offset<R>(v, shorts.count);
    if (v + 1 < vectors<R>(lanes)) {
      pair_subtile<Op, R, 2>(longs, shorts, width, to, prefetcher);
    } else {
      pair_subtile<Op, R, 1>(longs, shorts, width, to, prefetcher);
    }
    finish(to);
  }
}

// exp(-distance / scale), by the first form of the distance.
template <class R>
void kernel_panel(const R* panel, int64_t lanes, ShortRows<R> shorts, int64_t width, const Exponential<R>& exponential,
                  R* out, Prefetcher& prefetcher) {
  const int64_t count = shorts.count;
  const auto finish = [&](R* subtile) __attribute__((always_inline)) {
    for (int64_t k = 0; k < count * kLanes<R>; k += kWidth<R>) store(subtile + k, exponential(load(subtile + k)));
  };
  pairs<Distance>(panel, lanes, shorts, width, out, prefetcher, finish);
}

// Half the sum of each row of either side, for the second form.
template <class R>
struct HalfRowSums {
  const R *longs, *shorts;
};

// The same by the second form. Sums are taken in the same order everywhere, so that equal rows have distance 0 and x
// and y can be swapped.
template <class R>
void kernel_panel(const R* panel, int64_t lanes, ShortRows<R> shorts, HalfRowSums<R> half_sums, int64_t width,
                  const Exponential<R>& given, R* out, Prefetcher& prefetcher) {
  const R *long_sums = half_sums.longs, *short_sums = half_sums.shorts;
  const int64_t count = shorts.count;
  const auto finish = [&](R* subtile) __attribute__((always_inline)) {
    const Exponential<R> exponential = given;  // A copy: otherwise its constants are read again after each store.
    const Vec<R> sums[2] = {load(long_sums), load(long_sums + kWidth<R>)};
    long_sums += kLanes<R>;
    for (int64_t j = 0; j < count; ++j, subtile += kLanes<R>) {
      const Vec<R> zero = splat<R>(0), sum = splat<R>(short_sums[j]);
      for (int v = 0; v < 2; ++v) {
        R* to = subtile + v * kWidth<R>;
        store(to, exponential.of_half(larger<R>(load(to) - (sums[v] + sum), zero)));
      }
    }
  };
  pairs<Largest>(panel, lanes, shorts, width, out, prefetcher, finish);
}

}  // namespace
}  // namespace laplacianformer
