// What ops/ need of torch's tensors, for a library without torch: found here under torch's name.
#pragma once

#include "onnx/tensor.h"
