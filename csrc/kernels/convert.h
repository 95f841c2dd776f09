// Conversion between stored types and the types that accumulate, number by number and in whole vectors. Without
// branches, so that compilers vectorize loops, too.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/simd.h"

namespace laplacianformer {
namespace {

template <class To, class From>
INLINE To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// The type that sums of a stored type accumulate in.
template <class T>
struct Accumulator {
  using Type = float;
};

template <>
struct Accumulator<double> {
  using Type = double;
};

template <class T>
using Accumulation = typename Accumulator<T>::Type;

// What is stored in 16 bits. F and U are a float and its bits, or vectors of them: numbers and vectors are converted by
// the same formulas.
struct BFloat16 {
  uint16_t bits;

  template <class F, class U>
  static INLINE F widened(U bits) {
    return bits_of<F>(bits << 16);
  }

  template <class U, class F>
  static INLINE U narrowed(F v) {
    const U bits = bits_of<U>(v), nan = U{} + 0x7fc0;
    const U rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // To nearest, ties to even.
    return v != v ? nan : rounded;
  }
};

struct Float16 {
  uint16_t bits;

  template <class F, class U>
  static INLINE F widened(U bits) {
    const U rest = bits & 0x7fff;
    const U magnitude = bits_of<U>(bits_of<F>(rest << 13) * 0x1p112f);  // Also right for subnormal numbers.
    const U special = (rest << 13) | 0x7f800000;                        // Infinity and NaN.
    return bits_of<F>((rest >= 0x7c00 ? special : magnitude) | (bits & 0x8000) << 16);
  }

  template <class U, class F>
  static INLINE U narrowed(F v) {
    const U all = bits_of<U>(v), sign = (all >> 16) & 0x8000, bits = all & 0x7fffffff;
    const U infinity = U{} + 0x7c00, nan = U{} + 0x7e00;
    const U normal = (bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13;
    // Below 2^-14, adding 0.5 makes the machine round to multiples of 2^-24, and leaves them in the low bits.
    const U subnormal = bits_of<U>(bits_of<F>(bits) + 0.5f) - 0x3f000000;
    U result = bits < 0x38800000 ? subnormal : normal;
    result = bits >= 0x477ff000 ? infinity : result;
    result = bits > 0x7f800000 ? nan : result;
    return result | sign;
  }
};

template <class T>
constexpr bool kHalf = sizeof(T) == sizeof(uint16_t);

template <class T>
constexpr bool kBFloat16 = false;
template <>
constexpr bool kBFloat16<BFloat16> = true;

INLINE float widen(float v) { return v; }
INLINE double widen(double v) { return v; }
INLINE float widen(BFloat16 v) { return BFloat16::widened<float>(uint32_t{v.bits}); }
INLINE float widen(Float16 v) { return Float16::widened<float>(uint32_t{v.bits}); }

INLINE void narrow(float v, float& to) { to = v; }
INLINE void narrow(double v, double& to) { to = v; }
INLINE void narrow(float v, BFloat16& to) { to.bits = static_cast<uint16_t>(BFloat16::narrowed<uint32_t>(v)); }
INLINE void narrow(float v, Float16& to) { to.bits = static_cast<uint16_t>(Float16::narrowed<uint32_t>(v)); }

// A whole vector of stored numbers.
template <class R, class T>
INLINE Vec<R> load_whole(const T* from) {
  if constexpr (kHalf<T>) {
    Halves bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    return T::template widened<Vec<R>>(extended(bits));
  } else {
    R buffer[kWidth<R>];  // Compilers see through it where nothing is converted.
    for (int k = 0; k < kWidth<R>; ++k) buffer[k] = static_cast<R>(widen(from[k]));
    return load(buffer);
  }
}

template <class R, class T>
INLINE void store_whole(T* to, Vec<R> v) {
  if constexpr (kHalf<T>) {
    const Halves bits = lower_halves(T::template narrowed<Simd<float>::U>(v));
    __builtin_memcpy(to, &bits, sizeof bits);
  } else {
    store<R>(to, v);
  }
}

template <class R, class T>
INLINE void widen_row(const T* from, int64_t n, R* to) {
  for (int64_t k = 0; k < n; ++k) to[k] = widen(from[k]);
}

template <class R, class T>
INLINE void narrow_row(const R* from, int64_t n, T* to) {
  for (int64_t k = 0; k < n; ++k) narrow(from[k], to[k]);
}

}  // namespace
}  // namespace laplacianformer
