// The product of an item with one row per long row: sums that start from a given row, and go on chunk by chunk.
#pragma once

#include <cstdint>

#include "kernels/convert.h"
#include "kernels/item.h"
#include "kernels/panel.h"
#include "kernels/product.h"

namespace laplacianformer {
namespace {

// What each row of the outputs starts from.
template <class T>
inline void set_start(Item<T>& item) {
  using R = Accumulation<T>;
  const int64_t width = item.task.value_width;
  const R* start = item.task.start ? static_cast<const R*>(item.task.start) + item.matrix * width : nullptr;
  for (int64_t k = 0; k < item.values; ++k) item.buffers.start[k] = start && k < width ? start[k] : R(0);
}

// Whether the outputs are summed where they are stored, and not in a buffer.
template <class T>
inline bool outputs_in_place(const Item<T>& item) {
  return sizeof(T) == sizeof(Accumulation<T>) && item.values == item.task.value_width;
}

// The sums of a block.
template <class T>
inline Sums<Accumulation<T>> outputs(Item<T>& item, int64_t row, bool first_chunk) {
  using R = Accumulation<T>;
  const Rows& out = item.task.long_value_out;
  const Sums<R> sums = outputs_in_place(item) ? add_to(row_of<R>(out, item.matrix, row), out.stride)
                                              : add_to(item.buffers.outputs, item.values);
  return first_chunk ? Sums<R>{item.buffers.start, 0, sums.to, sums.row} : sums;
}

template <class T>
inline void write_outputs(Item<T>& item, int64_t row, int64_t lanes) {
  if (outputs_in_place(item)) return;
  for (int64_t l = 0; l < lanes; ++l)
    narrow_row(item.buffers.outputs + l * item.values, item.task.value_width,
               row_of<T>(item.task.long_value_out, item.matrix, row + l));
}

}  // namespace
}  // namespace laplacianformer
