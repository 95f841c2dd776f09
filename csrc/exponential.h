// exp(-distance / scale) on vectors.
#pragma once

namespace laplacianformer {
namespace {

// e^f = 1 + f q(f) on |f| <= log(2) / 2, q interpolated at Chebyshev nodes: exactly 1 at 0, relative error
// below 6e-9 (float) and 2e-19 (double), so that rounding dominates. log(2) is split in two so that small
// integers times its first part are exact.
template <class R>
struct Series;

template <>
struct Series<float> {
  static constexpr float kQ[] = {1.0000000108364156061f,   0.50000000135387298866f,   0.16666504613032610564f,
                                 0.041666464197405692315f, 0.0083692202918036074186f, 0.0013933730715792082502f};
  static constexpr float kLog2High = 0x1.62e4p-1f, kLog2Low = 1.4286067653301870e-06f;
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr double kMax = 3.4028234663852886e38;
};

template <>
struct Series<double> {
  static constexpr double kQ[] = {0.99999999999999999976,   0.49999999999999999998,   0.16666666666666680948,
                                  0.041666666666666676865,  0.0083333333333194903177, 0.0013888888888879003084,
                                  0.00019841269890340665299, 0.000024801587336630946966, 2.7557240604663895823e-6,
                                  2.7557263077309411451e-7, 2.5110153646928931396e-8, 2.0918212319133978201e-9};
  static constexpr double kLog2High = 0x1.62e42feep-1, kLog2Low = 1.9082149292705877e-10;
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr double kMax = 1.7976931348623157e308;
};

// exp(-v / scale) = 2^n e^f with n the integer next to u / log(2), u = -v / scale, f = u - n log(2). 1 for v = 0,
// NaN for NaN, 0 for infinity and wherever the result would be below the smallest normal number.
template <class R>
class Exponential {
  using S = Series<R>;
  using I = typename Simd<R>::I;

 public:
  explicit Exponential(double scale) {
    const double factor = 1 / scale < S::kMax ? 1 / scale : S::kMax;
    const double bound = S::kBias * 0.6931471805599453 / factor;
    factor_ = static_cast<R>(-factor);
    bound_ = static_cast<R>(bound < S::kMax ? bound : S::kMax);
  }

  INLINE Vec<R> operator()(Vec<R> distance) const { return normal(at_most<R>(distance, splat<R>(bound_))); }

  // The same where the result is known to be a normal number.
  INLINE Vec<R> normal(Vec<R> distance) const {
    // Adding `magic` leaves n + bias in the low bits of the sum: n needs no conversion to an integer.
    constexpr R magic = static_cast<R>(int64_t{3} << (S::kMantissa - 1)) + S::kBias;
    constexpr int last = sizeof(S::kQ) / sizeof(R) - 1;
    const Vec<R> u = in_register<R>(distance * factor_);
    const Vec<R> shifted = u * R(1.4426950408889634) + magic, n = shifted - magic;
    const Vec<R> f = (u - n * S::kLog2High) - n * S::kLog2Low;
    Vec<R> q = f * S::kQ[last] + S::kQ[last - 1];
    for (int k = last - 2; k >= 0; --k) q = q * f + S::kQ[k];
    // A product, not an integer sum, so that NaN stays NaN.
    return (q * f + R(1)) * (Vec<R>)((I)shifted << S::kMantissa);
  }

 private:
  R factor_, bound_;
};

}  // namespace
}  // namespace laplacianformer
