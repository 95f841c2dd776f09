// The machine's limits, on registers only: for L1 distances subtract, absolute value, add; for their gradient, were no
// two numbers equal, compare and add the weight to two sums where one number is the larger.
#pragma once

#include <cstdint>

#include "kernels/simd.h"

namespace laplacianformer {
namespace {

constexpr int kPeakSums = 10;

// Hides from the compiler that these never change.
INLINE void forget([[maybe_unused]] Vec<float>& x, [[maybe_unused]] Vec<float>& y) {
#if defined(__x86_64__)
  __asm__ volatile("" : "+v"(x), "+v"(y));
#endif
}

// One vector of one pair: an instruction to subtract, one for the absolute value, one to add.
struct DistancePeak {
  template <bool Fused>
  static INLINE void step(int j, Vec<float> x, Vec<float> y, Vec<float> one, Vec<float>* sums) {
    const Vec<float> difference = Fused ? x * one - y : x - y;
    sums[j] += absolute<float>(difference);
  }
};

// One vector of one pair: an instruction to compare and two to add, which AVX-512 does under the mask of the
// comparison; elsewhere one more, to keep the weight where the comparison holds. `Fused`: of two pairs, one of the four
// additions is a multiply-add.
struct GradientPeak {
  template <bool Fused>
  static INLINE void step(int j, Vec<float> x, Vec<float> y, Vec<float> one, Vec<float>* sums) {
    Vec<float>&a = sums[j], &b = sums[(j + 1) % kPeakSums];
#if LAPLACIANFORMER_VECTOR_BYTES == 64
    const __mmask16 larger = _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_GT_OQ);
    a = (Vec<float>)_mm512_mask_add_ps((__m512)a, larger, (__m512)a, (__m512)one);
    if (Fused && j % 2) {
      b = (Vec<float>)_mm512_mask3_fmadd_ps((__m512)x, (__m512)one, (__m512)b, larger);
    } else {
      b = (Vec<float>)_mm512_mask_add_ps((__m512)b, larger, (__m512)b, (__m512)one);
    }
#else
    using I = Simd<float>::I;
    const Vec<float> term = (Vec<float>)((I)(x > y) & (I)one);
    a += term;
    b = Fused && j % 2 ? term * one + b : b + term;
#endif
  }
};

template <class Peak, bool Fused>
int64_t peak_of(int64_t rounds, double* result) {
  using V = Vec<float>;
  V sums[kPeakSums], one = in_register<float>(splat(1.0f)), x = splat(2.0f), y = splat(1.0f);
  for (V& sum : sums) sum = splat(0.0f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 10
    for (int j = 0; j < kPeakSums; ++j) {
      forget(x, y);
      Peak::template step<Fused>(j, x, y, one, sums);
    }
  }
  V total = sums[0];
  for (int j = 1; j < kPeakSums; ++j) total += sums[j];
  *result = total[0];
  return kPeakSums * kWidth<float>;
}

// Returns the number of elements per round: pairs of rows times features. `fused`: subtract by multiply-subtract, as
// pairs.h does, or some additions by multiply-add.
int64_t peak(int64_t rounds, bool gradient, bool fused, double* result) {
  if (gradient)
    return fused ? peak_of<GradientPeak, true>(rounds, result) : peak_of<GradientPeak, false>(rounds, result);
  return fused ? peak_of<DistancePeak, true>(rounds, result) : peak_of<DistancePeak, false>(rounds, result);
}

}  // namespace
}  // namespace laplacianformer
