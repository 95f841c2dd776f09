// The sums of rows, for the second form of the distance (pairs.h).
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/exponential.h"
#include "kernels/pairs.h"
#include "kernels/panel.h"
#include "kernels/simd.h"

namespace laplacianformer {
namespace {

// The second form is used where sum |x| + sum |y| is at most this many scales. The relative error of the kernel is then
// about 2e-6, and the kernel is never smaller than exp(-32).
constexpr double kRowSumsBound = 32;

// What sum |x| of each side may be; below 0, so that nothing is within it, for scales that the second form can't take.
// Sums of both sides must not overflow.
template <class R>
INLINE R row_sums_bound(double scale) {
  using F = Format<R>;
  const double bound = scale * (kRowSumsBound / 2);
  return static_cast<R>(scale < F::kSmallScale ? -1 : bound < F::kMax / 4 ? bound : F::kMax / 4);
}

// Writes half the sum of each row of a panel, added up as pairs.h adds up. Returns whether sum |x| is within the bound
// for all rows.
template <class R>
bool half_row_sums(const R* panel, int64_t lanes, int64_t width, R bound, R* sums) {
  bool within = true;
  for (int64_t v = 0; v < vectors<R>(lanes); v += 2) {
    // Both vectors of a subtile, because the additions of one wait for each other. If there is no second one, the first
    // again.
    const R* x[2] = {panel + vector_offset<R>(v, width),
                     panel + vector_offset<R>(smaller(v + 1, vectors<R>(lanes) - 1), width)};
    Vec<R> total[2] = {}, size[2] = {};
    for (int64_t begin = 0; begin < width; begin += kFeatures) {
      Vec<R> sum[2] = {};
      for (int64_t k = begin; k < smaller(begin + kFeatures, width); ++k)
        for (int i = 0; i < 2; ++i) {
          const Vec<R> term = load(x[i] + k * kLanes<R>);
          sum[i] += term;
          size[i] += absolute<R>(term);
        }
      for (int i = 0; i < 2; ++i) total[i] = begin > 0 ? total[i] + sum[i] : sum[i];
    }
    for (int i = 0; i < 2; ++i) {
      store(sums + (v + i) * kWidth<R>, total[i] * R(0.5));
      for (int l = 0; l < kWidth<R>; ++l) within &= size[i][l] <= bound;  // False for NaN.
    }
  }
  return within;
}

}  // namespace
}  // namespace laplacianformer
