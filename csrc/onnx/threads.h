// Work on onnxruntime's threads, under the names of LibTorch's stable ABI: see tensor.h.
#pragma once

#include <cstdint>

#include "onnx/api.h"

namespace laplacianformer {

// While it lives, what this thread runs in parallel runs on the threads of the session that calls the operator.
class SessionThreads {
 public:
  SessionThreads(const onnx::Api& api, const onnx::KernelContext* context);
  ~SessionThreads();
  SessionThreads(const SessionThreads&) = delete;
  SessionThreads& operator=(const SessionThreads&) = delete;

  using Range = void(const void* function, int64_t begin, int64_t end);

  // Calls range(function, first, last) for ranges that cover begin to end - 1, each of at least `grain`.
  static void run(int64_t begin, int64_t end, int64_t grain, Range* range, const void* function);

 private:
  const onnx::Api& api_;
  const onnx::KernelContext* const context_;
  const SessionThreads* const outer_;
};

}  // namespace laplacianformer

namespace torch::stable {

// The most that a session may have: onnxruntime does not tell how many it has.
uint32_t get_num_threads();

template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t grain, const F& f) {
  const auto range = [](const void* function, int64_t first, int64_t last) {
    (*static_cast<const F*>(function))(first, last);
  };
  laplacianformer::SessionThreads::run(begin, end, grain, range, &f);
}

}  // namespace torch::stable
