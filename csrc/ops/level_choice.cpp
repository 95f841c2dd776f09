#include "ops/level_choice.h"

#include <torch/csrc/stable/library.h>

namespace laplacianformer {

const Level& level_of(int64_t level) {
#if defined(__x86_64__)
  if (level == 2) return level_avx512;
  if (level == 1) return level_avx2;
#endif
  return level_baseline;
}

int64_t best_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return avx2 ? (avx512 ? 2 : 1) : 0;
#else
  return 0;
#endif
}

}  // namespace laplacianformer

STABLE_TORCH_LIBRARY_FRAGMENT(laplacianformer_cpu, m) { m.def("best_level() -> int"); }

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CompositeExplicitAutograd, m) {
  m.impl("best_level", TORCH_BOX(&laplacianformer::best_level));
}
