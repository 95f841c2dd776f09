#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <tuple>

#include "ops/laplacian_matmul.h"

namespace laplacianformer {

std::tuple<Tensor, Tensor> product_gradients_in_16_bits(
    const Tensor& grad, const RowPairs& pairs, const Tensor& values,
    const std::function<void(int64_t first, const Tensor& dx, const Tensor& dy)>& finish, const Level& level) {
  constexpr int64_t kWideNumbers = int64_t{1} << 20;  // At a time, unless one matrix has more: they stay in the cache.
  const Tensor dy = empty_as(pairs.y), dvalues = empty_as(values);
  Views views;
  PairTask task = make_task(level, pairs, values.size(values.dim() - 1), views);
  task.long_values = views(values);
  task.short_values = views(grad);
  task.long_value_out = views(dvalues);
  const int64_t numbers = std::max(int64_t{1}, task.longs * task.width);
  const int64_t at_a_time = std::min(split_alike(level, task), std::max(int64_t{1}, kWideNumbers / numbers));
  Tensor matrices = view(dy, {task.batch, task.longs, task.width});
  for (int64_t first = 0; first < task.batch; first += at_a_time) {
    PairTask part = matrices_of(task, first, std::min(at_a_time, task.batch - first));
    const Tensor wide = empty_floats(dy, {part.batch, task.longs, task.width});
    const Tensor dx = empty_floats(dy, {part.batch, task.shorts, task.width});
    const PartialSums sums(level, part, task.width);
    part.long_out = views(wide);
    part.short_sums = sums.get();
    run(level, level.matmul_backward, part);
    sums.add_up(dx);
    finish(first, dx, wide);
    Tensor rounded = narrow(matrices, 0, first, part.batch);
    copy_(rounded, wide);
  }
  return {dy, dvalues};
}

}  // namespace laplacianformer
