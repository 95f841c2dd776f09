#if defined(__x86_64__)
#include <immintrin.h>

#include <utility>

#include "task.h"

// prfchw is no question of what a CPU has: those of 64 bits without it take the instruction for none.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,prfchw"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,prfchw")
#endif

#define LAPLACIANFORMER_VECTOR_BYTES 32
#define LAPLACIANFORMER_LEVEL level_avx2
#include "level.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
