// The product of an item's kernel with values, and its gradients. The kernel exists for one block and chunk at a time.
#pragma once

#include <cstdint>

#include "kernels/convert.h"
#include "kernels/item.h"
#include "kernels/item_gradient.h"
#include "kernels/item_outputs.h"
#include "kernels/item_prefetch.h"
#include "kernels/pairs.h"
#include "kernels/panel.h"
#include "kernels/product.h"
#include "kernels/sign_sums.h"
#include "kernels/simd.h"

namespace laplacianformer {
namespace {

template <class T>
inline void begin_sums(Item<T>& item) {
  if (item.task.long_value_out.data) {
    set_start(item);
  } else {
    clear(item.short_value_sums, item.task.shorts * item.values);
  }
}

// With one output per long row, sums the values of the short rows. With one per short row, those of the long rows.
template <class T>
inline void multiply(Item<T>& item, int64_t row, int64_t lanes, int64_t s, int64_t count) {
  using R = Accumulation<T>;
  const auto& buffers = item.buffers;
  if (item.task.long_value_out.data) {
    product_long<R>(buffers.weights, lanes, count, buffers.short_rows, item.values, outputs(item, row, s == 0));
  } else {
    product_short<R>(buffers.weights, lanes, count, buffers.long_rows, item.values,
                     item.short_value_sums + s * item.values);
  }
}

// What the next block of a product reads and this one writes.
template <class T>
inline void prefetch_blocks(Item<T>& item, int64_t row, int64_t lanes, int64_t count) {
  const PairTask& task = item.task;
  const int64_t steps = pair_steps<Accumulation<T>>(lanes, count);
  const Block block{item.matrix, row, lanes}, next = block_after(item, block);
  item.prefetcher.clear();
  prefetch<false>(item, task.longs_in, next, 0, task.width, steps);
  prefetch<false>(item, task.long_values, next, 0, task.value_width, steps);
  prefetch<true>(item, task.long_out, block, 0, task.width, steps, item.short_bytes());
  prefetch<true>(item, task.long_value_out, block, 0, task.value_width, steps);
}

template <class T>
inline void matmul_forward(Item<T>& item) {
  const bool by_long = item.task.long_value_out.data;
  begin_sums(item);
  item.blocks([&](int64_t row, int64_t lanes) {
    item.pack_longs(row, lanes);
    if (!by_long) item.copy_long_values(row, lanes);
    item.chunks([&](int64_t s, int64_t count) {
      if (s == 0) prefetch_blocks(item, row, lanes, count);
      item.kernel(lanes, s, count);
      multiply(item, row, lanes, s, count);
    });
    if (by_long) write_outputs(item, row, lanes);
  });
}

// The gradient of the distances into `weights`, from the kernel there and the dot products of values.
template <class T>
inline Weights<Accumulation<T>> multiply_weights(Item<T>& item, int64_t lanes, int64_t count) {
  using R = Accumulation<T>;
  const R factor = sign_factor(item);
  const auto& buffers = item.buffers;
  R* kernel = buffers.weights;
  const auto finish = [&](R* subtile) __attribute__((always_inline)) {
    for (int64_t k = 0; k < count * kLanes<R>; k += kWidth<R>)
      store(kernel + k, load(kernel + k) * factor * load(subtile + k));
    kernel += subtile_size<R>(count);
  };
  pairs<Dot>(buffers.long_values, lanes, ShortRows<R>{buffers.short_rows, item.values, count}, item.task.value_width,
             buffers.products, item.prefetcher, finish);
  return panel_weights(buffers.weights, count);
}

template <class T>
inline void matmul_backward(Item<T>& item) {
  using R = Accumulation<T>;
  const PairTask& task = item.task;
  const auto& buffers = item.buffers;
  const bool by_long = task.long_value_out.data;
  begin_gradient(item);
  begin_sums(item);
  item.blocks([&](int64_t row, int64_t lanes) {
    const Stored<R, R> rows = item.read_rows(row, lanes);
    pack<R>(rows, lanes, task.width, buffers.longs);
    item.copy_long_values(row, lanes);
    pack<R>(Stored<R, R>{buffers.long_rows, item.values}, lanes, task.value_width, buffers.long_values);
    item.chunks([&](int64_t s, int64_t count) {
      if (s == 0) prefetch_blocks(item, row, lanes, count);
      item.kernel(lanes, s, count);
      multiply(item, row, lanes, s, count);
      add_gradient(item, rows, row, lanes, s, count, multiply_weights(item, lanes, count));
    });
    if (by_long) write_outputs(item, row, lanes);
    // Where the types differ, the caller adds to the gradient before it rounds it.
    task.short_type == task.type ? write_gradient<T>(item, row, lanes) : write_gradient<R>(item, row, lanes);
  });
}

}  // namespace
}  // namespace laplacianformer
