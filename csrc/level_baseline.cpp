// What every x86-64 has, and every other machine.
#include "task.h"

#define LAPLACIANFORMER_VECTOR_BYTES 16
#define LAPLACIANFORMER_LEVEL level_baseline
#include "level.h"
