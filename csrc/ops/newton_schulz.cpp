// Inputs have unit stride in their last dimension and outputs are allocated: the Python side does both.
#include "ops/newton_schulz.h"

#include <torch/csrc/stable/library.h>

#include "ops/level_choice.h"
#include "ops/threads.h"

namespace laplacianformer {
namespace {

void run_inverse(const Rows& grad, const Tensor& w, const NewtonSchulz& settings, const Tensor& out,
                 const Level& level) {
  Views views;
  InverseTask task{};
  task.type = type_of(w);
  task.size = w.size(w.dim() - 1);
  task.iterations = settings.iterations;
  task.eps = settings.eps;
  task.identity = settings.identity;
  task.symmetric = settings.symmetric;
  task.w = views(w);
  task.grad = grad;
  task.out = views(out);
  const int64_t batch = w.numel() / (task.size * task.size);
  share_items(batch, 1, level.inverse_bytes(task), [&](int64_t first, int64_t last, void* scratch) {
    for (int64_t matrix = first; matrix < last; ++matrix) level.inverse(task, matrix, scratch);
  });
}

}  // namespace

void write_inverse(const Tensor& w, const NewtonSchulz& settings, const Tensor& out, const Level& level) {
  run_inverse(Rows{}, w, settings, out, level);
}

void write_inverse_gradient(const Tensor& grad, const Tensor& w, const NewtonSchulz& settings, const Tensor& out,
                            const Level& level) {
  Views views;
  run_inverse(views(grad), w, settings, out, level);
}

namespace {

void inverse_forward(Tensor w, Tensor out, int64_t iterations, double eps, bool identity, int64_t level) {
  write_inverse(w, {iterations, eps, identity}, out, level_of(level));
}

void inverse_backward(Tensor grad, Tensor w, Tensor out, int64_t iterations, double eps, bool identity, int64_t level) {
  write_inverse_gradient(grad, w, {iterations, eps, identity}, out, level_of(level));
}

}  // namespace
}  // namespace laplacianformer

STABLE_TORCH_LIBRARY_FRAGMENT(laplacianformer_cpu, m) {
  m.def("inverse_forward(Tensor w, Tensor(a!) out, int iterations, float eps, bool identity, int level) -> ()");
  m.def(
      "inverse_backward(Tensor grad, Tensor w, Tensor(a!) out, int iterations, float eps, bool identity, int level) "
      "-> ()");
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CPU, m) {
  m.impl("inverse_forward", TORCH_BOX(&laplacianformer::inverse_forward));
  m.impl("inverse_backward", TORCH_BOX(&laplacianformer::inverse_backward));
}
