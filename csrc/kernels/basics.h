// What every kernel header needs.
#pragma once

#include <cstdint>

#define INLINE inline __attribute__((always_inline))

namespace laplacianformer {
namespace {

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace
}  // namespace laplacianformer
