// Panels: a block of the long side with its rows in the vector lanes, as [subtile][row][lanes], where a row is a
// feature, a value or a short row. Everything is computed on panels; here they are filled and written back.
#pragma once

namespace laplacianformer {
namespace {

// Long rows of a block. Its panels stay in the first-level cache for the widths of the models.
constexpr int64_t kBlock = 64;

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// An odd number of rows, so that the subtiles of one row don't fall into the same few sets of the cache.
template <class R>
INLINE int64_t subtile_size(int64_t rows) {
  return (rows | 1) * kLanes<R>;
}

template <class R>
INLINE int64_t panel_size(int64_t rows) {
  return kBlock / kLanes<R> * subtile_size<R>(rows);
}

// Where vector `v` of row 0 starts.
template <class R>
INLINE int64_t vector_offset(int64_t v, int64_t rows) {
  return v / 2 * subtile_size<R>(rows) + v % 2 * kWidth<R>;
}

template <class R>
INLINE int64_t vectors(int64_t lanes) {
  return (lanes + kWidth<R> - 1) / kWidth<R>;
}

// At most a vector of stored numbers; zero where there are fewer.
template <class R, class T>
INLINE Vec<R> load_part(const T* from, int64_t n) {
  R buffer[kWidth<R>];
  if (n >= kWidth<R>) {
    widen_row(from, kWidth<R>, buffer);
  } else {
    for (int64_t k = 0; k < kWidth<R>; ++k) buffer[k] = 0;
    widen_row(from, n, buffer);
  }
  return load(buffer);
}

template <class R, class T>
INLINE void store_part(T* to, Vec<R> v, int64_t n) {
  R buffer[kWidth<R>];
  store(buffer, v);
  if (n >= kWidth<R>) {
    narrow_row(buffer, kWidth<R>, to);
  } else {
    narrow_row(buffer, n, to);
  }
}

// (lanes, width) stored row by row -> panel of `width` rows. Missing lanes of the last vector become 0.
template <class R, class T>
void pack(const T* from, int64_t stride, int64_t lanes, int64_t width, R* panel) {
  constexpr int w = kWidth<R>;
  for (int64_t v = 0; v < vectors<R>(lanes); ++v) {
    R* to = panel + vector_offset<R>(v, width);
    const T* first = from + v * w * stride;
    const int64_t valid = lanes - v * w;
    for (int64_t k = 0; k < width; k += w) {
      Vec<R> rows[w];
      for (int i = 0; i < w; ++i)
        rows[i] = i < valid ? load_part<R>(first + i * stride + k, width - k) : splat<R>(0);
      transpose<R>(rows);
      for (int i = 0; i < w && k + i < width; ++i) store(to + (k + i) * kLanes<R>, rows[i]);
    }
  }
}

// The reverse of pack.
template <class R, class T>
void unpack(const R* panel, int64_t lanes, int64_t width, T* to, int64_t stride) {
  constexpr int w = kWidth<R>;
  for (int64_t v = 0; v < vectors<R>(lanes); ++v) {
    const R* from = panel + vector_offset<R>(v, width);
    T* first = to + v * w * stride;
    const int64_t valid = smaller(w, lanes - v * w);
    for (int64_t k = 0; k < width; k += w) {
      Vec<R> rows[w];
      for (int i = 0; i < w; ++i) rows[i] = k + i < width ? load(from + (k + i) * kLanes<R>) : splat<R>(0);
      transpose<R>(rows);
      for (int i = 0; i < valid; ++i) store_part<R>(first + i * stride + k, rows[i], width - k);
    }
  }
}

// (width, lanes) stored row by row -> panel of `width` rows.
template <class R, class T>
void copy_in(const T* from, int64_t stride, int64_t lanes, int64_t width, R* panel) {
  for (int64_t v = 0; v < vectors<R>(lanes); ++v)
    for (int64_t k = 0; k < width; ++k)
      store(panel + vector_offset<R>(v, width) + k * kLanes<R>,
            load_part<R>(from + k * stride + v * kWidth<R>, lanes - v * kWidth<R>));
}

template <class R, class T>
void copy_out(const R* panel, int64_t lanes, int64_t width, T* to, int64_t stride) {
  for (int64_t v = 0; v < vectors<R>(lanes); ++v)
    for (int64_t k = 0; k < width; ++k)
      store_part<R>(to + k * stride + v * kWidth<R>, load(panel + vector_offset<R>(v, width) + k * kLanes<R>),
                    lanes - v * kWidth<R>);
}

// Rows as they are, in the numbers that accumulate, `padded` numbers a row.
template <class R, class T>
void copy_rows(const T* from, int64_t stride, int64_t count, int64_t width, R* to, int64_t padded) {
  for (int64_t i = 0; i < count; ++i) {
    widen_row(from + i * stride, width, to + i * padded);
    for (int64_t k = width; k < padded; ++k) to[i * padded + k] = 0;
  }
}

}  // namespace
}  // namespace laplacianformer
