// The kernel matrix of an item, and its gradient.
#pragma once

#include <cstdint>

#include "kernels/convert.h"
#include "kernels/item.h"
#include "kernels/item_gradient.h"
#include "kernels/item_prefetch.h"
#include "kernels/pairs.h"
#include "kernels/panel.h"
#include "kernels/sign_sums.h"

namespace laplacianformer {
namespace {

// `To`: the type of the kernel matrix.
template <class To, class T>
inline void write_kernel_in(Item<T>& item, int64_t row, int64_t lanes, int64_t s, int64_t count) {
  using R = Accumulation<T>;
  const Rows& kernel = item.task.kernel;
  if (item.task.long_is_row) {
    unpack<R>(item.buffers.weights, lanes, count, row_of<To>(kernel, item.matrix, row) + s, kernel.stride);
  } else {
    copy_out<R>(item.buffers.weights, lanes, count, row_of<To>(kernel, item.matrix, s) + row, kernel.stride);
  }
}

template <class T>
inline void write_kernel(Item<T>& item, int64_t row, int64_t lanes, int64_t s, int64_t count) {
  if (item.task.short_type == item.task.type) {
    write_kernel_in<T>(item, row, lanes, s, count);
  } else {
    write_kernel_in<Accumulation<T>>(item, row, lanes, s, count);
  }
}

template <class T>
inline void kernel_forward(Item<T>& item) {
  item.blocks([&](int64_t row, int64_t lanes) {
    item.pack_longs(row, lanes);
    item.chunks([&](int64_t s, int64_t count) {
      const int64_t steps = pair_steps<Accumulation<T>>(lanes, count);
      const Block block{item.matrix, row, lanes};
      item.prefetcher.clear();
      if (s == 0) prefetch<false>(item, item.task.longs_in, block_after(item, block), 0, item.task.width, steps);
      prefetch_kernel<true>(item, item.task.kernel, block, s, count, steps);
      item.kernel(lanes, s, count);
      write_kernel(item, row, lanes, s, count);
    });
  });
}

// The gradient of the distances of a block and a chunk, from the stored kernel and its gradient.
template <class T>
inline Weights<Accumulation<T>> read_weights(Item<T>& item, int64_t row, int64_t lanes, int64_t s, int64_t count) {
  using R = Accumulation<T>;
  const PairTask& task = item.task;
  R* weights = item.buffers.weights;
  const int64_t i = task.long_is_row ? row : s, j = task.long_is_row ? s : row;
  const auto stored = [&](const Rows& rows) {
    return Stored<R, T>{row_of<const T>(rows, item.matrix, i) + j, rows.stride};
  };
  const StoredProduct<R, T> from{stored(task.kernel), stored(task.kernel_grad), sign_factor(item)};
  if (!task.long_is_row) {
    copy_in<R>(from, lanes, count, weights);
    return panel_weights(weights, count);
  }
  if (task.kernel.stride == count && task.kernel_grad.stride == count) {
    from.copy(lanes * count, weights);
  } else {
    for (int64_t l = 0; l < lanes; ++l) from.at(l, 0).copy(count, weights + l * count);
  }
  return {weights, kLanes<R> * count, count, 1};
}

template <class T>
inline void kernel_backward(Item<T>& item) {
  const PairTask& task = item.task;
  begin_gradient(item);
  item.blocks([&](int64_t row, int64_t lanes) {
    const auto rows = item.read_rows(row, lanes);
    item.chunks([&](int64_t s, int64_t count) {
      const auto weights = read_weights(item, row, lanes, s, count);
      const int64_t steps = sign_steps<Accumulation<T>>(lanes, item.wide);
      const Block block{item.matrix, row, lanes};
      item.prefetcher.clear();
      if (s == 0) {
        prefetch<false>(item, task.longs_in, block_after(item, block), 0, task.width, steps);
        prefetch<true>(item, task.long_out, block, 0, task.width, steps);
      }
      prefetch_next_kernel(item, task.kernel, block, s, steps);
      prefetch_next_kernel(item, task.kernel_grad, block, s, steps);
      add_gradient(item, rows, row, lanes, s, count, weights);
    });
    write_gradient<T>(item, row, lanes);
  });
}

}  // namespace
}  // namespace laplacianformer
