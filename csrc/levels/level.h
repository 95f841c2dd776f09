// The kernels, compiled once for each instruction set: a table of functions for each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "levels/tasks.h"

namespace laplacianformer {

// Items first to last - 1 of a task.
using PairFunction = void(const PairTask&, int64_t first, int64_t last, void* scratch);

struct Level {
  int64_t (*pad)(Type, int64_t width);    // The width, rounded up to whole vectors.
  size_t (*pair_bytes)(const PairTask&);  // Of the scratch memory of one thread.
  PairFunction *kernel_forward, *kernel_backward, *matmul_forward, *matmul_backward;
  // With a stored float32 kernel: kernel @ short values; its transpose @ long values; the gradient of the first.
  PairFunction *stored_forward, *stored_transposed, *stored_backward;
  // out = the sum of `count` rows of whole vectors that lie `stride` numbers apart, in order.
  void (*add_rows)(Type, const void* rows, int64_t stride, int64_t count, int64_t width, void* out);

  size_t (*inverse_bytes)(const InverseTask&);
  void (*inverse)(const InverseTask&, int64_t matrix, void* scratch);

  size_t (*folding_bytes)(const Folding&);
  void (*fold)(const Folding&, void* scratch);
  void (*fold_backward)(const Folding&, const FoldingGradients&, void* scratch);

  // The mean of the tokens of a landmark; the gradient of the tokens of one row of the grid, added to `tokens`.
  void (*pool)(Type, const void* tokens, int64_t stride, const Grid&, const Box&, int64_t landmark, int64_t width,
               float* out);
  void (*pool_backward)(const float* landmarks, const Grid&, const Box&, int64_t row, int64_t width, float* tokens);

  // Picked rows into a dense matrix, and back from one to where they were, rotated back.
  void (*gather)(Type, const PickedRows&, const void* from, int64_t stride, float* to);
  void (*scatter)(const PickedRows&, const float* from, float* to, int64_t stride);

  // Means, squares and factors have the accumulation type: see kernels/column_variance.h.
  void (*column_moments)(Type, const void* data, int64_t stride, int64_t rows, int64_t width, void* mean,
                         void* squares);
  void (*scaled_differences)(Type, const void* data, int64_t stride, int64_t rows, int64_t width, const void* mean,
                             const void* factor, void* out);

  void (*rotate)(const RotateTask&, int64_t begin, int64_t end);  // Rows begin to end - 1 of all matrices.
  void (*gelu)(const GeluTask&, int64_t begin, int64_t end);      // Numbers begin to end - 1; whole rows with a bias.
  int64_t (*peak)(int64_t rounds, bool gradient, bool fused, double* result);
};

extern const Level level_baseline;
#if defined(__x86_64__)
extern const Level level_avx2;
extern const Level level_avx512;
#endif

}  // namespace laplacianformer
