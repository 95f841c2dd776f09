// The table of one instruction set. A level file includes <immintrin.h> and task.h, sets the target and
// LAPLACIANFORMER_VECTOR_BYTES, includes this, and defines its Level as LAPLACIANFORMER_LEVEL.
//
// Everything is in an unnamed namespace and no function of the standard library is used: code for one
// instruction set must not be merged with another's by the linker.
#pragma once

#include "simd.h"
// The order matters: each file builds on those before it.
#include "exponential.h"
#include "convert.h"
#include "panel.h"
#include "ahead.h"
#include "pairs.h"
#include "totals.h"
#include "product.h"
#include "signs.h"
#include "rotate.h"
#include "kernels.h"
#include "stored.h"
#include "inverse.h"
#include "pool.h"
#include "fold.h"
#include "variance.h"
#include "peak.h"

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

int64_t pad(Type type, int64_t width) { return type == Type::float64 ? padded<double>(width) : padded<float>(width); }

size_t scratch_bytes(const Task& task) {
  return task.type == Type::float64 ? Buffers<double>(task, nullptr).bytes : Buffers<float>(task, nullptr).bytes;
}

// Calls `method` of items first to last - 1, in order.
template <class T, class M>
INLINE void each_item(T*, const Task& task, int64_t first, int64_t last, void* scratch, M method) {
  Item<T> item(task, scratch);
  for (int64_t i = first; i < last; ++i) method(item.go_to(i));
}

void kernel_forward(const Task& task, int64_t first, int64_t last, void* scratch) {
  with_type(task.type, [&](auto* type) {
    each_item(type, task, first, last, scratch, [](auto& item) { item.kernel_forward(); });
  });
}

void kernel_backward(const Task& task, int64_t first, int64_t last, void* scratch) {
  with_type(task.type, [&](auto* type) {
    each_item(type, task, first, last, scratch, [](auto& item) { item.kernel_backward(); });
  });
}

void matmul_forward(const Task& task, int64_t first, int64_t last, void* scratch) {
  with_type(task.type, [&](auto* type) {
    each_item(type, task, first, last, scratch, [](auto& item) { item.matmul_forward(); });
  });
}

void matmul_backward(const Task& task, int64_t first, int64_t last, void* scratch) {
  with_type(task.type, [&](auto* type) {
    each_item(type, task, first, last, scratch, [](auto& item) { item.matmul_backward(); });
  });
}

template <class M>
INLINE void each_stored(const Task& task, int64_t first, int64_t last, void* scratch, M method) {
  StoredItem item(task, scratch);
  for (int64_t i = first; i < last; ++i) {
    item.go_to(i);
    method(item);
  }
}

void stored_forward(const Task& task, int64_t first, int64_t last, void* scratch) {
  each_stored(task, first, last, scratch, [](StoredItem& item) { item.forward(); });
}

void stored_transposed(const Task& task, int64_t first, int64_t last, void* scratch) {
  each_stored(task, first, last, scratch, [](StoredItem& item) { item.transposed(); });
}

void stored_backward(const Task& task, int64_t first, int64_t last, void* scratch) {
  each_stored(task, first, last, scratch, [](StoredItem& item) { item.backward(); });
}

void pool(Type type, const void* tokens, int64_t stride, int64_t columns, const Range& y, const Range& x, int64_t width,
          float* out) {
  with_type(type, [&](auto* t) {
    pool_typed(static_cast<decltype(t)>(const_cast<void*>(tokens)), stride, columns, y, x, width, out);
  });
}

size_t folding_bytes(const Folding& folding) { return Folder(folding, nullptr).bytes(); }

void fold(const Folding& folding, void* scratch) { Folder(folding, scratch).forward(); }

void unfold(const Folding& folding, const Unfolding& grads, void* scratch) { Folder(folding, scratch).backward(grads); }

template <class T>
void add_typed_shares(T* out, const void* sums, int64_t share, int64_t shares, int64_t width) {
  using R = typename Accumulator<T>::type;
  for (int64_t k = 0; k < width; k += kWidth<R>) {
    const R* from = static_cast<const R*>(sums) + k;
    Vec<R> total = splat<R>(0);
    for (int64_t s = 0; s < shares; ++s) total += load(from + s * share);
    store_part<R>(out + k, total, width - k);
  }
}

void add_shares(Type type, const void* sums, int64_t share, int64_t shares, int64_t width, void* out) {
  with_type(type, [&](auto* t) { add_typed_shares(static_cast<decltype(t)>(out), sums, share, shares, width); });
}

template <class T>
Inverter<T> inverter_of(T*, const Inverse& task, void* scratch) {
  return Inverter<T>(task, scratch);
}

size_t inverse_bytes(const Inverse& task) {
  size_t bytes = 0;
  with_type(task.type, [&](auto* type) { bytes = inverter_of(type, task, nullptr).bytes(); });
  return bytes;
}

void inverse(const Inverse& task, int64_t matrix, void* scratch) {
  with_type(task.type, [&](auto* type) {
    auto inverter = inverter_of(type, task, scratch);
    task.grad.data ? inverter.backward(matrix) : inverter.forward(matrix);
  });
}

void column_moments(Type type, const void* data, int64_t stride, int64_t rows, int64_t width, void* mean,
                    void* squares) {
  with_type(type, [&](auto* t) { column_moments_typed(t, data, stride, rows, width, mean, squares); });
}

void scaled_differences(Type type, const void* data, int64_t stride, int64_t rows, int64_t width, const void* mean,
                        const void* factor, void* out) {
  with_type(type, [&](auto* t) { scaled_differences_typed(t, data, stride, rows, width, mean, factor, out); });
}

void rotate(Type type, const Rows& x, const void* cosines, const void* sines, int direction, int64_t rows, int64_t half,
            int64_t begin, int64_t end, void* out) {
  with_type(type, [&](auto* t) { rotate_typed(t, x, cosines, sines, direction, rows, half, begin, end, out); });
}

}  // namespace

const Level LAPLACIANFORMER_LEVEL = {
    pad,            scratch_bytes,     kernel_forward,  kernel_backward,    matmul_forward, matmul_backward,
    stored_forward, stored_transposed, stored_backward,
    folding_bytes,  fold,              unfold,          pool,               spread,         add_shares,
    inverse_bytes,  inverse,           column_moments,  scaled_differences, peak,           rotate};

}  // namespace laplacianformer
