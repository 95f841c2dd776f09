// The gradient of the features of an item from that of its distances.
#pragma once

#include <cstdint>

#include "kernels/convert.h"
#include "kernels/exponential.h"
#include "kernels/item.h"
#include "kernels/panel.h"
#include "kernels/product.h"
#include "kernels/sign_sums.h"
#include "kernels/simd.h"

namespace laplacianformer {
namespace {

// The gradient of the kernel, times the kernel and this factor, is that of the distances for sign_sums.h.
template <class T>
inline Accumulation<T> sign_factor(const Item<T>& item) {
  using R = Accumulation<T>;
  const double inverse = 1 / item.task.scale, largest = Format<R>::kMax;
  return static_cast<R>(inverse < largest ? -inverse : -largest) / kSignUnit<R>;
}

template <class T>
inline void begin_gradient(Item<T>& item) {
  clear(item.buffers.zeros, item.wide);
  clear(item.short_sums, item.task.shorts * item.wide);
}

// A block and a chunk: `rows` are the long features, `weights` the gradient of the distances.
template <class T>
inline void add_gradient(Item<T>& item, const Stored<Accumulation<T>, Accumulation<T>>& rows, int64_t row,
                         int64_t lanes, int64_t s, int64_t count, const Weights<Accumulation<T>>& weights) {
  using R = Accumulation<T>;
  const auto& buffers = item.buffers;
  const int64_t wide = item.wide;
  Sums<R> sums = item.rows_in_place()
                     ? add_to(row_of<R>(item.task.long_out, item.matrix, row), item.task.long_out.stride)
                     : add_to(buffers.d_rows, wide);
  if (s == 0) sums = {buffers.zeros, 0, sums.to, sums.row};
  clear(buffers.d_shorts, count * wide);
  if constexpr (kHasSignApart<R>) {
    if (item.new_shorts) item.shorts_spread = spread(buffers.shorts, count * wide, buffers.spread_shorts);
  }
  const SignShorts<R> shorts{{buffers.shorts, wide, count}, item.shorts_spread ? buffers.spread_shorts : nullptr};
  sign_sums<R>(rows, lanes, weights, shorts, sums, buffers.d_shorts, item.prefetcher);
  R* total = item.short_sums + s * wide;
  for (int64_t k = 0; k < count * wide; k += kWidth<R>) store(total + k, load(total + k) - load(buffers.d_shorts + k));
}

// `To`: the type that the gradient of the long features is stored in.
template <class To, class T>
inline void write_gradient(Item<T>& item, int64_t row, int64_t lanes) {
  using R = Accumulation<T>;
  if (item.rows_in_place()) return;
  for (int64_t l = 0; l < lanes; ++l) {
    const R* from = item.buffers.d_rows + l * item.wide;
    To* to = row_of<To>(item.task.long_out, item.matrix, row + l);
    if (item.task.rotation.cosines) {
      item.rotate_long(row + l, from, R(-1), to);
    } else {
      narrow_row(from, item.task.width, to);
    }
  }
}

}  // namespace
}  // namespace laplacianformer
