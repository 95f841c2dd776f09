// Rotates pairs of channels: (a, b) -> (a cos - b sin, a sin + b cos).
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/convert.h"
#include "kernels/panel.h"
#include "kernels/simd.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// One row of 2 * half channels. `direction` is 1, or -1 to rotate back.
template <class From, class R, class To>
INLINE void rotate_row(const From* from, const R* cosines, const R* sines, R direction, int64_t half, To* to) {
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

// Rows begin to end - 1 of all matrices. The null pointer names the stored type.
template <class T>
void rotate(T*, const RotateTask& task, int64_t begin, int64_t end) {
  using R = Accumulation<T>;
  const int64_t rows = task.rows, half = task.half;
  const R direction = static_cast<R>(task.direction);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t matrix = i / rows, row = i % rows;
    const T* from = static_cast<const T*>(task.x.data) + task.x.offsets[matrix] + row * task.x.stride;
    const int64_t angles = (task.sharing ? matrix / task.sharing * rows + row : row) * half;
    rotate_row(from, static_cast<const R*>(task.rotation.cosines) + angles,
               static_cast<const R*>(task.rotation.sines) + angles, direction, half,
               static_cast<T*>(task.out) + i * 2 * half);
  }
}

}  // namespace
}  // namespace laplacianformer
