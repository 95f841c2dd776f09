// GELU, x Phi(x) with Phi the distribution function of the normal distribution, and its derivative, Phi(x) + x phi(x).
//
// With t = |x|, Phi(-t) = exp(-t^2 / 2) m(t), where m falls from 1/2 like 1 / t: a polynomial on each of 16 intervals.
// The relative error is a few roundings everywhere, also where Phi is tiny. It is 0 where exp(-t^2 / 2) is below the
// smallest normal number, t > 13.2.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/convert.h"
#include "kernels/exponential.h"
#include "kernels/normal_table.h"
#include "kernels/panel.h"
#include "kernels/simd.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// Intervals of t: four of equal length between each two powers of 2 of t + 1, up to t = 15. Their number is found in
// the bits of t + 1: the last two of the exponent and the first two of the mantissa.
constexpr int kMillsShift = 21, kMillsDegree = 6;

// The coefficients of the powers of (t - centre of the interval), by number of the interval: relative error below 5e-9.
alignas(64) constexpr float kMills[kMillsDegree + 1][16] = {
    {0.230760321f, 0.185231665f, 0.153651937f, 0.130724734f, 0.106345154f, 0.0848033921f, 0.070342694f, 0.0600156753f,
     0.0491225462f, 0.0395066941f, 0.0330189711f, 0.0283526605f, 0.453793222f, 0.379604428f, 0.323356169f, 0.27977057f},
    {-0.110491883f, -0.0747868688f, -0.0532254218f, -0.0394492619f, -0.0267342474f, -0.017327017f, -0.0120574636f,
     -0.00884039078f, -0.00596191232f, -0.00387533971f, -0.00271462756f, -0.00200503304f, -0.342218129f, -0.256590621f,
     -0.196844675f, -0.154143032f},
    {0.0463227353f, 0.0271773233f, 0.0169473698f, 0.0111196323f, 0.00638765231f, 0.00341591032f, 0.00201332307f,
     0.001276568f, 0.000713630435f, 0.000376650137f, 0.000221720695f, 0.000141099135f, 0.205507977f, 0.141691472f,
     0.100164123f, 0.0724477088f},
    {-0.0175288847f, -0.00907530833f, -0.00503120089f, -0.00295672552f, -0.0014590011f, -0.000651770508f,
     -0.000328051913f, -0.000180896191f, -8.42765098e-05f, -3.6276877e-05f, -1.7992419e-05f, -9.88151773e-06f,
     -0.105509298f, -0.067818472f, -0.0447472055f, -0.0302503408f},
    {0.00610265907f, 0.00282376628f, 0.0014067369f, 0.000747132691f, 0.000320132195f, 0.00012069024f, 5.22439641e-05f,
     2.51797948e-05f, 9.82737345e-06f, 3.46375667e-06f, 1.45092198e-06f, 6.88758058e-07f, 0.048079825f, 0.0290648535f,
     0.0180492472f, 0.0114946395f},
    {-0.00199944651f, -0.000833448735f, -0.000375738396f, -0.000181451325f, -6.89383302e-05f, -2.20238774e-05f,
     -8.22466824e-06f, -3.47271089e-06f, -1.15772058e-06f, -3.3299629e-07f, -1.17576348e-07f, -4.81830472e-08f,
     -0.0199741221f, -0.0114223636f, -0.00671384993f, -0.00404977862f},
    {0.000608753559f, 0.000230892282f, 9.50074228e-05f, 4.20235997e-05f, 1.40672918e-05f, 3.85921151e-06f,
     1.25492378e-06f, 4.67287098e-07f, 1.31604001e-07f, 3.1245728e-08f, 9.36291186e-09f, 3.32676849e-09f,
     0.00761468232f, 0.00414108147f, 0.00231552111f, 0.00132930562f},
};

// m(t) for t < 15.
INLINE Vec<float> mills(Vec<float> t) {
  using I = Simd<float>::I;
  const I bits = (I)(t + 1), centre = (bits & -(1 << kMillsShift)) | (1 << (kMillsShift - 1));
  const I interval = bits >> kMillsShift;
  const Vec<float> y = t - ((Vec<float>)centre - 1);
  Vec<float> sum = lookup16(kMills[kMillsDegree], interval);
  for (int k = kMillsDegree - 1; k >= 0; --k) sum = sum * y + lookup16(kMills[k], interval);
  return sum;
}

class Normal {
  using V = Vec<float>;

 public:
  V distribution, slope;  // Phi(x), and Phi(x) + x phi(x).

  // `half` computes exp(-v / 2).
  INLINE Normal(V x, const Exponential<float>& half) {
    const V size = absolute<float>(x), most = splat<float>(14), t = size < most ? size : most;
    const V square = t * t;
    const V exponential = half(square, square_rest<float>(t, square));
    const V beyond = exponential * mills(t);
    distribution = x > splat<float>(0) ? 1 - beyond : beyond;
    slope = distribution + x * (exponential * 0.398942280401432678f);
  }
};

// The pointers of a task, typed.
template <class T>
struct GeluRows {
  const T *x, *bias, *grad;
  T *out, *activated;

  explicit GeluRows(const GeluTask& task)
      : x(static_cast<const T*>(task.x)),
        bias(static_cast<const T*>(task.bias)),
        grad(static_cast<const T*>(task.grad)),
        out(static_cast<T*>(task.out)),
        activated(static_cast<T*>(task.activated)) {}

  // `n` numbers from number i on, column k of their row: at most one vector.
  INLINE Vec<float> read(int64_t i, int64_t k, int64_t n) const {
    const Vec<float> v = load_part<float>(x + i, n);
    return bias ? v + load_part<float>(bias + k, n) : v;
  }

  template <bool Gradient, class N>
  INLINE void write(int64_t i, int64_t n, Vec<float> v, const N& normal) const {
    if constexpr (Gradient) {
      const Vec<float> slope = load_part<float>(grad + i, n) * normal.slope;
      if (activated) store_part<float>(activated + i, v * normal.distribution, n);
      store_part<float>(out + i, slope, n);
    } else {
      store_part<float>(out + i, v * normal.distribution, n);
    }
  }

#if LAPLACIANFORMER_VECTOR_BYTES == 64
  // Vectors. The conversions of half precision leave time for a second one.
  static constexpr int kAtOnce = kHalf<T> ? 2 : 1;

  static INLINE auto tabulated(Vec<float> v) {
    if constexpr (kBFloat16<T>) {
      return TabulatedNormal(kRoughPhi, v);
    } else {
      return TabulatedNormal(kPhi, v);
    }
  }

  // Most numbers of most models are in the table; vectors with others are computed in both ways. Lane by lane the bits
  // are the same, whatever is beside them.
  template <bool Gradient>
  __attribute__((noinline)) void write_small(int64_t i, int64_t n, Vec<float> v) const {
    const auto below = v < splat(kLeastX);
    Normal normal(v, Exponential<float>(2));
    const auto others = tabulated(v);
    normal.distribution = below ? normal.distribution : others.distribution;
    normal.slope = below ? normal.slope : others.slope;
    write<Gradient>(i, n, v, normal);
  }

  template <bool Gradient, int Vectors>
  INLINE void step(int64_t i, int64_t k, int64_t n, const Exponential<float>&) const {
    Vec<float> v[Vectors];
    __mmask16 small = 0;
    for (int j = 0; j < Vectors; ++j) {
      v[j] = read(i + j * kWidth<float>, k + j * kWidth<float>, n);
      small |= _mm512_cmp_ps_mask((__m512)v[j], _mm512_set1_ps(kLeastX), _CMP_LT_OQ);
    }
    for (int j = 0; j < Vectors; ++j) {
      if (__builtin_expect(small != 0, 0)) {
        write_small<Gradient>(i + j * kWidth<float>, n, v[j]);
      } else {
        write<Gradient>(i + j * kWidth<float>, n, v[j], tabulated(v[j]));
      }
    }
  }
#else
  static constexpr int kAtOnce = 1;

  template <bool Gradient, int Vectors>
  INLINE void step(int64_t i, int64_t k, int64_t n, const Exponential<float>& half) const {
    const Vec<float> v = read(i, k, n);
    write<Gradient>(i, n, v, Normal(v, half));
  }
#endif

  // Less than a vector. A function of its own: inlined, it would take the registers of the constants from the loop.
  template <bool Gradient>
  __attribute__((noinline)) void last(int64_t i, int64_t k, int64_t n) const {
    step<Gradient, 1>(i, k, n, Exponential<float>(2));
  }

  template <bool Gradient>
  INLINE void rows(int64_t begin, int64_t end, int64_t length) const {
    constexpr int64_t w = kWidth<float>;
    const Exponential<float> half(2);
    for (int64_t row = begin; row < end; row += length) {
      int64_t k = 0;
      if constexpr (kAtOnce > 1)
        for (; k + kAtOnce * w <= length; k += kAtOnce * w) step<Gradient, kAtOnce>(row + k, k, w, half);
      for (; k + w <= length; k += w) step<Gradient, 1>(row + k, k, w, half);
      if (k < length) last<Gradient>(row + k, k, length - k);
    }
  }
};

// Numbers begin to end - 1, whole rows if there is a bias. The null pointer names the stored type.
template <class T>
void gelu(T*, const GeluTask& task, int64_t begin, int64_t end) {
  const GeluRows<T> given(task);
  const int64_t length = task.bias ? task.width : end - begin;
  task.grad ? given.template rows<true>(begin, end, length) : given.template rows<false>(begin, end, length);
}

}  // namespace
}  // namespace laplacianformer
