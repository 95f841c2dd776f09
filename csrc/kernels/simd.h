// Vectors of one instruction set, on the vector extensions of GCC and Clang; intrinsics only where they pay off.
// A level file sets LAPLACIANFORMER_VECTOR_BYTES (16, 32 or 64) and the target before it includes this.
#pragma once

// For tools that compile one header by itself.
#if !defined(LAPLACIANFORMER_VECTOR_BYTES)
#define LAPLACIANFORMER_VECTOR_BYTES 16
#endif

#if LAPLACIANFORMER_VECTOR_BYTES > 16
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/basics.h"

namespace laplacianformer {
namespace {

constexpr int kVectorBytes = LAPLACIANFORMER_VECTOR_BYTES;

template <class R>
struct Simd;

template <>
struct Simd<float> {
  typedef float V __attribute__((vector_size(kVectorBytes)));
  typedef int32_t I __attribute__((vector_size(kVectorBytes)));
  typedef uint32_t U __attribute__((vector_size(kVectorBytes)));
  static constexpr int32_t kSign = INT32_MIN, kOne = 0x3f800000;
};

template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(kVectorBytes)));
  typedef int64_t I __attribute__((vector_size(kVectorBytes)));
  typedef uint64_t U __attribute__((vector_size(kVectorBytes)));
  static constexpr int64_t kSign = INT64_MIN, kOne = 0x3ff0000000000000;
};

template <class R>
using Vec = typename Simd<R>::V;

template <class R>
constexpr int kWidth = kVectorBytes / sizeof(R);

// Rows of the long side are processed in subtiles of two vectors: enough to hide latencies, few enough that their
// accumulators stay in registers.
template <class R>
constexpr int kLanes = 2 * kWidth<R>;

template <class R>
INLINE Vec<R> load(const R* from) {
  Vec<R> v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class R>
INLINE void store(R* to, Vec<R> v) {
  __builtin_memcpy(to, &v, sizeof v);
}

template <class R, size_t... L>
INLINE Vec<R> splat(R s, std::index_sequence<L...>) {
  return Vec<R>{((void)L, s)...};
}

template <class R>
INLINE Vec<R> splat(R s) {
  return splat<R>(s, std::make_index_sequence<kWidth<R>>());
}

// As many numbers of 16 bits as a vector has floats.
typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));

// Halves to 32 bits each, with zeros above.
INLINE Simd<float>::U extended(Halves v) {
  using U = Simd<float>::U;
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  return (U)_mm512_maskz_cvtepu16_epi32(-1, (__m256i)v);
#elif LAPLACIANFORMER_VECTOR_BYTES == 32
  return (U)_mm256_cvtepu16_epi32((__m128i)v);
#else
  return __builtin_convertvector(v, U);
#endif
}

// The lower halves of 32 bits each.
INLINE Halves lower_halves(Simd<float>::U v) {
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  return (Halves)_mm512_maskz_cvtepi32_epi16(-1, (__m512i)v);
#else
  return __builtin_convertvector(v, Halves);
#endif
}

// Loads v once, even if it is used twice: compilers tend to read memory operands again.
template <class R>
INLINE Vec<R> in_register(Vec<R> v) {
#if LAPLACIANFORMER_VECTOR_BYTES >= 32
  __asm__("" : "+v"(v));
#endif
  return v;
}

template <class R>
INLINE Vec<R> absolute(Vec<R> v) {
#if defined(__aarch64__)
  // So that |x - y| becomes one instruction, which compilers don't make of an operation on bits.
  if constexpr (sizeof(R) == 4) {
    return (Vec<R>)vabsq_f32((float32x4_t)v);
  } else {
    return (Vec<R>)vabsq_f64((float64x2_t)v);
  }
#else
  using I = typename Simd<R>::I;
  return (Vec<R>)((I)v & ~Simd<R>::kSign);
#endif
}

// The larger of the two. Neither is NaN.
template <class R>
INLINE Vec<R> larger(Vec<R> a, Vec<R> b) {
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  if constexpr (sizeof(R) == 4) return (Vec<R>)_mm512_maskz_max_ps(-1, (__m512)a, (__m512)b);
#elif LAPLACIANFORMER_VECTOR_BYTES == 32
  if constexpr (sizeof(R) == 4) return (Vec<R>)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__aarch64__)
  if constexpr (sizeof(R) == 4) return (Vec<R>)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#endif
  return a < b ? b : a;
}

// The larger of each lane and a number. Neither is NaN.
template <class R>
INLINE Vec<R> larger_than(Vec<R> a, const R& number) {
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  // The instruction broadcasts the number as it loads it. Compilers broadcast into a register first, which on Zen 4
  // occupies the units that compute maxima.
  if constexpr (sizeof(R) == 4) {
    __asm__("vmaxps %2%{1to16%}, %1, %0" : "=v"(a) : "v"(a), "m"(number));
    return a;
  }
#endif
  return larger<R>(a, splat<R>(number));
}

// What rounding took from t * t, which is `square`: their difference, exactly.
template <class R>
INLINE Vec<R> square_rest(Vec<R> t, Vec<R> square) {
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  if constexpr (sizeof(R) == 4) return (Vec<R>)_mm512_fmsub_ps((__m512)t, (__m512)t, (__m512)square);
#elif LAPLACIANFORMER_VECTOR_BYTES == 32
  if constexpr (sizeof(R) == 4) return (Vec<R>)_mm256_fmsub_ps((__m256)t, (__m256)t, (__m256)square);
#endif
  static_assert(sizeof(R) == 4);
  // Products of two parts of 12 bits are exact.
  const Vec<R> high = (Vec<R>)((typename Simd<R>::I)t & ~0xfff), low = t - high;
  return ((high * high - square) + (high + high) * low) + low * low;
}

// The size of the table that one instruction looks numbers up in; 1 where there is no such instruction.
template <class R>
constexpr int kTable = (LAPLACIANFORMER_VECTOR_BYTES >= 32 && sizeof(R) == 4) ? kWidth<R> : 1;

// table[index modulo kTable], lane by lane.
template <class R>
INLINE typename Simd<R>::I lookup(typename Simd<R>::I table, [[maybe_unused]] typename Simd<R>::I index) {
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  if constexpr (sizeof(R) == 4)
    return (typename Simd<R>::I)_mm512_maskz_permutexvar_epi32(-1, (__m512i)index, (__m512i)table);
#elif LAPLACIANFORMER_VECTOR_BYTES == 32
  if constexpr (sizeof(R) == 4) return (typename Simd<R>::I)_mm256_permutevar8x32_epi32((__m256i)table, (__m256i)index);
#endif
  return table;
}

// table[index modulo 16], lane by lane.
INLINE Vec<float> lookup16(const float* table, Simd<float>::I index) {
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  return (Vec<float>)_mm512_maskz_permutexvar_ps(-1, (__m512i)index, (__m512)load(table));
#elif LAPLACIANFORMER_VECTOR_BYTES == 32
  const __m256 low = _mm256_permutevar8x32_ps((__m256)load(table), (__m256i)index);
  const __m256 high = _mm256_permutevar8x32_ps((__m256)load(table + 8), (__m256i)index);
  return (Vec<float>)_mm256_blendv_ps(low, high, (__m256)(index << 28));  // By the first bit of each lane.
#else
  Vec<float> found{};
  for (int lane = 0; lane < kWidth<float>; ++lane) found[lane] = table[index[lane] & 15];
  return found;
#endif
}

// sign() returns 0 or +-kSignUnit.
template <class R>
constexpr R kSignUnit = (LAPLACIANFORMER_VECTOR_BYTES == 32 && sizeof(R) == 4) ? R(2) : R(1);

// kSignUnit * sign(x - y), with sign(0) = 0; the sign of NaN is undefined.
template <class R>
INLINE Vec<R> sign(Vec<R> x, Vec<R> y) {
  using I = typename Simd<R>::I;
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  // One instruction maps classes of numbers to constants: zero to 0, negative to -1, positive to 1.
  if constexpr (sizeof(R) == 4)
    return (Vec<R>)_mm512_fixupimm_ps((__m512)x, (__m512)(x - y), _mm512_set1_epi32(0xA9A9A822), 0);
#elif LAPLACIANFORMER_VECTOR_BYTES == 32
  // 0x40000000 is 2.0f, and its negative as an integer, 0xc0000000, is -2.0f.
  if constexpr (sizeof(R) == 4) return (Vec<R>)_mm256_sign_epi32(_mm256_set1_epi32(0x40000000), (__m256i)(x - y));
#endif
  return (Vec<R>)((I)(x > y) & Simd<R>::kOne) - (Vec<R>)((I)(x < y) & Simd<R>::kOne);
}

// Where sign_apart() is faster than sign().
template <class R>
constexpr bool kHasSignApart = LAPLACIANFORMER_VECTOR_BYTES == 64 && sizeof(R) == 4;

// sign(x - y) of numbers that are equal, or else differ by at least 1.
template <class R>
INLINE Vec<R> sign_apart(Vec<R> x, Vec<R> y) {
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  // Of x - y and 1 the one with the smaller absolute value, with the sign of x - y. On Zen 4 this runs on the units
  // that add, beside the multiply-adds of the sums; the instruction in sign() runs on theirs.
  if constexpr (sizeof(R) == 4) return (Vec<R>)_mm512_maskz_range_ps(-1, (__m512)(x - y), (__m512)splat<R>(1), 2);
#endif
  return sign<R>(x, y);
}

// A number of memory in all lanes, of a register.
template <class R>
INLINE Vec<R> load_splat(const R* from) {
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  // The instruction for integers: on Zen 4, that for floats occupies a unit that computes.
  if constexpr (sizeof(R) == 4) {
    Vec<R> v;
    __asm__("vpbroadcastd %1, %0" : "=v"(v) : "m"(*from));
    return v;
  }
#endif
  return splat<R>(*from);
}

// Whether any lane of the result of a comparison is true.
template <class R>
INLINE bool any(typename Simd<R>::I lanes) {
#if LAPLACIANFORMER_VECTOR_BYTES == 64
  if constexpr (sizeof(R) == 4) return _mm512_movepi32_mask((__m512i)lanes) != 0;
#endif
  bool found = false;
  for (int i = 0; i < kWidth<R>; ++i) found |= lanes[i] != 0;
  return found;
}

template <int H, class R, size_t... L>
INLINE void exchange(Vec<R>& a, Vec<R>& b, std::index_sequence<L...>) {
  constexpr int w = kWidth<R>;
#ifdef __clang__
  const Vec<R> low = __builtin_shufflevector(a, b, ((L & H) ? w + L - H : L)...);
  const Vec<R> high = __builtin_shufflevector(a, b, ((L & H) ? w + L : L + H)...);
#else
  using I = typename Simd<R>::I;
  const Vec<R> low = __builtin_shuffle(a, b, I{((L & H) ? w + L - H : L)...});
  const Vec<R> high = __builtin_shuffle(a, b, I{((L & H) ? w + L : L + H)...});
#endif
  a = low;
  b = high;
}

template <int H, class R>
INLINE void transpose_from(Vec<R>* rows) {
  // Otherwise the compiler merges the shuffles with each other or with loads, into code that moves single numbers.
  for (int i = 0; i < kWidth<R>; ++i) rows[i] = in_register<R>(rows[i]);
  if constexpr (H < kWidth<R>) {
    for (int i = 0; i < kWidth<R>; ++i)
      if (!(i & H)) exchange<H, R>(rows[i], rows[i + H], std::make_index_sequence<kWidth<R>>());
    transpose_from<2 * H, R>(rows);
  }
}

// Transposes a square block in place: swaps the off-diagonal halves of each 2 x 2, 4 x 4, ... block.
template <class R>
INLINE void transpose(Vec<R>* rows) {
  transpose_from<1, R>(rows);
}

}  // namespace
}  // namespace laplacianformer
