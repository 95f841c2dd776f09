// Rows that are picked from a matrix into a dense one, rotated, and back.
#pragma once

#include <cstdint>

#include "kernels/convert.h"
#include "kernels/rotate.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// The null pointer names the stored type.
template <class T>
void gather(T*, const PickedRows& picked, const void* from, int64_t stride, float* to) {
  const int64_t half = picked.width / 2;
  const float* cosines = static_cast<const float*>(picked.rotation.cosines);
  const float* sines = static_cast<const float*>(picked.rotation.sines);
  for (int64_t i = 0; i < picked.count; ++i, to += picked.width) {
    const T* row = static_cast<const T*>(from) + picked.index[i] * stride;
    if constexpr (sizeof(T) <= sizeof(float)) {
      if (cosines) {
        rotate_row(row, cosines + picked.index[i] * half, sines + picked.index[i] * half, 1.0f, half, to);
        continue;
      }
    }
    for (int64_t k = 0; k < picked.width; ++k) to[k] = static_cast<float>(widen(row[k]));
  }
}

void scatter(const PickedRows& picked, const float* from, float* to, int64_t stride) {
  const int64_t half = picked.width / 2;
  const float* cosines = static_cast<const float*>(picked.rotation.cosines);
  const float* sines = static_cast<const float*>(picked.rotation.sines);
  for (int64_t i = 0; i < picked.count; ++i, from += picked.width) {
    float* row = to + picked.index[i] * stride;
    if (cosines) {
      rotate_row(from, cosines + picked.index[i] * half, sines + picked.index[i] * half, -1.0f, half, row);
    } else {
      for (int64_t k = 0; k < picked.width; ++k) row[k] = from[k];
    }
  }
}

}  // namespace
}  // namespace laplacianformer
