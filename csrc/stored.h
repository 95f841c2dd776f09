// Products with a stored kernel, for training: the whitening needs the variance of its columns before it is multiplied,
// and the gradient of that variance is a straight line in each of its numbers. float32, a row of the kernel a long row.
#pragma once

namespace laplacianformer {
namespace {

struct StoredItem : Item<float> {
  using Item<float>::Item;

  const float* kernel_row(int64_t row, int64_t s) const {
    return row_of<const float>(task.kernel, matrix, row) + s;
  }

  // start + kernel @ short values.
  void forward() {
    set_start();
    blocks([&](int64_t row, int64_t lanes) {
      chunks([&](int64_t s, int64_t count) {
        const Left<float> left{kernel_row(row, s), task.kernel.stride, 1, count, 0};
        product(left, lanes, count, buffers.short_rows, values, outputs(row, s == 0));
      });
      write_outputs(row, lanes);
    });
  }

  // kernel' @ long values, and the sum of the long values.
  void transposed() {
    clear(short_value_sums, task.shorts * values);
    float* total = static_cast<float*>(task.value_totals) + item * values;
    clear(total, values);
    blocks([&](int64_t row, int64_t lanes) {
      copy_long_values(row, lanes);
      for (int64_t l = 0; l < lanes; ++l)
        for (int64_t k = 0; k < values; k += kWidth<float>)
          store(total + k, load(total + k) + load(buffers.long_rows + l * values + k));
      for (int64_t s = 0; s < task.shorts; s += kChunk) {
        const Left<float> left{kernel_row(row, s), 1, task.kernel.stride, lanes, 0};
        product(left, smaller(kChunk, task.shorts - s), lanes, buffers.long_rows, values,
                add_to(short_value_sums + s * values, values));
      }
    });
  }

  // The gradient of the features from that of the kernel: long values @ short values' + slope (k - mean).
  void backward() {
    begin_gradient();
    clear(buffers.zeros, kChunk);
    blocks([&](int64_t row, int64_t lanes) {
      const Stored<float, float> rows = read_rows(row, lanes);
      copy_long_values(row, lanes);
      chunks([&](int64_t s, int64_t count) {
        const int64_t columns = padded<float>(count), steps = signs_steps(lanes, wide);
        if (new_shorts) turn_short_values(count, columns);
        product(Left<float>{buffers.long_rows, values, 1, task.value_width, 0}, lanes, task.value_width,
                buffers.short_columns, columns, Sums<float>{buffers.zeros, 0, buffers.products, columns});
        weigh(row, lanes, s, count, columns);
        const Place block{matrix, row, lanes};
        ahead.clear();
        if (s == 0) {
          soon<false>(task.longs_in, after(block), 0, task.width, steps);
          soon<false>(task.long_values, after(block), 0, task.value_width, steps);
          soon<true>(task.long_out, block, 0, task.width, steps);
        }
        read_next_kernel(task.kernel, block, s, steps);
        differentiate(rows, row, lanes, s, count, {buffers.weights, kLanes<float> * columns, columns, 1});
      });
      write_gradient(row, lanes);
    });
  }

 private:
  // The short values of a chunk with a row a column, filled up with zeros.
  void turn_short_values(int64_t count, int64_t columns) {
    for (int64_t k = 0; k < task.value_width; ++k)
      for (int64_t j = 0; j < columns; ++j)
        buffers.short_columns[k * columns + j] = j < count ? buffers.short_rows[j * values + k] : 0.0f;
  }

  // The gradient of the distances, from the products of values.
  void weigh(int64_t row, int64_t lanes, int64_t s, int64_t count, int64_t columns) {
    const float factor = sign_factor();
    const float *slopes = task.slopes + matrix * task.shorts + s, *means = task.means + matrix * task.shorts + s;
    for (int64_t l = 0; l < lanes; ++l) {
      const float *kernel = kernel_row(row + l, s), *products = buffers.products + l * columns;
      float* to = buffers.weights + l * columns;
      for (int64_t j = 0; j < count; j += kWidth<float>) {
        const int64_t n = count - j;
        const Vec<float> k = load_part<float>(kernel + j, n);
        const Vec<float> line = load_part<float>(slopes + j, n) * (k - load_part<float>(means + j, n));
        store(to + j, k * factor * (load(products + j) + line));
      }
    }
  }
};

}  // namespace
}  // namespace laplacianformer
