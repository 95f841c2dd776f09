// exp(-distance / scale) on vectors.
#pragma once

namespace laplacianformer {
namespace {

// 2^f = 1 + f q(f) on |f| <= 1/2, q interpolated at Chebyshev nodes: exactly 1 at 0, relative error below
// 5e-9 (float) and 2e-19 (double), so that rounding dominates.
template <class R>
struct Power;

template <>
struct Power<float> {
  static constexpr float kQ[] = {0.69314718807117623416f,   0.2402265076095730702f,    0.055503568986270729206f,
                                 0.0096180823706166601035f, 0.0013390978248123866895f, 0.00015453262409320673153f};
  static constexpr int kMantissa = 23, kBias = 127;
  static constexpr double kMax = 3.4028234663852886e38;
};

template <>
struct Power<double> {
  static constexpr double kQ[] = {
      0.69314718055994530925,    0.24022650695910071233,   0.055504108664821627513,  0.0096181291076284795162,
      0.0013333558146406294225,  0.00015403530393370646062, 0.00001525273384178243679, 1.3215486808817260818e-6,
      1.0178056971791798953e-7,  7.0548972467672362562e-9, 4.4558384999982016132e-10, 2.5729426100386433487e-11};
  static constexpr int kMantissa = 52, kBias = 1023;
  static constexpr double kMax = 1.7976931348623157e308;
};

// exp(-v / scale) = 2^n 2^f with n the integer next to t = -v log2(e) / scale. 1 for v = 0, NaN for NaN,
// 0 for infinity and wherever the result would be below the smallest normal number.
template <class R>
class Exponential {
  using P = Power<R>;
  using I = typename Simd<R>::I;

 public:
  explicit Exponential(double scale) {
    const double factor = 1.4426950408889634 / scale;
    const double bounded = factor < P::kMax ? factor : P::kMax;
    const double bound = P::kBias / bounded;
    factor_ = static_cast<R>(-bounded);
    bound_ = static_cast<R>(bound < P::kMax ? bound : P::kMax);
  }

  INLINE Vec<R> operator()(Vec<R> distance) const {
    // Adding kMagic leaves n + bias in the low bits of the sum: n needs no conversion to an integer.
    constexpr R magic = static_cast<R>(int64_t{3} << (P::kMantissa - 1)) + P::kBias;
    constexpr int last = sizeof(P::kQ) / sizeof(R) - 1;
    const Vec<R> bounded = at_most<R>(distance, splat<R>(bound_));
    const Vec<R> shifted = bounded * factor_ + magic;
    const Vec<R> f = bounded * factor_ - (shifted - magic);
    Vec<R> q = f * P::kQ[last] + P::kQ[last - 1];
    for (int k = last - 2; k >= 0; --k) q = q * f + P::kQ[k];
    // A product, not an integer sum, so that NaN stays NaN.
    return (q * f + R(1)) * (Vec<R>)((I)shifted << P::kMantissa);
  }

 private:
  R factor_, bound_;
};

}  // namespace
}  // namespace laplacianformer
