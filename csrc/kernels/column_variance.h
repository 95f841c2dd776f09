// The variance of each column over the rows of several matrices, and its gradient, in one pass over memory each.
#pragma once

#include <cstdint>

#include "kernels/convert.h"

namespace laplacianformer {
namespace {

// Of `rows` rows, column by column: the mean, and the sum of squared differences from it. The null pointer names the
// stored type.
template <class T>
void column_moments(T*, const void* data, int64_t stride, int64_t rows, int64_t width, void* mean, void* squares) {
  using R = Accumulation<T>;
  R* __restrict m = static_cast<R*>(mean), * __restrict s = static_cast<R*>(squares);
  const T* first = static_cast<const T*>(data);  // Differences from the first row: a common offset costs no precision.
  for (int64_t j = 0; j < width; ++j) m[j] = s[j] = 0;
  for (int64_t i = 1; i < rows; ++i) {
    const T* x = first + i * stride;
    for (int64_t j = 0; j < width; ++j) m[j] += widen(x[j]) - widen(first[j]);
  }
  for (int64_t j = 0; j < width; ++j) m[j] /= static_cast<R>(rows);
  for (int64_t i = 0; i < rows; ++i) {
    const T* x = first + i * stride;
    for (int64_t j = 0; j < width; ++j) {
      const R difference = widen(x[j]) - widen(first[j]) - m[j];
      s[j] += difference * difference;
    }
  }
  for (int64_t j = 0; j < width; ++j) m[j] += widen(first[j]);
}

// out = factor (data - mean), column by column.
template <class T>
void scaled_differences(T*, const void* data, int64_t stride, int64_t rows, int64_t width, const void* mean,
                        const void* factor, void* out) {
  using R = Accumulation<T>;
  const R *m = static_cast<const R*>(mean), *f = static_cast<const R*>(factor);
  for (int64_t i = 0; i < rows; ++i) {
    const T* x = static_cast<const T*>(data) + i * stride;
    T* __restrict to = static_cast<T*>(out) + i * width;
    for (int64_t j = 0; j < width; ++j) narrow(f[j] * (widen(x[j]) - m[j]), to[j]);
  }
}

}  // namespace
}  // namespace laplacianformer
