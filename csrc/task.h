// What one call asks for, in plain C++: the level files include this and nothing of torch.
//
// The mathematics is symmetric in x and y, so a kernel only knows a long side, which is taken in blocks, and a short
// side, which all blocks meet. The caller decides which is which.
#pragma once

#include <cstddef>
#include <cstdint>

namespace laplacianformer {

enum class Type { float32, float64, bfloat16, float16 };

// A batch of row-major matrices: unit stride inside a row, any stride between rows, any offset a matrix.
struct Rows {
  void* data = nullptr;
  const int64_t* offsets = nullptr;
  int64_t stride = 0;
};

struct Task {
  Type type, short_type;  // Of the long side and of kernel matrices; of the short side: the same, or float32.
  int64_t batch, longs, shorts, width, value_width;
  double scale;
  // The long side is cut into `splits` ranges of `split_rows`, from the shape alone and never from the number
  // of threads: each item (one range of one matrix) is summed by itself, then items are added in order.
  int64_t splits, split_rows;
  bool long_is_row;  // Kernel matrices are stored (long, short), or (short, long).

  Rows longs_in, shorts_in;            // Features.
  const void *cosines, *sines;         // (longs, width / 2) each: a rotation of the long features (rotate.h), or null.
  Rows long_values, short_values;      // For matmul; forward uses one of the two, backward both.
  Rows kernel, kernel_grad;            // The kernel matrix and its gradient.
  const void* start;                   // (batch, value_width): what the rows of a product begin with, or null for 0.
  Rows long_out, long_value_out;       // Gradient of the long features; product or gradient with a row a long row.
  void *short_sums, *short_value_sums; // (batch, splits, shorts, padded width or value_width): each item's share.
  void* value_totals;                  // (batch, splits, padded value_width): the sum of each item's long values.
  const float *slopes, *means;         // (batch, shorts): slope (k - mean) is what variances add to a gradient.

  int64_t items() const { return batch * splits; }
};

// Newton-Schulz on a batch of square matrices. With a gradient, its adjoint.
struct Inverse {
  Type type;
  int64_t size, iterations;
  double eps;
  bool identity;  // The start: a multiple of the identity, or of the transpose.
  // Whether w is symmetric and its gradient is only used together with its transpose: two products in five are spared.
  bool symmetric;
  Rows w, grad, out;
};

// Places begin to end - 1 of a row or column of tokens: those of one cell. Cells overlap by one place where lengths
// don't divide.
struct Range {
  int64_t begin, end;
  Range(int64_t cell, int64_t cells, int64_t length)
      : begin(cell * length / cells), end(((cell + 1) * length + cells - 1) / cells) {}
  int64_t length() const { return end - begin; }
  bool has(int64_t place) const { return begin <= place && place < end; }
};

// What the landmarks of one head stand for, and the whitening folded into it: see fold.h. Matrices are dense but `summed`.
struct Folding {
  int64_t landmarks, width;
  float share, gain;
  const float* inverse;  // (landmarks, landmarks); null where every token is a landmark and nothing is solved.
  const float* factor;   // (landmarks), of the whitening; null for ones.
  const float* summed;   // (landmarks, width), rows `stride` apart.
  int64_t stride;
  float *values, *folded, *mean;  // (landmarks, width) twice, and (width). Values are kept where something is solved.
};

// The gradients of the same: of `folded` and `mean`, and what follows from them.
struct Unfolding {
  const float *d_folded, *d_mean;
  float *d_summed, *d_inverse, *d_factor, *d_gain;
};

// The same functions, compiled once for each instruction set.
struct Level {
  int64_t (*pad)(Type, int64_t width);  // To whole vectors.
  size_t (*scratch_bytes)(const Task&);
  // Items first to last - 1.
  void (*kernel_forward)(const Task&, int64_t first, int64_t last, void* scratch);
  void (*kernel_backward)(const Task&, int64_t first, int64_t last, void* scratch);
  void (*matmul_forward)(const Task&, int64_t first, int64_t last, void* scratch);
  void (*matmul_backward)(const Task&, int64_t first, int64_t last, void* scratch);
  // With a stored kernel: kernel @ short values; its transpose @ long values; the gradient of the first. float32.
  void (*stored_forward)(const Task&, int64_t first, int64_t last, void* scratch);
  void (*stored_transposed)(const Task&, int64_t first, int64_t last, void* scratch);
  void (*stored_backward)(const Task&, int64_t first, int64_t last, void* scratch);
  size_t (*folding_bytes)(const Folding&);
  void (*fold)(const Folding&, void* scratch);
  void (*unfold)(const Folding&, const Unfolding&, void* scratch);
  // The mean of the tokens of a cell; the gradient of the tokens of one row, added to what is there. See pool.h.
  void (*pool)(Type, const void* tokens, int64_t stride, int64_t columns, const Range& y, const Range& x, int64_t width,
               float* out);
  void (*spread)(const float* cells, int64_t row, int64_t rows, int64_t columns, int64_t cell_rows, int64_t cell_columns,
                 int64_t width, float* tokens);
  // out = the sum of `shares` rows of whole vectors that lie `share` numbers apart, in order.
  void (*add_shares)(Type, const void* sums, int64_t share, int64_t shares, int64_t width, void* out);
  size_t (*inverse_bytes)(const Inverse&);
  void (*inverse)(const Inverse&, int64_t matrix, void* scratch);
  // Sums and factors are in the numbers that accumulate; see variance.h.
  void (*column_moments)(Type, const void* data, int64_t stride, int64_t rows, int64_t width, void* mean,
                         void* squares);
  void (*scaled_differences)(Type, const void* data, int64_t stride, int64_t rows, int64_t width, const void* mean,
                             const void* factor, void* out);
  int64_t (*peak)(int64_t rounds, bool fused, double* result);
  // Rows begin to end of all matrices of `rows` rows; cosines and sines are (rows, half). Direction: 1, or -1 for back.
  void (*rotate)(Type, const Rows& x, const void* cosines, const void* sines, int direction, int64_t rows, int64_t half,
                 int64_t begin, int64_t end, void* out);
};

extern const Level level_baseline;
#if defined(__x86_64__)
extern const Level level_avx2;
extern const Level level_avx512;
#endif

}  // namespace laplacianformer
