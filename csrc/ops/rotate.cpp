// Inputs have unit stride in their last dimension and outputs are allocated: the Python side does both.
#include "ops/rotate.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>

#include "ops/level_choice.h"
#include "ops/threads.h"

namespace laplacianformer {

void write_rotated(const Tensor& x, const Rotation& rotation, int direction, const Tensor& out, const Level& level) {
  if (out.numel() == 0) return;
  Views views;
  RotateTask task{};
  task.type = type_of(x);
  task.x = views(x);
  task.rotation = rotation.table();
  task.direction = direction;
  task.rows = x.size(x.dim() - 2);
  task.half = x.size(x.dim() - 1) / 2;
  if (rotation && rotation.cosines->dim() == 3) task.sharing = out.numel() / (rotation.cosines->numel() * 2);
  task.out = out.data_ptr();
  const int64_t width = 2 * task.half;
  torch::stable::parallel_for(0, out.numel() / width, 1 + kGrain / width,
                              [&](int64_t begin, int64_t end) { level.rotate(task, begin, end); });
}

namespace {

void rotate(Tensor x, Tensor cosines, Tensor sines, Tensor out, int64_t level) {
  write_rotated(x, {cosines, sines}, 1, out, level_of(level));
}

}  // namespace
}  // namespace laplacianformer

STABLE_TORCH_LIBRARY_FRAGMENT(laplacianformer_cpu, m) {
  m.def("rotate(Tensor x, Tensor cosines, Tensor sines, Tensor(a!) out, int level) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CPU, m) { m.impl("rotate", TORCH_BOX(&laplacianformer::rotate)); }
