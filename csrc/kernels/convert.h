// Conversion between stored types and the types that accumulate. Without branches, so that compilers vectorize loops.
#pragma once

#include <cstdint>

#include "kernels/basics.h"

namespace laplacianformer {
namespace {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

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

INLINE float widen(float v) { return v; }
INLINE double widen(double v) { return v; }
INLINE float widen(BFloat16 v) { return bits_of<float>(uint32_t{v.bits} << 16); }

INLINE float widen(Float16 v) {
  const uint32_t rest = uint32_t{v.bits} & 0x7fff;
  const float magnitude = bits_of<float>(rest << 13) * 0x1p112f;  // Also right for subnormal numbers.
  const uint32_t special = (rest << 13) | 0x7f800000;             // Infinity and NaN.
  const uint32_t bits = rest >= 0x7c00 ? special : bits_of<uint32_t>(magnitude);
  return bits_of<float>(bits | (uint32_t{v.bits} & 0x8000) << 16);
}

INLINE void narrow(float v, float& to) { to = v; }
INLINE void narrow(double v, double& to) { to = v; }

INLINE void narrow(float v, BFloat16& to) {
  const uint32_t bits = bits_of<uint32_t>(v);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // To nearest, ties to even.
  to.bits = static_cast<uint16_t>(v != v ? 0x7fc0 : rounded);
}

INLINE void narrow(float v, Float16& to) {
  const uint32_t all = bits_of<uint32_t>(v), sign = (all >> 16) & 0x8000, bits = all & 0x7fffffff;
  const uint32_t normal = (bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13;
  // Below 2^-14, adding 0.5 makes the machine round to multiples of 2^-24, and leaves them in the low bits.
  const uint32_t subnormal = bits_of<uint32_t>(bits_of<float>(bits) + 0.5f) - 0x3f000000;
  uint32_t result = bits < 0x38800000 ? subnormal : normal;
  result = bits >= 0x477ff000 ? 0x7c00 : result;
  result = bits > 0x7f800000 ? 0x7e00 : result;
  to.bits = static_cast<uint16_t>(result | sign);
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
