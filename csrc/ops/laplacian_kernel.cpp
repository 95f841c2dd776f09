#include "ops/laplacian_kernel.h"

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <optional>

#include "ops/level_choice.h"

namespace laplacianformer {

void write_kernel(const RowPairs& pairs, const Tensor& out, const Level& level) {
  Views views;
  PairTask task = make_task(level, pairs, 0, views);
  task.kernel = views(out);
  prefer_huge_pages(out);
  run(level, level.kernel_forward, task);
}

std::tuple<Tensor, Tensor> kernel_gradients(const Tensor& grad, const RowPairs& pairs, const Tensor& out,
                                            const Level& level) {
  const Tensor dx = empty_as(pairs.x), dy = empty_as(pairs.y);
  Views views;
  PairTask task = make_task(level, pairs, 0, views);
  const Tensor &d_long = task.long_is_row ? dx : dy, &d_short = task.long_is_row ? dy : dx;
  task.kernel = views(out);
  task.kernel_grad = views(grad);
  task.long_out = views(d_long);
  prefer_huge_pages(d_long);
  const PartialSums sums(level, task, task.width);
  task.short_sums = sums.get();
  run(level, level.kernel_backward, task);
  sums.add_up(d_short);
  return {dx, dy};
}

namespace {

Tensor kernel_forward(Tensor x, Tensor y, std::optional<Tensor> cosines, std::optional<Tensor> sines, double scale,
                      int64_t level) {
  const Tensor out = empty_with_columns(x, y.size(y.dim() - 2));
  write_kernel({dense(x), dense(y), {cosines, sines}, scale}, out, level_of(level));
  return out;
}

std::tuple<Tensor, Tensor> kernel_backward(Tensor grad, Tensor x, Tensor y, Tensor out, std::optional<Tensor> cosines,
                                           std::optional<Tensor> sines, double scale, int64_t level) {
  return kernel_gradients(dense(grad), {dense(x), dense(y), {cosines, sines}, scale}, dense(out), level_of(level));
}

}  // namespace
}  // namespace laplacianformer

STABLE_TORCH_LIBRARY_FRAGMENT(laplacianformer_cpu, m) {
  m.def("kernel_forward(Tensor x, Tensor y, Tensor? cosines, Tensor? sines, float scale, int level) -> Tensor");
  m.def(
      "kernel_backward(Tensor grad, Tensor x, Tensor y, Tensor out, Tensor? cosines, Tensor? sines, float scale, "
      "int level) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CPU, m) {
  m.impl("kernel_forward", TORCH_BOX(&laplacianformer::kernel_forward));
  m.impl("kernel_backward", TORCH_BOX(&laplacianformer::kernel_backward));
}
