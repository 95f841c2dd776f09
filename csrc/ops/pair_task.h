// Tasks on all pairs of rows: which side is long, how the work is cut, and how the parts are put together.
#pragma once

#include <cstdint>

#include "levels/level.h"
#include "levels/tasks.h"
#include "ops/tensors.h"
#include "ops/threads.h"

namespace laplacianformer {

// The kernel is that of each row of x and each row of y. The rotation is of the side with more rows, and so are the
// counts: of the first rows of each matrix that are there, or null for all. What belongs to others is not written.
struct RowPairs {
  Tensor x, y;
  Rotation rotation;
  double scale;
  const int64_t* counts = nullptr;
};

// The shapes and the features; the caller sets what is read and written beside them.
PairTask make_task(const Level& level, const RowPairs& pairs, int64_t value_width, Views& views);

// Cuts the long side of each matrix as if it were alone, so that sums over it don't depend on the others. Returns how
// many matrices can be computed at a time without partial sums that take too much memory.
int64_t split_alike(const Level& level, PairTask& task);

// Matrices first to first + count - 1 of a product that is summed over the long side.
PairTask matrices_of(const PairTask& task, int64_t first, int64_t count);

void run(const Level& level, PairFunction* function, const PairTask& task);

// One matrix of partial sums for each item, one row for each short row, padded to whole vectors.
class PartialSums {
 public:
  PartialSums(const Level& level, const PairTask& task, int64_t width);

  void* get() const { return data_.get(); }

  // Adds those of each matrix, in order, into `out`, whose matrices are dense, from one of them on.
  void add_up(const Tensor& out, int64_t first_matrix = 0) const;

 private:
  const Level& level_;
  const PairTask& task_;
  const int64_t width_, stride_;
  const Scratch data_;
};

}  // namespace laplacianformer
