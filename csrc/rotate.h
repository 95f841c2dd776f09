// Turns pairs of channels: (a, b) -> (a cos - b sin, a sin + b cos), in one pass over memory.
#pragma once

namespace laplacianformer {
namespace {

template <class T>
void rotate_typed(T*, const Rows& x, const void* cosines, const void* sines, int64_t rows, int64_t half,
                  int64_t begin, int64_t end, void* out) {
  using R = typename Accumulator<T>::type;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t matrix = row / rows, place = row % rows;
    const T* from = static_cast<const T*>(x.data) + x.offsets[matrix] + place * x.stride;
    const R* cosine = static_cast<const R*>(cosines) + place * half;
    const R* sine = static_cast<const R*>(sines) + place * half;
    T* __restrict to = static_cast<T*>(out) + row * 2 * half;
    for (int64_t k = 0; k < half; ++k) {
      const R a = widen(from[k]), b = widen(from[half + k]);
      narrow(a * cosine[k] - b * sine[k], to[k]);
      narrow(a * sine[k] + b * cosine[k], to[half + k]);
    }
  }
}

}  // namespace
}  // namespace laplacianformer
