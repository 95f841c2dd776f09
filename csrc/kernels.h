// The four functions, an item at a time: one range of long rows of one matrix, block by block.
#pragma once

namespace laplacianformer {
namespace {

// Short rows at a time, so that the panels of a block stay in the cache for any number of them.
constexpr int64_t kChunk = 64;

template <class T>
INLINE T* row_of(const Rows& rows, int64_t matrix, int64_t row) {
  return static_cast<T*>(rows.data) + rows.offsets[matrix] + row * rows.stride;
}

template <class R>
INLINE int64_t padded(int64_t width) {
  return vectors<R>(width) * kWidth<R>;
}

// The scratch memory of a thread. With a null base, only its size.
template <class R>
struct Buffers {
  R *longs, *rows, *d_rows, *zeros, *long_values, *weights, *products, *long_rows, *shorts, *d_shorts, *short_panel;
  R *short_rows, *short_columns, *start, *outputs, *long_totals, *short_totals;
  size_t bytes = 0;

  INLINE Buffers(const Task& task, void* base) {
    const int64_t wide = padded<R>(task.width), values = padded<R>(task.value_width);
    longs = take(base, panel_size<R>(task.width));
    rows = take(base, kBlock * wide);
    d_rows = take(base, kBlock * wide);
    zeros = take(base, wide > kChunk ? wide : kChunk);
    long_values = take(base, panel_size<R>(task.value_width));
    weights = take(base, panel_size<R>(kChunk));
    products = take(base, panel_size<R>(kChunk));
    long_rows = take(base, kBlock * values);
    shorts = take(base, kChunk * wide);
    d_shorts = take(base, kChunk * wide);
    short_panel = take(base, panel_size<R>(task.width));
    short_rows = take(base, kChunk * values);
    short_columns = take(base, kChunk * values);
    start = take(base, values);
    outputs = take(base, kBlock * values);
    long_totals = take(base, kBlock);
    short_totals = take(base, kChunk);
  }

  INLINE R* take(void* base, int64_t count) {
    R* place = reinterpret_cast<R*>(static_cast<char*>(base) + bytes);
    bytes += (count * sizeof(R) + 63) / 64 * 64;
    return place;
  }
};

// One item after the other: where it lies, and the scratch memory. Methods are the steps that the four functions share.
template <class T>
struct Item {
  using R = typename Accumulator<T>::type;
  const Task& task;
  const int64_t wide, values;
  int64_t item, matrix, begin, end;
  R *short_sums, *short_value_sums;
  Buffers<R> buffers;
  int64_t shorts_of = -1;   // The matrix whose short rows the buffers hold.
  bool new_shorts = false;  // Whether those of this chunk were just copied.
  Exponential<R> exponential;
  // For the second form of the distance: whether it may be used, and the bound for the rows of either side.
  bool longs_within = false, shorts_within = false;
  const R bound;
  Ahead ahead;

  Item(const Task& t, void* scratch)
      : task(t), wide(padded<R>(t.width)), values(padded<R>(t.value_width)), buffers(t, scratch),
        exponential(t.scale), bound(static_cast<R>(t.scale * (kTotalsBound / 2))) {}

  Item& go_to(int64_t i) {
    item = i;
    matrix = i / task.splits;
    begin = i % task.splits * task.split_rows;
    end = smaller(begin + task.split_rows, task.longs);
    short_sums = static_cast<R*>(task.short_sums) + i * task.shorts * wide;
    short_value_sums = static_cast<R*>(task.short_value_sums) + i * task.shorts * values;
    return *this;
  }

  static void clear(R* data, int64_t count) {
    for (int64_t k = 0; k < count; ++k) data[k] = 0;
  }

  Stored<R, T> stored(const Rows& rows, int64_t row, int64_t column) {
    return {row_of<const T>(rows, matrix, row) + column, rows.stride};
  }

  // Turns row `row` of the long features, or their gradient back.
  template <class From, class To>
  INLINE void turn_row(int64_t row, const From* from, R direction, To* to) {
    const int64_t half = task.width / 2;
    turn(from, static_cast<const R*>(task.cosines) + row * half, static_cast<const R*>(task.sines) + row * half,
         direction, half, to);
  }

  // Whether rows of the long features and of their gradient are used where they are stored, and not in buffers.
  bool rows_in_place() const { return sizeof(T) == sizeof(R) && !task.cosines && wide == task.width; }

  // The long features of a block: turned, in the numbers that accumulate, and with zeros up to whole vectors.
  Stored<R, R> read_rows(int64_t row, int64_t lanes) {
    if (rows_in_place()) return {row_of<const R>(task.longs_in, matrix, row), task.longs_in.stride};
    for (int64_t l = 0; l < lanes; ++l) {
      const T* from = row_of<const T>(task.longs_in, matrix, row + l);
      R* to = buffers.rows + l * wide;
      if (task.cosines) {
        turn_row(row + l, from, R(1), to);
      } else {
        widen_row(from, task.width, to);
      }
      clear(to + task.width, wide - task.width);
    }
    return {buffers.rows, wide};
  }

  void pack_longs(int64_t row, int64_t lanes) {
    if (task.cosines) return pack<R>(read_rows(row, lanes), lanes, task.width, buffers.longs);
    pack<R>(stored(task.longs_in, row, 0), lanes, task.width, buffers.longs);
  }

  // Calls f(row, lanes) for each block of long rows.
  template <class F>
  INLINE void blocks(F f) {
    for (int64_t row = begin; row < end; row += kBlock) f(row, smaller(kBlock, end - row));
  }

  // Calls f(s, count) for each chunk of short rows, and once if there are none: sums begin with the first chunk. A
  // single chunk is copied once for the items of a matrix that follow each other.
  template <class F>
  INLINE void chunks(F f) {
    for (int64_t s = 0; s < task.shorts || s == 0; s += kChunk) {
      const int64_t count = smaller(kChunk, task.shorts - s);
      new_shorts = shorts_of != matrix || task.shorts > kChunk;
      if (new_shorts) {
        copy_shorts(task.shorts_in, s, count, task.width, buffers.shorts, wide);
        if (task.short_values.data)
          copy_shorts(task.short_values, s, count, task.value_width, buffers.short_rows, values);
        shorts_of = matrix;
      }
      f(s, count);
    }
  }

  void copy_shorts(const Rows& rows, int64_t s, int64_t count, int64_t width, R* to, int64_t padded) {
    if (task.short_type == task.type) {
      copy_rows<R>(row_of<const T>(rows, matrix, s), rows.stride, count, width, to, padded);
    } else {
      copy_rows<R>(row_of<const float>(rows, matrix, s), rows.stride, count, width, to, padded);
    }
  }

  // The block that starts at `row`, of some matrix.
  struct Place {
    int64_t matrix, row, lanes;
  };

  // After the last block, the first of the next item: most often the same thread takes it. No lanes if there is none.
  Place after(const Place& block) const {
    const bool last = block.row + kBlock >= end;
    const int64_t next = item + last, start = next % task.splits * task.split_rows;
    if (next == task.items()) return {};
    const int64_t row = last ? start : block.row + kBlock;
    return {next / task.splits, row, smaller(kBlock, smaller(start + task.split_rows, task.longs) - row)};
  }

  // Asks for some columns of rows that are read or written soon.
  template <bool Write>
  void soon(const Rows& rows, const Place& place, int64_t column, int64_t columns, int64_t steps) {
    if (rows.data && place.lanes > 0 && columns > 0)
      ahead.add<Write>(row_of<const T>(rows, place.matrix, place.row) + column, rows.stride * sizeof(T),
                       columns * sizeof(T), place.lanes, steps);
  }

  // The same for a chunk of a kernel matrix.
  template <bool Write>
  void kernel_soon(const Rows& rows, const Place& place, int64_t s, int64_t count, int64_t steps) {
    if (task.long_is_row) {
      soon<Write>(rows, place, s, count, steps);
    } else {
      soon<Write>(rows, {place.matrix, s, count}, place.row, place.lanes, steps);
    }
  }

  // The chunk after this one.
  void read_next_kernel(const Rows& rows, const Place& block, int64_t s, int64_t steps) {
    const int64_t next = s + kChunk;
    if (next < task.shorts) return kernel_soon<false>(rows, block, next, smaller(kChunk, task.shorts - next), steps);
    kernel_soon<false>(rows, after(block), 0, smaller(kChunk, task.shorts), steps);
  }

  void copy_long_values(int64_t row, int64_t lanes) {
    copy_rows<R>(row_of<const T>(task.long_values, matrix, row), task.long_values.stride, lanes, task.value_width,
                 buffers.long_rows, values);
  }

  // float64 is for exactness: it always takes the first form of the distance.
  static constexpr bool kTotals = sizeof(R) == 4;

  // The kernel of a block and a chunk. Totals are of the block if this is its first chunk, of the chunk if just copied.
  void kernel(int64_t lanes, int64_t s, int64_t count) {
    if constexpr (kTotals) {
      if (s == 0) longs_within = panel_totals<R>(buffers.longs, lanes, task.width, bound, buffers.long_totals);
      if (new_shorts) {
        pack<R>(Stored<R, R>{buffers.shorts, wide}, count, task.width, buffers.short_panel);
        shorts_within = panel_totals<R>(buffers.short_panel, count, task.width, bound, buffers.short_totals);
      }
      if (longs_within && shorts_within)
        return kernel_panel<R>(buffers.longs, buffers.long_totals, lanes, buffers.shorts, wide, buffers.short_totals,
                               count, task.width, exponential, buffers.weights, ahead);
    }
    kernel_panel<R>(buffers.longs, lanes, buffers.shorts, wide, count, task.width, exponential, buffers.weights, ahead);
  }

  // What the gradient of the kernel is multiplied with, beside the kernel, to be that of the distances by signs.h.
  R sign_factor() const { return static_cast<R>(-1 / task.scale) / kSignUnit<R>; }

  // The gradient of the distances of a block and a chunk, from the stored kernel and its gradient.
  Weights<R> read_weights(int64_t row, int64_t lanes, int64_t s, int64_t count) {
    const int64_t i = task.long_is_row ? row : s, j = task.long_is_row ? s : row;
    const StoredProduct<R, T> from{stored(task.kernel, i, j), stored(task.kernel_grad, i, j), sign_factor()};
    if (!task.long_is_row) {
      copy_in<R>(from, lanes, count, buffers.weights);
      return panel_weights(count);
    }
    if (task.kernel.stride == count && task.kernel_grad.stride == count) {
      from.copy(lanes * count, buffers.weights);
    } else {
      for (int64_t l = 0; l < lanes; ++l) from.at(l, 0).copy(count, buffers.weights + l * count);
    }
    return {buffers.weights, kLanes<R> * count, count, 1};
  }

  Weights<R> panel_weights(int64_t count) const { return {buffers.weights, subtile_size<R>(count), 1, kLanes<R>}; }

  void write_kernel(int64_t row, int64_t lanes, int64_t s, int64_t count) {
    if (task.long_is_row) {
      unpack<R>(buffers.weights, lanes, count, row_of<T>(task.kernel, matrix, row) + s, task.kernel.stride);
    } else {
      copy_out<R>(buffers.weights, lanes, count, row_of<T>(task.kernel, matrix, s) + row, task.kernel.stride);
    }
  }

  // What each row of the outputs begins with.
  void set_start() {
    const R* start = task.start ? static_cast<const R*>(task.start) + matrix * task.value_width : nullptr;
    for (int64_t k = 0; k < values; ++k) buffers.start[k] = start && k < task.value_width ? start[k] : R(0);
  }

  // Whether rows of outputs are summed where they are stored, and not in a buffer.
  bool in_place() const { return sizeof(T) == sizeof(R) && values == task.value_width; }

  // The outputs of a block: sums that go on, or begin with the first chunk.
  Sums<R> outputs(int64_t row, bool first) {
    const Sums<R> sums = in_place() ? add_to(row_of<R>(task.long_value_out, matrix, row), task.long_value_out.stride)
                                    : add_to(buffers.outputs, values);
    return first ? Sums<R>{buffers.start, 0, sums.to, sums.row} : sums;
  }

  void write_outputs(int64_t row, int64_t lanes) {
    if (in_place()) return;
    for (int64_t l = 0; l < lanes; ++l)
      narrow_row(buffers.outputs + l * values, task.value_width, row_of<T>(task.long_value_out, matrix, row + l));
  }

  // The gradient of the distances into `weights`, from the kernel there and the dot products of values.
  void multiply_weights(int64_t lanes, int64_t count) {
    const R factor = sign_factor();
    R* kernel = buffers.weights;
    const auto finish = [&](R* subtile) __attribute__((always_inline)) {
      for (int64_t k = 0; k < count * kLanes<R>; k += kWidth<R>)
        store(kernel + k, load(kernel + k) * factor * load(subtile + k));
      kernel += subtile_size<R>(count);
    };
    pairs<Dot>(buffers.long_values, lanes, buffers.short_rows, values, count, task.value_width, buffers.products, ahead,
               finish);
  }

  // The gradient of the features from that of the distances.
  void differentiate(const Stored<R, R>& rows, int64_t row, int64_t lanes, int64_t s, int64_t count,
                     const Weights<R>& weights) {
    Sums<R> sums = rows_in_place() ? add_to(row_of<R>(task.long_out, matrix, row), task.long_out.stride)
                                   : add_to(buffers.d_rows, wide);
    if (s == 0) sums = {buffers.zeros, 0, sums.to, sums.row};
    clear(buffers.d_shorts, count * wide);
    signs<R>(rows, lanes, wide, weights, buffers.shorts, count, sums, buffers.d_shorts, ahead);
    R* total = short_sums + s * wide;
    for (int64_t k = 0; k < count * wide; k += kWidth<R>) store(total + k, load(total + k) - load(buffers.d_shorts + k));
  }

  void write_gradient(int64_t row, int64_t lanes) {
    if (rows_in_place()) return;
    for (int64_t l = 0; l < lanes; ++l) {
      const R* from = buffers.d_rows + l * wide;
      T* to = row_of<T>(task.long_out, matrix, row + l);
      if (task.cosines) {
        turn_row(row + l, from, R(-1), to);
      } else {
        narrow_row(from, task.width, to);
      }
    }
  }

  void begin_gradient() {
    clear(buffers.zeros, wide);
    clear(short_sums, task.shorts * wide);
  }

  void kernel_forward() {
    blocks([&](int64_t row, int64_t lanes) {
      pack_longs(row, lanes);
      chunks([&](int64_t s, int64_t count) {
        const int64_t steps = pair_steps<R>(lanes, count);
        const Place block{matrix, row, lanes};
        ahead.clear();
        if (s == 0) soon<false>(task.longs_in, after(block), 0, task.width, steps);
        kernel_soon<true>(task.kernel, block, s, count, steps);
        kernel(lanes, s, count);
        write_kernel(row, lanes, s, count);
      });
    });
  }

  void kernel_backward() {
    begin_gradient();
    blocks([&](int64_t row, int64_t lanes) {
      const Stored<R, R> rows = read_rows(row, lanes);
      chunks([&](int64_t s, int64_t count) {
        const Weights<R> weights = read_weights(row, lanes, s, count);
        const int64_t steps = signs_steps(lanes, wide);
        const Place block{matrix, row, lanes};
        ahead.clear();
        if (s == 0) {
          soon<false>(task.longs_in, after(block), 0, task.width, steps);
          soon<true>(task.long_out, block, 0, task.width, steps);
        }
        read_next_kernel(task.kernel, block, s, steps);
        read_next_kernel(task.kernel_grad, block, s, steps);
        differentiate(rows, row, lanes, s, count, weights);
      });
      write_gradient(row, lanes);
    });
  }

  // A row a long row: sum the values of the short rows. A row a short row: sum the values of the long rows.
  void multiply(int64_t row, int64_t lanes, int64_t s, int64_t count) {
    if (task.long_value_out.data) {
      product_long<R>(buffers.weights, lanes, count, buffers.short_rows, values, outputs(row, s == 0));
    } else {
      product_short<R>(buffers.weights, lanes, count, buffers.long_rows, values, short_value_sums + s * values);
    }
  }

  void begin_sums() {
    if (task.long_value_out.data) {
      set_start();
    } else {
      clear(short_value_sums, task.shorts * values);
    }
  }

  // What the next block of a product reads and this one writes.
  void look_ahead(int64_t row, int64_t lanes, int64_t count) {
    const int64_t steps = pair_steps<R>(lanes, count);
    const Place block{matrix, row, lanes}, next = after(block);
    ahead.clear();
    soon<false>(task.longs_in, next, 0, task.width, steps);
    soon<false>(task.long_values, next, 0, task.value_width, steps);
    soon<true>(task.long_out, block, 0, task.width, steps);
    soon<true>(task.long_value_out, block, 0, task.value_width, steps);
  }

  void matmul_forward() {
    begin_sums();
    blocks([&](int64_t row, int64_t lanes) {
      pack_longs(row, lanes);
      if (!task.long_value_out.data) copy_long_values(row, lanes);
      chunks([&](int64_t s, int64_t count) {
        if (s == 0) look_ahead(row, lanes, count);
        kernel(lanes, s, count);
        multiply(row, lanes, s, count);
      });
      if (task.long_value_out.data) write_outputs(row, lanes);
    });
  }

  void matmul_backward() {
    begin_gradient();
    begin_sums();
    blocks([&](int64_t row, int64_t lanes) {
      const Stored<R, R> rows = read_rows(row, lanes);
      pack<R>(rows, lanes, task.width, buffers.longs);
      copy_long_values(row, lanes);
      pack<R>(Stored<R, R>{buffers.long_rows, values}, lanes, task.value_width, buffers.long_values);
      chunks([&](int64_t s, int64_t count) {
        if (s == 0) look_ahead(row, lanes, count);
        kernel(lanes, s, count);
        multiply(row, lanes, s, count);
        multiply_weights(lanes, count);
        differentiate(rows, row, lanes, s, count, panel_weights(count));
      });
      if (task.long_value_out.data) write_outputs(row, lanes);
      write_gradient(row, lanes);
    });
  }
};

}  // namespace
}  // namespace laplacianformer
