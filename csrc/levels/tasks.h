// What the ops ask of the kernels, in plain C++: the level files include this and nothing of torch.
//
// The mathematics is symmetric in x and y, so a kernel only knows a long side, which is processed in blocks, and a
// short side, which every block is paired with. The caller decides which is which.
#pragma once

#include <cstddef>
#include <cstdint>

namespace laplacianformer {

enum class Type { float32, float64, bfloat16, float16 };

// A batch of row-major matrices: unit stride within a row, any stride between rows, any offset for each matrix.
struct Rows {
  void* data = nullptr;
  const int64_t* offsets = nullptr;
  int64_t stride = 0;
};

// Cosines and sines in the accumulation type, (rows, width / 2) each; null for no rotation. See kernels/rotate.h.
struct RotationTable {
  const void* cosines = nullptr;
  const void* sines = nullptr;
};

// All pairs of a long and a short row: their kernel, its product with values, or the gradients of either.
struct PairTask {
  Type type, short_type;  // Of the long side; of the short side and of kernel matrices (the same, or float32).
  int64_t batch, longs, shorts, width, value_width;
  double scale;
  // The long side is cut into `splits` ranges of `split_rows`, from the shape alone and never from the number of
  // threads: each item (one range of one matrix) is summed by itself, then the items are added in order.
  int64_t splits, split_rows;
  const int64_t* counts;  // (batch): the long rows of each matrix, the first ones, that are there; null for all.
  bool long_is_row;       // Whether kernel matrices are stored as (long, short) or as (short, long).

  Rows longs_in, shorts_in;        // Features.
  RotationTable rotation;          // Of the long features.
  Rows long_values, short_values;  // For products; forward uses one of the two, backward both.
  Rows kernel, kernel_grad;        // The kernel matrix and its gradient.
  const void* start;               // (batch, value_width): what the rows of a product start from, or null for 0.
  Rows long_out, long_value_out;   // Gradient of the long features; product or gradient with one row per long row.
  void *short_sums,
      *short_value_sums;        // (batch, splits, shorts, padded width or value_width): each item's partial sums.
  void* value_totals;           // (batch, splits, padded value_width): the sum of each item's long values.
  const float *slopes, *means;  // (batch, shorts): the variance adds slope (k - mean) to the gradient of the kernel.

  int64_t items() const { return batch * splits; }
  int64_t longs_of(int64_t matrix) const { return counts ? counts[matrix] : longs; }
};

// Newton-Schulz on a batch of square matrices, or its adjoint if there is a gradient.
struct InverseTask {
  Type type;
  int64_t size, iterations;
  double eps;
  bool identity;  // Whether to start from a multiple of the identity or of the transpose.
  // Whether w is symmetric and its gradient is only used together with its transpose: this saves two products in five.
  bool symmetric;
  Rows w, grad, out;
};

// The rotation of a batch of matrices of `rows` rows and 2 * half columns into a dense `out`.
struct RotateTask {
  Type type;
  Rows x;
  RotationTable rotation;
  int direction;  // 1, or -1 to rotate back.
  int64_t rows, half;
  int64_t sharing;  // Consecutive matrices that share a table, one table after the other; 0 if all share one.
  void* out;
};

// GELU of x + bias in float16, bfloat16 or float32, all dense; or its gradient, if there is one of its result. `out`
// may be any of the inputs.
struct GeluTask {
  Type type;
  const void *x, *bias, *grad;  // bias: (width), added to every row, or null. grad: null for GELU itself.
  int64_t width;
  void *out, *activated;  // activated: where the gradient also writes GELU, or null.
};

// Indices begin to end - 1 of a row or column of tokens: those of one cell. Cells overlap by one index where the
// lengths don't divide.
struct CellRange {
  int64_t begin, end;
  CellRange(int64_t cell, int64_t cells, int64_t length)
      : begin(cell * length / cells), end(((cell + 1) * length + cells - 1) / cells) {}
  int64_t length() const { return end - begin; }
  bool contains(int64_t index) const { return begin <= index && index < end; }
};

// A grid of tokens with three axes (the first lengths are 1 where there are fewer), row by row, after `prefix` tokens
// that are not on it; and the grid of cells over it. The tokens before the grid and then the cells are the landmarks.
struct Grid {
  int64_t length[3], cells[3], prefix;

  int64_t rows() const { return length[0] * length[1]; }
  int64_t tokens() const { return prefix + rows() * length[2]; }
  int64_t landmarks() const { return prefix + cells[0] * cells[1] * cells[2]; }
};

// The part of a grid that the tokens of one item take, and its own cells: the first of those of the grid. With a mask,
// (tokens), which is true where a token counts, `members` has the number of tokens of each landmark.
struct Box {
  int64_t extent[3], cells[3];
  const bool* mask;
  const int64_t* members;
};

// Rows of a matrix that are taken in order, and rotated.
struct PickedRows {
  const int64_t* index;
  int64_t count, width;
  RotationTable rotation;
};

// The landmark values of one head with the whitening folded into them: see kernels/fold.h. All matrices but `summed`
// are dense.
struct Folding {
  int64_t landmarks, width;
  int64_t count;           // Of the landmarks that are there.
  const int64_t* members;  // (landmarks): 0 where there is none; null where all are there.
  float fraction;          // Landmarks per token.
  float gain;
  const float* inverse;  // (landmarks, landmarks); null where every token is a landmark and nothing is solved.
  const float* factor;   // (landmarks), of the whitening; null for ones.
  const float* summed;   // (landmarks, width), rows `summed_stride` apart.
  int64_t summed_stride;
  float *values, *folded,
      *mean;  // (landmarks, width) twice, and (width). `values` may be null: they are not kept then.
};

// The gradients of `folded` and `mean`, and those that follow from them.
struct FoldingGradients {
  const float *d_folded, *d_mean;
  float *d_summed, *d_inverse, *d_factor, *d_gain;
};

}  // namespace laplacianformer
