// Panels: a block of the long side with its rows in the vector lanes, as [subtile][row][lanes], where a row of the
// panel is a feature, a value or a short row. Kernels and products are computed on panels; here they are filled and
// written back.
#pragma once

#include <cstdint>

#include "kernels/basics.h"
#include "kernels/convert.h"
#include "kernels/simd.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// Long rows of a block: its panels stay in the second-level cache, and most of them in the first.
constexpr int64_t kBlock = 128;

// An odd number of rows, so that the subtiles of one row don't fall into the same few sets of the cache.
template <class R>
INLINE int64_t subtile_size(int64_t rows) {
  return (rows | 1) * kLanes<R>;
}

template <class R>
INLINE int64_t panel_size(int64_t rows) {
  return kBlock / kLanes<R> * subtile_size<R>(rows);
}

// The offset of vector `v` of row 0.
template <class R>
INLINE int64_t vector_offset(int64_t v, int64_t rows) {
  return v / 2 * subtile_size<R>(rows) + v % 2 * kWidth<R>;
}

template <class R>
INLINE int64_t vectors(int64_t lanes) {
  return (lanes + kWidth<R> - 1) / kWidth<R>;
}

// Rounded up to whole vectors.
template <class R>
INLINE int64_t padded(int64_t width) {
  return vectors<R>(width) * kWidth<R>;
}

// At most one vector of stored numbers, with zeros if there are fewer.
template <class R, class T>
INLINE Vec<R> load_part(const T* from, int64_t n) {
  if (n >= kWidth<R>) return load_whole<R>(from);
  R buffer[kWidth<R>];
  store(buffer, splat<R>(0));
  for (int64_t k = 0; k < n; ++k) buffer[k] = widen(from[k]);
  return load(buffer);
}

template <class R, class T>
INLINE void store_part(T* to, Vec<R> v, int64_t n) {
  if (n >= kWidth<R>) return store_whole<R>(to, v);
  R buffer[kWidth<R>];
  store(buffer, v);
  for (int64_t k = 0; k < n; ++k) narrow(buffer[k], to[k]);
}

template <class T>
INLINE T* row_of(const Rows& rows, int64_t matrix, int64_t row) {
  return static_cast<T*>(rows.data) + rows.offsets[matrix] + row * rows.stride;
}

// Stored rows, read in the accumulation type.
template <class R, class T>
struct Stored {
  const T* data;
  int64_t stride;

  INLINE Stored at(int64_t row, int64_t column) const { return {data + row * stride + column, stride}; }
  // Column 0 of a row, and at most one vector from there on.
  INLINE R number(int64_t row) const { return widen(data[row * stride]); }
  INLINE Vec<R> vector(int64_t row, int64_t n) const { return load_part<R>(data + row * stride, n); }
};

// The product of two such, times a factor: it is cheaper to multiply rows than panels.
template <class R, class T>
struct StoredProduct {
  Stored<R, T> left, right;
  R factor;

  INLINE StoredProduct at(int64_t row, int64_t column) const {
    return {left.at(row, column), right.at(row, column), factor};
  }
  INLINE Vec<R> vector(int64_t row, int64_t n) const { return left.vector(row, n) * factor * right.vector(row, n); }
  // `n` numbers of row 0. The last vector may overlap the one before it.
  INLINE void copy(int64_t n, R* to) const {
    constexpr int w = kWidth<R>;
    if (n < w) return store_part<R>(to, vector(0, n), n);
    for (int64_t k = 0; k < n; k += w) {
      const int64_t first = smaller(k, n - w);
      store(to + first, at(0, first).vector(0, w));
    }
  }
};

// Short rows in a buffer.
template <class R>
struct ShortRows {
  const R* data;
  int64_t stride, count;
};

// `rows` by `columns` stored numbers, at most one vector in either direction, into `columns` rows of a panel.
template <class R, class From>
INLINE void pack_square(const From& from, int64_t rows, int64_t columns, R* to) {
  constexpr int w = kWidth<R>;
  Vec<R> square[w];
  if (rows >= w && columns >= w) {
    for (int i = 0; i < w; ++i) square[i] = from.vector(i, w);
    transpose<R>(square);
    for (int i = 0; i < w; ++i) store(to + i * kLanes<R>, square[i]);
  } else {
    for (int64_t k = 0; k < smaller(w, columns); ++k)
      for (int64_t i = 0; i < w; ++i) to[k * kLanes<R> + i] = i < rows ? from.at(0, k).number(i) : R(0);
  }
}

template <class R, class T>
INLINE void unpack_square(const R* from, int64_t rows, int64_t columns, T* to, int64_t stride) {
  constexpr int w = kWidth<R>;
  Vec<R> square[w];
  if (rows >= w && columns >= w) {
    for (int i = 0; i < w; ++i) square[i] = load(from + i * kLanes<R>);
    transpose<R>(square);
    for (int i = 0; i < w; ++i) store_whole<R>(to + i * stride, square[i]);
  } else {
    for (int64_t i = 0; i < smaller(w, rows); ++i)
      for (int64_t k = 0; k < smaller(w, columns); ++k) narrow(from[k * kLanes<R> + i], to[i * stride + k]);
  }
}

// (lanes, width) stored row by row -> panel of `width` rows. Missing lanes of the last vector become 0.
template <class R, class From>
void pack(const From& from, int64_t lanes, int64_t width, R* panel) {
  constexpr int w = kWidth<R>;
  for (int64_t v = 0; v < vectors<R>(lanes); ++v)
    for (int64_t k = 0; k < width; k += w)
      pack_square<R>(from.at(v * w, k), lanes - v * w, width - k, panel + vector_offset<R>(v, width) + k * kLanes<R>);
}

// The reverse of pack.
template <class R, class T>
void unpack(const R* panel, int64_t lanes, int64_t width, T* to, int64_t stride) {
  constexpr int w = kWidth<R>;
  for (int64_t v = 0; v < vectors<R>(lanes); ++v)
    for (int64_t k = 0; k < width; k += w)
      unpack_square<R>(panel + vector_offset<R>(v, width) + k * kLanes<R>, lanes - v * w, width - k,
                       to + v * w * stride + k, stride);
}

// (width, lanes) stored row by row -> panel of `width` rows.
template <class R, class From>
void copy_in(const From& from, int64_t lanes, int64_t width, R* panel) {
  for (int64_t v = 0; v < vectors<R>(lanes); ++v)
    for (int64_t k = 0; k < width; ++k)
      store(panel + vector_offset<R>(v, width) + k * kLanes<R>,
            from.at(0, v * kWidth<R>).vector(k, lanes - v * kWidth<R>));
}

template <class R, class T>
void copy_out(const R* panel, int64_t lanes, int64_t width, T* to, int64_t stride) {
  for (int64_t v = 0; v < vectors<R>(lanes); ++v)
    for (int64_t k = 0; k < width; ++k)
      store_part<R>(to + k * stride + v * kWidth<R>, load(panel + vector_offset<R>(v, width) + k * kLanes<R>),
                    lanes - v * kWidth<R>);
}

// Copies rows as they are in the accumulation type, padded with zeros to `to_stride` numbers per row.
template <class R, class T>
void copy_rows(const T* from, int64_t stride, int64_t count, int64_t width, R* to, int64_t to_stride) {
  for (int64_t i = 0; i < count; ++i) {
    widen_row(from + i * stride, width, to + i * to_stride);
    for (int64_t k = width; k < to_stride; ++k) to[i * to_stride + k] = 0;
  }
}

}  // namespace
}  // namespace laplacianformer
