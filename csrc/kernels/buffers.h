// The scratch memory of one thread for the kernel, its products and their gradients.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/basics.h"
#include "kernels/panel.h"
#include "kernels/simd.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// Short rows at a time, so that the panels of a block stay in the cache however many there are.
constexpr int64_t kChunk = 64;

template <class R>
struct Buffers {
  size_t bytes = 0;
  R *longs, *rows, *d_rows, *zeros, *long_values, *weights, *products, *long_rows, *shorts, *spread_shorts;
  R *d_shorts, *short_panel, *short_rows, *short_columns, *start, *outputs, *long_half_sums, *short_half_sums;

  // With a null base, only `bytes` is meaningful.
  INLINE Buffers(const PairTask& task, void* base) {
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
    spread_shorts = take(base, kHasSignApart<R> ? kChunk * wide : 0);
    d_shorts = take(base, kChunk * wide);
    short_panel = take(base, panel_size<R>(task.width));
    short_rows = take(base, kChunk * values);
    short_columns = take(base, kChunk * values);
    start = take(base, values);
    outputs = take(base, kBlock * values);
    long_half_sums = take(base, kBlock);
    short_half_sums = take(base, kChunk);
  }

 private:
  INLINE R* take(void* base, int64_t count) {
    R* part = reinterpret_cast<R*>(static_cast<char*>(base) + bytes);
    bytes += (count * sizeof(R) + 63) / 64 * 64;
    return part;
  }
};

}  // namespace
}  // namespace laplacianformer
