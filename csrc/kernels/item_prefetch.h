// What an item prefetches while it computes: the memory that the next block reads, and that this one writes.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/buffers.h"
#include "kernels/item.h"
#include "kernels/panel.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// `lanes` rows of some matrix, from `row` on.
struct Block {
  int64_t matrix, row, lanes;
};

// After the last block of an item, the first of the next item: usually the same thread takes it. No lanes if there is
// none.
template <class T>
inline Block block_after(const Item<T>& item, const Block& block) {
  const PairTask& task = item.task;
  const bool last = block.row + kBlock >= item.end;
  const int64_t next = item.item + last, start = next % task.splits * task.split_rows;
  if (next == task.items()) return {};
  const int64_t row = last ? start : block.row + kBlock;
  const int64_t end = smaller(start + task.split_rows, task.longs_of(next / task.splits));
  return {next / task.splits, row, smaller(kBlock, end - row)};
}

// Some columns of the rows of a block; `bytes`: of a number.
template <bool Write, class T>
inline void prefetch(Item<T>& item, const Rows& rows, const Block& block, int64_t column, int64_t columns,
                     int64_t steps, int64_t bytes = sizeof(T)) {
  if (!rows.data || block.lanes <= 0 || columns <= 0) return;
  const int64_t first = rows.offsets[block.matrix] + block.row * rows.stride + column;
  item.prefetcher.template add<Write>(static_cast<const char*>(rows.data) + first * bytes, rows.stride * bytes,
                                      columns * bytes, block.lanes, steps);
}

// The same for `count` short rows, from `s` on, of a kernel matrix.
template <bool Write, class T>
inline void prefetch_kernel(Item<T>& item, const Rows& rows, const Block& block, int64_t s, int64_t count,
                            int64_t steps) {
  if (item.task.long_is_row) {
    prefetch<Write>(item, rows, block, s, count, steps, item.short_bytes());
  } else {
    prefetch<Write>(item, rows, {block.matrix, s, count}, block.row, block.lanes, steps, item.short_bytes());
  }
}

// The chunk of a kernel matrix that is read after the one at `s`.
template <class T>
inline void prefetch_next_kernel(Item<T>& item, const Rows& rows, const Block& block, int64_t s, int64_t steps) {
  const int64_t shorts = item.task.shorts, next = s + kChunk;
  if (next < shorts) return prefetch_kernel<false>(item, rows, block, next, smaller(kChunk, shorts - next), steps);
  prefetch_kernel<false>(item, rows, block_after(item, block), 0, smaller(kChunk, shorts), steps);
}

}  // namespace
}  // namespace laplacianformer
