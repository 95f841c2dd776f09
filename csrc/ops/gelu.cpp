// Tensors are dense, all in the same order, and outputs are allocated: the Python side does both. It has float64 done
// by torch.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <optional>

#include "levels/tasks.h"
#include "ops/level_choice.h"
#include "ops/tensors.h"
#include "ops/threads.h"

namespace laplacianformer {
namespace {

void* data_of(const std::optional<Tensor>& tensor) { return tensor ? tensor->data_ptr() : nullptr; }

// Numbers per operation of kGrain: GELU takes about 40.
constexpr int64_t kGeluGrain = kGrain / 32;

void run_gelu(const Tensor& x, const std::optional<Tensor>& bias, const std::optional<Tensor>& grad, const Tensor& out,
              const std::optional<Tensor>& activated, const Level& level) {
  const int64_t width = bias ? bias->numel() : 1, numbers = x.numel();
  if (numbers == 0) return;
  const GeluTask task{type_of(x), x.data_ptr(),   data_of(bias),     data_of(grad),
                      width,      out.data_ptr(), data_of(activated)};
  torch::stable::parallel_for(0, numbers / width, 1 + kGeluGrain / width,
                              [&](int64_t begin, int64_t end) { level.gelu(task, begin * width, end * width); });
}

void gelu_forward(Tensor x, std::optional<Tensor> bias, Tensor out, int64_t level) {
  run_gelu(x, bias, std::nullopt, out, std::nullopt, level_of(level));
}

void gelu_backward(Tensor grad, Tensor x, std::optional<Tensor> bias, Tensor out, std::optional<Tensor> activated,
                   int64_t level) {
  run_gelu(x, bias, grad, out, activated, level_of(level));
}

}  // namespace
}  // namespace laplacianformer

STABLE_TORCH_LIBRARY_FRAGMENT(laplacianformer_cpu, m) {
  m.def("gelu_forward(Tensor x, Tensor? bias, Tensor(a!) out, int level) -> ()");
  m.def("gelu_backward(Tensor grad, Tensor x, Tensor? bias, Tensor(a!) out, Tensor(b!)? activated, int level) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CPU, m) {
  m.impl("gelu_forward", TORCH_BOX(&laplacianformer::gelu_forward));
  m.impl("gelu_backward", TORCH_BOX(&laplacianformer::gelu_backward));
}
