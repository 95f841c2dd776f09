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

// The scratch memory of an item. With a null base, only its size.
template <class R>
struct Buffers {
  R *longs, *d_longs, *turned, *long_values, *weights, *products, *long_rows, *shorts, *short_rows, *start, *outputs;
  R *long_totals, *short_totals;
  size_t bytes = 0;

  INLINE Buffers(const Task& task, void* base) {
    const int64_t values = padded<R>(task.value_width);
    longs = take(base, panel_size<R>(task.width));
    d_longs = take(base, panel_size<R>(task.width));
    turned = take(base, task.cosines ? kBlock * task.width : 0);
    long_values = take(base, panel_size<R>(task.value_width));
    weights = take(base, panel_size<R>(kChunk));
    products = take(base, panel_size<R>(kChunk));
    long_rows = take(base, kBlock * values);
    shorts = take(base, kChunk * task.width);
    short_rows = take(base, kChunk * values);
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

// One item: where it lies and its scratch memory. Methods are the steps that the four functions share.
template <class T>
struct Item {
  using R = typename Accumulator<T>::type;
  const Task& task;
  const int64_t item, matrix, begin, end, values;
  R *short_sums, *short_value_sums;
  Buffers<R> buffers;
  Exponential<R> exponential;
  // For the second form of the distance: whether it may be used, and the bound for the rows of either side.
  bool longs_within = false, shorts_within = false;
  const R bound;
  Ahead ahead;

  Item(const Task& t, int64_t i, void* scratch)
      : task(t), item(i), matrix(i / t.splits), begin(i % t.splits * t.split_rows),
        end(smaller(begin + t.split_rows, t.longs)), values(padded<R>(t.value_width)),
        short_sums(static_cast<R*>(t.short_sums) + i * t.shorts * t.width),
        short_value_sums(static_cast<R*>(t.short_value_sums) + i * t.shorts * values), buffers(t, scratch),
        exponential(t.scale), bound(static_cast<R>(t.scale * (kTotalsBound / 2))) {}

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

  void pack_longs(int64_t row, int64_t lanes) {
    if (!task.cosines)
      return pack<R>(stored(task.longs_in, row, 0), lanes, task.width, buffers.longs);
    for (int64_t l = 0; l < lanes; ++l)
      turn_row(row + l, row_of<const T>(task.longs_in, matrix, row + l), R(1), buffers.turned + l * task.width);
    pack<R>(Stored<R, R>{buffers.turned, task.width}, lanes, task.width, buffers.longs);
  }

  // Calls f(row, lanes) for each block of long rows, with their features packed.
  template <class F>
  INLINE void blocks(F f) {
    for (int64_t row = begin; row < end; row += kBlock) {
      const int64_t lanes = smaller(kBlock, end - row);
      pack_longs(row, lanes);
      f(row, lanes);
    }
  }

  // Calls f(s, count) for each chunk of short rows, and once if there are none: sums begin with the first chunk. A
  // single chunk is copied for the first block only.
  template <class F>
  INLINE void chunks(int64_t row, F f) {
    for (int64_t s = 0; s < task.shorts || s == 0; s += kChunk) {
      const int64_t count = smaller(kChunk, task.shorts - s);
      if (row == begin || task.shorts > kChunk) {
        copy_rows<R>(row_of<const T>(task.shorts_in, matrix, s), task.shorts_in.stride, count, task.width,
                     buffers.shorts, task.width);
        if (task.short_values.data)
          copy_rows<R>(row_of<const T>(task.short_values, matrix, s), task.short_values.stride, count,
                       task.value_width, buffers.short_rows, values);
      }
      f(s, count);
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

  // The kernel of a block and a chunk. Totals are of the block if this is its first chunk, of the chunk if just read.
  void kernel(int64_t row, int64_t lanes, int64_t s, int64_t count) {
    if constexpr (kTotals) {
      if (s == 0) longs_within = panel_totals<R>(buffers.longs, lanes, task.width, bound, buffers.long_totals);
      if (row == begin || task.shorts > kChunk)
        shorts_within = row_totals<R>(buffers.shorts, count, task.width, bound, buffers.short_totals);
      if (longs_within && shorts_within)
        return kernel_panel<R>(buffers.longs, buffers.long_totals, lanes, buffers.shorts, buffers.short_totals, count,
                               task.width, exponential, buffers.weights, ahead);
    }
    kernel_panel<R>(buffers.longs, lanes, buffers.shorts, count, task.width, exponential, buffers.weights, ahead);
  }

  // What the gradient of the kernel is multiplied with, beside the kernel, to be that of the distances by signs.h.
  R sign_factor() const { return static_cast<R>(-1 / task.scale) / kSignUnit<R>; }

  // The gradient of the distances of a block and a chunk into `weights`, from the stored kernel and its gradient.
  void read_weights(int64_t row, int64_t lanes, int64_t s, int64_t count) {
    const int64_t i = task.long_is_row ? row : s, j = task.long_is_row ? s : row;
    const StoredProduct<R, T> from{stored(task.kernel, i, j), stored(task.kernel_grad, i, j), sign_factor()};
    if (task.long_is_row) {
      pack<R>(from, lanes, count, buffers.weights);
    } else {
      copy_in<R>(from, lanes, count, buffers.weights);
    }
  }

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
  void differentiate(int64_t lanes, int64_t s, int64_t count) {
    signs<R>(buffers.longs, lanes, task.width, buffers.weights, count, buffers.shorts, buffers.d_longs,
             short_sums + s * task.width, ahead);
  }

  void write_gradient(int64_t row, int64_t lanes) {
    if (!task.cosines)
      return unpack<R>(buffers.d_longs, lanes, task.width, row_of<T>(task.long_out, matrix, row), task.long_out.stride);
    unpack<R>(buffers.d_longs, lanes, task.width, buffers.turned, task.width);
    for (int64_t l = 0; l < lanes; ++l)
      turn_row(row + l, buffers.turned + l * task.width, R(-1), row_of<T>(task.long_out, matrix, row + l));
  }

  void kernel_forward() {
    blocks([&](int64_t row, int64_t lanes) {
      chunks(row, [&](int64_t s, int64_t count) {
        const int64_t steps = pair_steps<R>(lanes, count);
        const Place block{matrix, row, lanes};
        ahead.clear();
        if (s == 0) soon<false>(task.longs_in, after(block), 0, task.width, steps);
        kernel_soon<true>(task.kernel, block, s, count, steps);
        kernel(row, lanes, s, count);
        write_kernel(row, lanes, s, count);
      });
    });
  }

  void kernel_backward() {
    clear(short_sums, task.shorts * task.width);
    blocks([&](int64_t row, int64_t lanes) {
      clear(buffers.d_longs, panel_size<R>(task.width));
      chunks(row, [&](int64_t s, int64_t count) {
        read_weights(row, lanes, s, count);
        const int64_t steps = signs_steps<R>(count, task.width);
        const Place block{matrix, row, lanes};
        ahead.clear();
        if (s == 0) {
          soon<false>(task.longs_in, after(block), 0, task.width, steps);
          soon<true>(task.long_out, block, 0, task.width, steps);
        }
        read_next_kernel(task.kernel, block, s, steps);
        read_next_kernel(task.kernel_grad, block, s, steps);
        differentiate(lanes, s, count);
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
      if (!task.long_value_out.data) copy_long_values(row, lanes);
      chunks(row, [&](int64_t s, int64_t count) {
        if (s == 0) look_ahead(row, lanes, count);
        kernel(row, lanes, s, count);
        multiply(row, lanes, s, count);
      });
      if (task.long_value_out.data) write_outputs(row, lanes);
    });
  }

  void matmul_backward() {
    clear(short_sums, task.shorts * task.width);
    begin_sums();
    blocks([&](int64_t row, int64_t lanes) {
      clear(buffers.d_longs, panel_size<R>(task.width));
      copy_long_values(row, lanes);
      pack<R>(Stored<R, R>{buffers.long_rows, values}, lanes, task.value_width, buffers.long_values);
      chunks(row, [&](int64_t s, int64_t count) {
        if (s == 0) look_ahead(row, lanes, count);
        kernel(row, lanes, s, count);
        multiply(row, lanes, s, count);
        multiply_weights(lanes, count);
        differentiate(lanes, s, count);
      });
      if (task.long_value_out.data) write_outputs(row, lanes);
      write_gradient(row, lanes);
    });
  }
};

}  // namespace
}  // namespace laplacianformer
