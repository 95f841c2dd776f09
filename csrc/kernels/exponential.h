// exp(-distance / scale) on vectors.
#pragma once

#include <cstdint>

#include "kernels/simd.h"

namespace laplacianformer {
namespace {

// e^g = 1 + g q(g), exactly 1 at 0, for |g| <= log(2) / 2: q interpolated at Chebyshev nodes, relative error below 6e-9
// (float) and 2e-19 (double). With a table of 8 or 16 powers of 2, for |g| <= log(2) / 16: three terms, below 2.7e-8.
template <class R, bool Table>
struct Series;

template <>
struct Series<float, false> {
  static constexpr double kQ[] = {1.0000000108364156061,   0.50000000135387298866,   0.16666504613032610564,
                                  0.041666464197405692315, 0.0083692202918036074186, 0.0013933730715792082502};
};

template <>
struct Series<float, true> {
  static constexpr double kQ[] = {1, 0.50006478530877187912, 0.16667962353656355827};
};

template <>
struct Series<double, false> {
  static constexpr double kQ[] = {0.99999999999999999976,    0.49999999999999999998,     0.16666666666666680948,
                                  0.041666666666666676865,   0.0083333333333194903177,   0.0013888888888879003084,
                                  0.00019841269890340665299, 0.000024801587336630946966, 2.7557240604663895823e-6,
                                  2.7557263077309411451e-7,  2.5110153646928931396e-8,   2.0918212319133978201e-9};
};

// log(2) is split in two so that small integers times its first part are exact. The smallest normal number is
// 2^kSmallest. For scales below kSmallScale, whose inverse might be too large, distances are multiplied by kStretch
// first.
template <class R>
struct Format;

template <>
struct Format<float> {
  static constexpr float kLog2High = 0x1.62e4p-1f, kLog2Low = 1.4286067653301870e-06f;
  static constexpr int kMantissa = 23, kSmallest = -126;
  static constexpr double kMax = 3.4028234663852886e38, kSmallScale = 0x1p-100, kStretch = 0x1p64;
};

template <>
struct Format<double> {
  static constexpr double kLog2High = 0x1.62e42feep-1, kLog2Low = 1.9082149292705877e-10;
  static constexpr int kMantissa = 52, kSmallest = -1022;
  static constexpr double kMax = 1.7976931348623157e308, kSmallScale = 0x1p-900, kStretch = 0x1p256;
};

// 2^(j / 16)
constexpr double kPowers[] = {1,
                              1.04427378242741384,
                              1.09050773266525766,
                              1.13878863475669165,
                              1.18920711500272107,
                              1.24185781207348405,
                              1.29683955465100967,
                              1.35425554693689273,
                              1.41421356237309505,
                              1.47682614593949931,
                              1.54221082540794082,
                              1.61049033194925431,
                              1.68179283050742909,
                              1.75625216037329948,
                              1.83400808640934246,
                              1.91520656139714729};

// exp(-v / scale) = 2^(n / steps) 2^(f / steps), n the integer nearest to -v steps log2(e) / scale, f the rest. The
// first factor comes from the bits of n and, where one instruction can look it up, from a table of `steps` powers. 1
// for v = 0, NaN for NaN, 0 for infinity and wherever the result would be below the smallest normal number.
template <class R>
class Exponential {
  using S = Series<R, (kTable<R> > 1)>;
  using F = Format<R>;
  using I = typename Simd<R>::I;
  using U = typename Simd<R>::U;  // For bits: sums of signed numbers must not overflow.
  static constexpr int kShift = F::kMantissa - (kTable<R> == 16 ? 4 : kTable<R> == 8 ? 3 : 0);
  static constexpr R kSteps = static_cast<R>(kTable<R> * 1.4426950408889634074);
  // Adding it leaves n in the low bits of the sum: n needs no conversion to an integer.
  static constexpr R kMagic = static_cast<R>(int64_t{3} << (F::kMantissa - 1));

 public:
  explicit Exponential(double scale) {
    const double stretch = scale < F::kSmallScale ? F::kStretch : 1, inverse = 1 / (scale * stretch);
    const double largest = F::kMax / (2 * kSteps), factor = inverse < largest ? inverse : largest;
    const double bound = -F::kSmallest * 0.6931471805599453 / factor;
    stretch_ = static_cast<R>(stretch);
    factor_ = static_cast<R>(-factor);
    half_factor_ = static_cast<R>(-2 * kTable<R> * 1.4426950408889634074 * factor);
    bound_ = static_cast<R>(bound < F::kMax ? bound : F::kMax);
    for (int64_t j = 0; j < kWidth<R>; ++j) {
      const int64_t step = j % kTable<R>;
      const Vec<R> power = splat<R>(static_cast<R>(kPowers[step * (16 / kTable<R>)]));
      powers_[j] = ((I)power)[0] - (step << kShift);  // Without what the bits of n add.
    }
  }

  INLINE Vec<R> operator()(Vec<R> given) const {
    const Vec<R> distance = given * stretch_;
    const Vec<R> u = in_register<R>(distance * factor_), shifted = u * kSteps + kMagic, n = shifted - kMagic;
    const Vec<R> rest = (u - n * (F::kLog2High / kTable<R>)) - n * (F::kLog2Low / kTable<R>);
    return (Vec<R>)((I)power(shifted, rest * kSteps) & ~(I)(distance > splat<R>(bound_)));
  }

  // The same of a sum, of which the second term is the rounding error of the first. It is finite, and the scale not
  // below kSmallScale.
  INLINE Vec<R> operator()(Vec<R> v, Vec<R> rest) const {
    const Vec<R> u = in_register<R>(v * factor_), shifted = u * kSteps + kMagic, n = shifted - kMagic;
    const Vec<R> left = ((u - n * (F::kLog2High / kTable<R>)) - n * (F::kLog2Low / kTable<R>)) + rest * factor_;
    return (Vec<R>)((I)power(shifted, left * kSteps) & ~(I)(v > splat<R>(bound_)));
  }

  // The same of half a distance, where the result is known to be a normal number and the scale not below kSmallScale. n
  // and f are found in one step, which for distances of a few scales rounds less than the sums of pairs.h do.
  INLINE Vec<R> of_half(Vec<R> half) const {
    const Vec<R> shifted = half * half_factor_ + kMagic;
    return power(shifted, half * half_factor_ - (shifted - kMagic));
  }

 private:
  // The coefficient of f^(k + 1).
  static constexpr R coefficient(int k) {
    double value = S::kQ[k];
    for (int i = 0; i <= k; ++i) value *= 0.6931471805599453094 / kTable<R>;
    return static_cast<R>(value);
  }

  // 2^((n + f) / steps), with n in the low bits of `shifted`.
  INLINE Vec<R> power(Vec<R> shifted, Vec<R> f) const {
    constexpr int last = sizeof(S::kQ) / sizeof(double) - 1;
    Vec<R> q = f * coefficient(last) + coefficient(last - 1);
    for (int k = last - 2; k >= 0; --k) q = q * f + coefficient(k);
    const Vec<R> whole = (Vec<R>)((U)lookup<R>(powers_, (I)shifted) + ((U)shifted << kShift));
    return whole * (f * q) + whole;  // Products, so that NaN stays NaN.
  }

  R stretch_, factor_, half_factor_, bound_;
  I powers_;
};

}  // namespace
}  // namespace laplacianformer
