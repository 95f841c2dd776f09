// The machine's limits, for the benchmark.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <vector>

#include "ops/level_choice.h"

namespace laplacianformer {
namespace {

// Runs the register-only loop on each of torch's threads; returns the number of elements of all of them.
int64_t peak(int64_t rounds, bool gradient, bool fused, int64_t level_number) {
  const Level& level = level_of(level_number);
  const int64_t threads = torch::stable::get_num_threads();
  std::vector<double> results(threads);
  std::vector<int64_t> elements(threads);
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) elements[t] = rounds * level.peak(rounds, gradient, fused, &results[t]);
  });
  int64_t total = 0;
  for (int64_t n : elements) total += n;
  return total;
}

}  // namespace
}  // namespace laplacianformer

STABLE_TORCH_LIBRARY_FRAGMENT(laplacianformer_cpu, m) {
  m.def("peak(int rounds, bool gradient, bool fused, int level) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CompositeExplicitAutograd, m) {
  m.impl("peak", TORCH_BOX(&laplacianformer::peak));
}
