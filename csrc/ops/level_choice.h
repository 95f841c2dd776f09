// From the number of an instruction set, as the Python side knows it, to its kernels.
#pragma once

#include <cstdint>

#include "levels/level.h"

namespace laplacianformer {

// 0: baseline, 1: AVX2, 2: AVX-512.
const Level& level_of(int64_t level);

// The widest instruction set that this CPU has.
int64_t best_level();

}  // namespace laplacianformer
