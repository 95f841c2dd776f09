// The machine's limit for L1 distances: subtract, absolute value, add, on registers only.
#pragma once

#include <cstdint>

#include "kernels/simd.h"

namespace laplacianformer {
namespace {

constexpr int kPeakSums = 10;

template <bool Fused>
int64_t peak_of(int64_t rounds, double* result) {
  using V = Vec<float>;
  V sums[kPeakSums], one = in_register<float>(splat(1.0f)), x = splat(2.0f), y = splat(1.0f);
  for (V& sum : sums) sum = splat(0.0f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 10
    for (int j = 0; j < kPeakSums; ++j) {
#if defined(__x86_64__)
      __asm__ volatile("" : "+v"(x), "+v"(y));  // Hides from the compiler that they never change.
#endif
      const V difference = Fused ? x * one - y : x - y;
      sums[j] += absolute<float>(difference);
    }
  }
  V total = sums[0];
  for (int j = 1; j < kPeakSums; ++j) total += sums[j];
  *result = total[0];
  return kPeakSums * kWidth<float>;
}

// Returns the number of elements per round. `fused`: subtract by multiply-subtract, as pairs.h does.
int64_t peak(int64_t rounds, bool fused, double* result) {
  return fused ? peak_of<true>(rounds, result) : peak_of<false>(rounds, result);
}

}  // namespace
}  // namespace laplacianformer
