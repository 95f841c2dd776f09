// Turns pairs of channels: (a, b) -> (a cos - b sin, a sin + b cos).
#pragma once

namespace laplacianformer {
namespace {

// One row of 2 * half channels. `direction` is 1, or -1 to turn back.
template <class From, class R, class To>
INLINE void turn(const From* from, const R* cosines, const R* sines, R direction, int64_t half, To* to) {
  constexpr int w = kWidth<R>;
  int64_t k = 0;
  for (; k + w <= half; k += w) {
    const Vec<R> a = load_whole<R>(from + k), b = load_whole<R>(from + half + k);
    const Vec<R> cosine = load(cosines + k), sine = load(sines + k) * direction;
    store_whole<R>(to + k, a * cosine - b * sine);
    store_whole<R>(to + half + k, a * sine + b * cosine);
  }
  for (; k < half; ++k) {
    const R a = widen(from[k]), b = widen(from[half + k]), sine = sines[k] * direction;
    narrow(a * cosines[k] - b * sine, to[k]);
    narrow(a * sine + b * cosines[k], to[half + k]);
  }
}

template <class T>
void rotate_typed(T*, const Rows& x, const void* cosines, const void* sines, int direction, int64_t rows, int64_t half,
                  int64_t begin, int64_t end, void* out) {
  using R = typename Accumulator<T>::type;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t matrix = row / rows, place = row % rows;
    const T* from = static_cast<const T*>(x.data) + x.offsets[matrix] + place * x.stride;
    turn(from, static_cast<const R*>(cosines) + place * half, static_cast<const R*>(sines) + place * half,
         static_cast<R>(direction), half, static_cast<T*>(out) + row * 2 * half);
  }
}

}  // namespace
}  // namespace laplacianformer
