#include "ops/pair_task.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>

namespace laplacianformer {
namespace {

// Enough items for many cores, few enough that the partial sums of the short side stay small.
constexpr int64_t kItems = 128;
constexpr int64_t kSplitRows = 128;
// The most memory for those partial sums, in case the short side is long itself.
constexpr int64_t kPartialBytes = int64_t{1} << 26;

// Of the partial sums of one range of one matrix.
int64_t partial_bytes(const Level& level, const PairTask& task) {
  const int64_t numbers = level.pad(task.type, task.width) + level.pad(task.type, task.value_width);
  return task.shorts * numbers * accumulation_bytes(task.type);
}

// Cuts the long side into ranges: about as many as `wanted`, with partial sums of at most kPartialBytes for `matrices`
// of them, unless a single range has more.
void split(const Level& level, PairTask& task, int64_t wanted, int64_t matrices) {
  const int64_t most = (task.longs + kSplitRows - 1) / kSplitRows;
  const int64_t affordable = 1 + kPartialBytes / (1 + matrices * partial_bytes(level, task));
  const int64_t splits = std::min(std::min(most, wanted), affordable);
  if (splits > 0) {
    task.split_rows = (most + splits - 1) / splits * kSplitRows;
    task.splits = (task.longs + task.split_rows - 1) / task.split_rows;
  }
}

}  // namespace

PairTask make_task(const Level& level, const RowPairs& pairs, int64_t value_width, Views& views) {
  const Tensor &x = pairs.x, &y = pairs.y;
  PairTask task{};
  task.rotation = pairs.rotation.table();
  const int64_t rows = x.size(x.dim() - 2), columns = y.size(y.dim() - 2);
  task.batch = 1;
  for (int64_t i = 0; i < x.dim() - 2; ++i) task.batch *= x.size(i);
  task.long_is_row = rows >= columns;
  task.type = type_of(task.long_is_row ? x : y);
  task.short_type = type_of(task.long_is_row ? y : x);
  task.longs = task.long_is_row ? rows : columns;
  task.shorts = task.long_is_row ? columns : rows;
  task.width = x.size(x.dim() - 1);
  task.value_width = value_width;
  task.scale = pairs.scale;
  task.counts = pairs.counts;
  split(level, task, task.batch > 0 ? (kItems + task.batch - 1) / task.batch : 1, task.batch);
  const Rows x_rows = views(x), y_rows = views(y);
  task.longs_in = task.long_is_row ? x_rows : y_rows;
  task.shorts_in = task.long_is_row ? y_rows : x_rows;
  return task;
}

int64_t split_alike(const Level& level, PairTask& task) {
  split(level, task, kItems, 1);
  return std::max(int64_t{1}, kPartialBytes / (1 + task.splits * partial_bytes(level, task)));
}

PairTask matrices_of(const PairTask& task, int64_t first, int64_t count) {
  PairTask part = task;
  part.batch = count;
  for (Rows* rows : {&part.longs_in, &part.shorts_in, &part.long_values, &part.short_values, &part.long_value_out})
    if (rows->offsets) rows->offsets += first;
  if (part.counts) part.counts += first;
  return part;
}

void run(const Level& level, PairFunction* function, const PairTask& task) {
  const int64_t work = 1 + task.split_rows * task.shorts * (1 + task.width + task.value_width);
  share_items(task.items(), 1 + kGrain / work, level.pair_bytes(task),
              [&](int64_t first, int64_t last, void* scratch) { function(task, first, last, scratch); });
}

PartialSums::PartialSums(const Level& level, const PairTask& task, int64_t width)
    : level_(level),
      task_(task),
      width_(width),
      stride_(level.pad(task.type, width)),
      data_(task.items() * task.shorts * stride_ * accumulation_bytes(task.type)) {}

void PartialSums::add_up(const Tensor& out, int64_t first_matrix) const {
  const Type type = type_of(out);
  const int64_t row_bytes = stride_ * accumulation_bytes(task_.type), out_bytes = width_ * stored_bytes(type);
  const int64_t shorts = task_.shorts, splits = task_.splits;
  const char* sums = static_cast<const char*>(data_.get());
  char* to = static_cast<char*>(out.data_ptr()) + first_matrix * shorts * out_bytes;
  const int64_t grain = 1 + kGrain / (1 + width_ * splits);
  torch::stable::parallel_for(0, task_.batch * shorts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row / shorts * splits * shorts + row % shorts;
      level_.add_rows(type, sums + first * row_bytes, shorts * stride_, splits, width_, to + row * out_bytes);
    }
  });
}

}  // namespace laplacianformer
