// One item after the other: a range of long rows of one matrix. What the kernel, its products and their gradients
// share: blocks of long rows, chunks of short rows, reading either, and their kernel.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/buffers.h"
#include "kernels/convert.h"
#include "kernels/exponential.h"
#include "kernels/pairs.h"
#include "kernels/panel.h"
#include "kernels/prefetch.h"
#include "kernels/rotate.h"
#include "kernels/row_sums.h"
#include "kernels/simd.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

template <class R>
INLINE void clear(R* data, int64_t count) {
  for (int64_t k = 0; k < count; ++k) data[k] = 0;
}

template <class T>
struct Item {
  using R = Accumulation<T>;
  // float64 is for exactness: it always takes the first form of the distance.
  static constexpr bool kUsesRowSums = sizeof(R) == 4;

  const PairTask& task;
  const int64_t wide, values;  // The padded widths of features and values.
  int64_t item, matrix, begin, end;
  R *short_sums, *short_value_sums;
  Buffers<R> buffers;
  int64_t shorts_of = -1;   // The matrix whose short rows the buffers hold.
  bool new_shorts = false;  // Whether those of this chunk were just copied.
  Exponential<R> exponential;
  // For the second form of the distance: whether either side allows it, and the bound on its rows.
  bool longs_within = false, shorts_within = false;
  bool shorts_spread = false;  // Whether the buffer of spread short rows holds those of this chunk: see sign_sums.h.
  const R bound;
  Prefetcher prefetcher;

  Item(const PairTask& t, void* scratch)
      : task(t),
        wide(padded<R>(t.width)),
        values(padded<R>(t.value_width)),
        buffers(t, scratch),
        exponential(t.scale),
        bound(row_sums_bound<R>(t.scale)) {}

  Item& go_to(int64_t i) {
    item = i;
    matrix = i / task.splits;
    begin = i % task.splits * task.split_rows;
    end = smaller(begin + task.split_rows, task.longs_of(matrix));
    short_sums = static_cast<R*>(task.short_sums) + i * task.shorts * wide;
    short_value_sums = static_cast<R*>(task.short_value_sums) + i * task.shorts * values;
    return *this;
  }

  // Calls f(row, lanes) for each block of long rows.
  template <class F>
  INLINE void blocks(F f) {
    for (int64_t row = begin; row < end; row += kBlock) f(row, smaller(kBlock, end - row));
  }

  // Calls f(s, count) for each chunk of short rows, and once if there are none: sums begin with the first chunk. A
  // single chunk is copied only once for consecutive items of a matrix.
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

  // Rotates row `row` of the long features, or their gradient back.
  template <class From, class To>
  INLINE void rotate_long(int64_t row, const From* from, R direction, To* to) {
    const int64_t half = task.width / 2;
    rotate_row(from, static_cast<const R*>(task.rotation.cosines) + row * half,
               static_cast<const R*>(task.rotation.sines) + row * half, direction, half, to);
  }

  // Of a number of the short side and of kernel matrices.
  int64_t short_bytes() const { return task.short_type == task.type ? sizeof(T) : sizeof(float); }

  // Whether the long features and their gradient are used where they are stored, and not in buffers.
  bool rows_in_place() const { return sizeof(T) == sizeof(R) && !task.rotation.cosines && wide == task.width; }

  // The long features of a block: rotated, in the accumulation type, and padded with zeros to whole vectors.
  Stored<R, R> read_rows(int64_t row, int64_t lanes) {
    if (rows_in_place()) return {row_of<const R>(task.longs_in, matrix, row), task.longs_in.stride};
    for (int64_t l = 0; l < lanes; ++l) {
      const T* from = row_of<const T>(task.longs_in, matrix, row + l);
      R* to = buffers.rows + l * wide;
      if (task.rotation.cosines) {
        rotate_long(row + l, from, R(1), to);
      } else {
        widen_row(from, task.width, to);
      }
      clear(to + task.width, wide - task.width);
    }
    return {buffers.rows, wide};
  }

  void pack_longs(int64_t row, int64_t lanes) {
    if (task.rotation.cosines) return pack<R>(read_rows(row, lanes), lanes, task.width, buffers.longs);
    const Stored<R, T> rows{row_of<const T>(task.longs_in, matrix, row), task.longs_in.stride};
    pack<R>(rows, lanes, task.width, buffers.longs);
  }

  void copy_long_values(int64_t row, int64_t lanes) {
    copy_rows<R>(row_of<const T>(task.long_values, matrix, row), task.long_values.stride, lanes, task.value_width,
                 buffers.long_rows, values);
  }

  // The kernel of a block and a chunk, into `weights`. The sums of long rows are taken with the first chunk of a block,
  // those of short rows when these were just copied.
  void kernel(int64_t lanes, int64_t s, int64_t count) {
    const ShortRows<R> shorts{buffers.shorts, wide, count};
    if constexpr (kUsesRowSums) {
      if (s == 0) longs_within = half_row_sums<R>(buffers.longs, lanes, task.width, bound, buffers.long_half_sums);
      if (new_shorts) {
        pack<R>(Stored<R, R>{buffers.shorts, wide}, count, task.width, buffers.short_panel);
        shorts_within = half_row_sums<R>(buffers.short_panel, count, task.width, bound, buffers.short_half_sums);
      }
      if (longs_within && shorts_within)
        return kernel_panel<R>(buffers.longs, lanes, shorts, {buffers.long_half_sums, buffers.short_half_sums},
                               task.width, exponential, buffers.weights, prefetcher);
    }
    kernel_panel<R>(buffers.longs, lanes, shorts, task.width, exponential, buffers.weights, prefetcher);
  }

 private:
  void copy_shorts(const Rows& rows, int64_t s, int64_t count, int64_t width, R* to, int64_t stride) {
    if (task.short_type == task.type) {
      copy_rows<R>(row_of<const T>(rows, matrix, s), rows.stride, count, width, to, stride);
    } else {
      copy_rows<R>(row_of<const float>(rows, matrix, s), rows.stride, count, width, to, stride);
    }
  }
};

}  // namespace
}  // namespace laplacianformer
