// What every x86-64 CPU has, and every other machine.
#define LAPLACIANFORMER_VECTOR_BYTES 16
#include "levels/table.h"

namespace laplacianformer {
constexpr Level level_baseline = make_level();
}
