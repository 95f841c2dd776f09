// The table of one instruction set. A level file includes the headers below that are not the kernels', sets the target
// and LAPLACIANFORMER_VECTOR_BYTES, includes this, and defines its Level.
//
// Everything is in an unnamed namespace and no function of the standard library is called: the linker must not merge
// code for one instruction set with that for another. Functions of levels/tasks.h are compiled for the baseline,
// because level files include it before they set the target.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/column_variance.h"
#include "kernels/convert.h"
#include "kernels/fold.h"
#include "kernels/gather.h"
#include "kernels/gelu.h"
#include "kernels/inverse.h"
#include "kernels/item.h"
#include "kernels/laplacian_kernel.h"
#include "kernels/laplacian_matmul.h"
#include "kernels/peak.h"
#include "kernels/pool.h"
#include "kernels/rotate.h"
#include "kernels/simd.h"
#include "kernels/stored_kernel.h"
#include "levels/level.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// Calls f with a null pointer to the stored type.
template <class F>
INLINE void with_type(Type type, F f) {
  switch (type) {
    case Type::float32:
      return f(static_cast<float*>(nullptr));
    case Type::float64:
      return f(static_cast<double*>(nullptr));
    case Type::bfloat16:
      return f(static_cast<BFloat16*>(nullptr));
    case Type::float16:
      return f(static_cast<Float16*>(nullptr));
  }
}

int64_t table_pad(Type type, int64_t width) {
  return type == Type::float64 ? padded<double>(width) : padded<float>(width);
}

size_t table_pair_bytes(const PairTask& task) {
  return task.type == Type::float64 ? Buffers<double>(task, nullptr).bytes : Buffers<float>(task, nullptr).bytes;
}

// Calls f(item) for items first to last - 1, in order. The null pointer names the stored type.
template <class T, class F>
INLINE void each_item(T*, const PairTask& task, int64_t first, int64_t last, void* scratch, F f) {
  Item<T> item(task, scratch);
  for (int64_t i = first; i < last; ++i) f(item.go_to(i));
}

void table_kernel_forward(const PairTask& task, int64_t first, int64_t last, void* scratch) {
  with_type(task.type,
            [&](auto* type) { each_item(type, task, first, last, scratch, [](auto& item) { kernel_forward(item); }); });
}

void table_kernel_backward(const PairTask& task, int64_t first, int64_t last, void* scratch) {
  with_type(task.type, [&](auto* type) {
    each_item(type, task, first, last, scratch, [](auto& item) { kernel_backward(item); });
  });
}

void table_matmul_forward(const PairTask& task, int64_t first, int64_t last, void* scratch) {
  with_type(task.type,
            [&](auto* type) { each_item(type, task, first, last, scratch, [](auto& item) { matmul_forward(item); }); });
}

void table_matmul_backward(const PairTask& task, int64_t first, int64_t last, void* scratch) {
  with_type(task.type, [&](auto* type) {
    each_item(type, task, first, last, scratch, [](auto& item) { matmul_backward(item); });
  });
}

template <class F>
INLINE void each_item_up_to_32_bits(const PairTask& task, int64_t first, int64_t last, void* scratch, F f) {
  with_type(task.type, [&](auto* type) {
    if constexpr (sizeof(*type) <= sizeof(float)) each_item(type, task, first, last, scratch, f);
  });
}

void table_stored_forward(const PairTask& task, int64_t first, int64_t last, void* scratch) {
  each_item_up_to_32_bits(task, first, last, scratch, [](auto& item) { stored_forward(item); });
}

void table_stored_transposed(const PairTask& task, int64_t first, int64_t last, void* scratch) {
  each_item_up_to_32_bits(task, first, last, scratch, [](auto& item) { stored_transposed(item); });
}

void table_stored_backward(const PairTask& task, int64_t first, int64_t last, void* scratch) {
  each_item_up_to_32_bits(task, first, last, scratch, [](auto& item) { stored_backward(item); });
}

template <class T>
void add_rows(T* out, const void* rows, int64_t stride, int64_t count, int64_t width) {
  using R = Accumulation<T>;
  for (int64_t k = 0; k < width; k += kWidth<R>) {
    const R* from = static_cast<const R*>(rows) + k;
    Vec<R> total = splat<R>(0);
    for (int64_t i = 0; i < count; ++i) total += load(from + i * stride);
    store_part<R>(out + k, total, width - k);
  }
}

void table_add_rows(Type type, const void* rows, int64_t stride, int64_t count, int64_t width, void* out) {
  with_type(type, [&](auto* t) { add_rows(static_cast<decltype(t)>(out), rows, stride, count, width); });
}

template <class T>
Inverter<T> inverter_of(T*, const InverseTask& task, void* scratch) {
  return Inverter<T>(task, scratch);
}

size_t table_inverse_bytes(const InverseTask& task) {
  size_t bytes = 0;
  with_type(task.type, [&](auto* type) { bytes = inverter_of(type, task, nullptr).bytes(); });
  return bytes;
}

void table_inverse(const InverseTask& task, int64_t matrix, void* scratch) {
  with_type(task.type, [&](auto* type) {
    auto inverter = inverter_of(type, task, scratch);
    task.grad.data ? inverter.backward(matrix) : inverter.forward(matrix);
  });
}

size_t table_folding_bytes(const Folding& folding) { return Folder(folding, nullptr).bytes(); }

void table_fold(const Folding& folding, void* scratch) { Folder(folding, scratch).forward(); }

void table_fold_backward(const Folding& folding, const FoldingGradients& grads, void* scratch) {
  Folder(folding, scratch).backward(grads);
}

void table_pool(Type type, const void* tokens, int64_t stride, const Grid& grid, const Box& box, int64_t landmark,
                int64_t width, float* out) {
  with_type(type, [&](auto* t) {
    const auto* first = static_cast<const decltype(t)>(const_cast<void*>(tokens));
    box.mask ? pool<true>(first, stride, grid, box, landmark, width, out)
             : pool<false>(first, stride, grid, box, landmark, width, out);
  });
}

void table_gather(Type type, const PickedRows& picked, const void* from, int64_t stride, float* to) {
  with_type(type, [&](auto* t) { gather(t, picked, from, stride, to); });
}

void table_column_moments(Type type, const void* data, int64_t stride, int64_t rows, int64_t width, void* mean,
                          void* squares) {
  with_type(type, [&](auto* t) { column_moments(t, data, stride, rows, width, mean, squares); });
}

void table_scaled_differences(Type type, const void* data, int64_t stride, int64_t rows, int64_t width,
                              const void* mean, const void* factor, void* out) {
  with_type(type, [&](auto* t) { scaled_differences(t, data, stride, rows, width, mean, factor, out); });
}

void table_rotate(const RotateTask& task, int64_t begin, int64_t end) {
  with_type(task.type, [&](auto* t) { rotate(t, task, begin, end); });
}

void table_gelu(const GeluTask& task, int64_t begin, int64_t end) {
  with_type(task.type, [&](auto* t) {
    if constexpr (sizeof(*t) <= sizeof(float)) gelu(t, task, begin, end);
  });
}

// Evaluated by the compiler, so that the tables are there before any code runs.
constexpr Level make_level() {
  Level level{};
  level.pad = table_pad;
  level.pair_bytes = table_pair_bytes;
  level.kernel_forward = table_kernel_forward;
  level.kernel_backward = table_kernel_backward;
  level.matmul_forward = table_matmul_forward;
  level.matmul_backward = table_matmul_backward;
  level.stored_forward = table_stored_forward;
  level.stored_transposed = table_stored_transposed;
  level.stored_backward = table_stored_backward;
  level.add_rows = table_add_rows;
  level.inverse_bytes = table_inverse_bytes;
  level.inverse = table_inverse;
  level.folding_bytes = table_folding_bytes;
  level.fold = table_fold;
  level.fold_backward = table_fold_backward;
  level.pool = table_pool;
  level.pool_backward = pool_backward;
  level.gather = table_gather;
  level.scatter = scatter;
  level.column_moments = table_column_moments;
  level.scaled_differences = table_scaled_differences;
  level.rotate = table_rotate;
  level.gelu = table_gelu;
  level.peak = peak;
  return level;
}

}  // namespace
}  // namespace laplacianformer
