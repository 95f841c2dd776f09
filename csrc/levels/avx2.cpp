#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "levels/level.h"
#include "levels/tasks.h"

// prfchw need not be checked for: 64-bit CPUs without it execute the instruction as a no-op.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,prfchw"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,prfchw")
#endif

#define LAPLACIANFORMER_VECTOR_BYTES 32
#include "levels/table.h"

namespace laplacianformer {
constexpr Level level_avx2 = make_level();
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
