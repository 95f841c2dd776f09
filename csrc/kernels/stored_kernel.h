// Products with a stored kernel, for training: the whitening needs the variance of the kernel's columns before the
// kernel is multiplied, and the gradient of that variance is linear in each entry of the kernel. The kernel and the
// short side are float32, with one row of the kernel per long row.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/item.h"
#include "kernels/item_gradient.h"
#include "kernels/item_outputs.h"
#include "kernels/item_prefetch.h"
#include "kernels/panel.h"
#include "kernels/product.h"
#include "kernels/sign_sums.h"
#include "kernels/simd.h"

namespace laplacianformer {
namespace {

template <class T>
inline const float* stored_row(const Item<T>& item, int64_t row, int64_t s) {
  return row_of<const float>(item.task.kernel, item.matrix, row) + s;
}

// start + kernel @ short values.
template <class T>
inline void stored_forward(Item<T>& item) {
  set_start(item);
  item.blocks([&](int64_t row, int64_t lanes) {
    item.chunks([&](int64_t s, int64_t count) {
      const Left<float> left{stored_row(item, row, s), item.task.kernel.stride, 1, count, 0};
      product(left, lanes, count, item.buffers.short_rows, item.values, outputs(item, row, s == 0));
    });
    write_outputs(item, row, lanes);
  });
}

// kernel' @ long values, and the sum of the long values.
template <class T>
inline void stored_transposed(Item<T>& item) {
  const PairTask& task = item.task;
  const int64_t values = item.values;
  const float* long_rows = item.buffers.long_rows;
  clear(item.short_value_sums, task.shorts * values);
  float* total = static_cast<float*>(task.value_totals) + item.item * values;
  clear(total, values);
  item.blocks([&](int64_t row, int64_t lanes) {
    item.copy_long_values(row, lanes);
    for (int64_t l = 0; l < lanes; ++l)
      for (int64_t k = 0; k < values; k += kWidth<float>)
        store(total + k, load(total + k) + load(long_rows + l * values + k));
    for (int64_t s = 0; s < task.shorts; s += kChunk) {
      const Left<float> left{stored_row(item, row, s), 1, task.kernel.stride, lanes, 0};
      product(left, smaller(kChunk, task.shorts - s), lanes, long_rows, values,
              add_to(item.short_value_sums + s * values, values));
    }
  });
}

// The short values of a chunk, transposed and padded with zeros to `columns` columns.
template <class T>
inline void transpose_short_values(Item<T>& item, int64_t count, int64_t columns) {
  const auto& buffers = item.buffers;
  for (int64_t k = 0; k < item.task.value_width; ++k)
    for (int64_t j = 0; j < columns; ++j)
      buffers.short_columns[k * columns + j] = j < count ? buffers.short_rows[j * item.values + k] : 0.0f;
}

// The gradient of the distances, from the products of values and the variance.
template <class T>
inline Weights<float> stored_weights(Item<T>& item, int64_t row, int64_t lanes, int64_t s, int64_t count) {
  const int64_t columns = padded<float>(count), first = item.matrix * item.task.shorts + s;
  const float factor = sign_factor(item);
  const float *slopes = item.task.slopes + first, *means = item.task.means + first;
  for (int64_t l = 0; l < lanes; ++l) {
    const float *kernel = stored_row(item, row + l, s), *products = item.buffers.products + l * columns;
    float* to = item.buffers.weights + l * columns;
    for (int64_t j = 0; j < count; j += kWidth<float>) {
      const int64_t n = count - j;
      const Vec<float> k = load_part<float>(kernel + j, n);
      const Vec<float> line = load_part<float>(slopes + j, n) * (k - load_part<float>(means + j, n));
      store(to + j, k * factor * (load(products + j) + line));
    }
  }
  return {item.buffers.weights, kLanes<float> * columns, columns, 1};
}

// The gradient of the features from that of the kernel: long values @ short values' + slope (k - mean).
template <class T>
inline void stored_backward(Item<T>& item) {
  const PairTask& task = item.task;
  const auto& buffers = item.buffers;
  begin_gradient(item);
  clear(buffers.zeros, kChunk);
  item.blocks([&](int64_t row, int64_t lanes) {
    const Stored<float, float> rows = item.read_rows(row, lanes);
    item.copy_long_values(row, lanes);
    item.chunks([&](int64_t s, int64_t count) {
      const int64_t columns = padded<float>(count), steps = sign_steps<float>(lanes, item.wide);
      if (item.new_shorts) transpose_short_values(item, count, columns);
      product(Left<float>{buffers.long_rows, item.values, 1, task.value_width, 0}, lanes, task.value_width,
              buffers.short_columns, columns, Sums<float>{buffers.zeros, 0, buffers.products, columns});
      const Weights<float> weights = stored_weights(item, row, lanes, s, count);
      const Block block{item.matrix, row, lanes};
      item.prefetcher.clear();
      if (s == 0) {
        const Block next = block_after(item, block);
        prefetch<false>(item, task.longs_in, next, 0, task.width, steps);
        prefetch<false>(item, task.long_values, next, 0, task.value_width, steps);
        prefetch<true>(item, task.long_out, block, 0, task.width, steps);
      }
      prefetch_next_kernel(item, task.kernel, block, s, steps);
      add_gradient(item, rows, row, lanes, s, count, weights);
    });
    write_gradient<T>(item, row, lanes);
  });
}

}  // namespace
}  // namespace laplacianformer
