#include "ops/laplacian_matmul.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "ops/level_choice.h"

namespace laplacianformer {

void write_product(const RowPairs& pairs, const Tensor& values, const void* start, const Tensor& out,
                   const Level& level) {
  Views views;
  PairTask task = make_task(level, pairs, values.size(values.dim() - 1), views);
  if (task.long_is_row) {
    task.short_values = views(values);
    task.long_value_out = views(out);
    task.start = start;
    prefer_huge_pages(out);
    return run(level, level.matmul_forward, task);
  }
  task.long_values = views(values);
  const int64_t at_a_time = split_alike(level, task);
  for (int64_t first = 0; first < task.batch; first += at_a_time) {
    PairTask part = matrices_of(task, first, std::min(at_a_time, task.batch - first));
    const PartialSums sums(level, part, part.value_width);
    part.short_value_sums = sums.get();
    run(level, level.matmul_forward, part);
    sums.add_up(out, first);
  }
}

std::tuple<Tensor, Tensor, Tensor> product_gradients(const Tensor& grad, const RowPairs& pairs, const Tensor& values,
                                                     const Level& level) {
  const Tensor dx = empty_as(pairs.x), dy = empty_as(pairs.y), dvalues = empty_as(values);
  Views views;
  PairTask task = make_task(level, pairs, values.size(values.dim() - 1), views);
  const bool by_row = task.long_is_row;
  const Tensor &d_long = by_row ? dx : dy, &d_short = by_row ? dy : dx;
  task.long_values = views(by_row ? grad : values);
  task.short_values = views(by_row ? values : grad);
  task.long_out = views(d_long);
  prefer_huge_pages(d_long);
  if (!by_row) task.long_value_out = views(dvalues);
  const PartialSums sums(level, task, task.width), value_sums(level, task, by_row ? task.value_width : 0);
  task.short_sums = sums.get();
  task.short_value_sums = value_sums.get();
  run(level, level.matmul_backward, task);
  sums.add_up(d_short);
  if (by_row) value_sums.add_up(dvalues);
  return {dx, dy, dvalues};
}

namespace {

Tensor matmul_forward(Tensor x, Tensor y, Tensor values, std::optional<Tensor> cosines, std::optional<Tensor> sines,
                      double scale, int64_t level) {
  const Tensor out = empty_with_columns(x, values.size(values.dim() - 1));
  write_product({dense(x), dense(y), {cosines, sines}, scale}, dense(values), nullptr, out, level_of(level));
  return out;
}

std::tuple<Tensor, Tensor, Tensor> matmul_backward(Tensor grad, Tensor x, Tensor y, Tensor values,
                                                   std::optional<Tensor> cosines, std::optional<Tensor> sines,
                                                   double scale, int64_t level) {
  const RowPairs pairs{dense(x), dense(y), {cosines, sines}, scale};
  return product_gradients(dense(grad), pairs, dense(values), level_of(level));
}

}  // namespace
}  // namespace laplacianformer

STABLE_TORCH_LIBRARY_FRAGMENT(laplacianformer_cpu, m) {
  m.def(
      "matmul_forward(Tensor x, Tensor y, Tensor values, Tensor? cosines, Tensor? sines, float scale, int level) "
      "-> Tensor");
  m.def(
      "matmul_backward(Tensor grad, Tensor x, Tensor y, Tensor values, Tensor? cosines, Tensor? sines, float scale, "
      "int level) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CPU, m) {
  m.impl("matmul_forward", TORCH_BOX(&laplacianformer::matmul_forward));
  m.impl("matmul_backward", TORCH_BOX(&laplacianformer::matmul_backward));
}
