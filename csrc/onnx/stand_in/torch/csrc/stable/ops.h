// What ops/ need of torch's functions, for a library without torch: found here under torch's name.
#pragma once

#include "onnx/tensor.h"
#include "onnx/threads.h"
