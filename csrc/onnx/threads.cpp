#include "onnx/threads.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>

namespace laplacianformer {
namespace {

thread_local const SessionThreads* current = nullptr;

// One call of `run`, cut into parts.
struct Parts {
  int64_t begin, end, count;
  SessionThreads::Range* range;
  const void* function;
  std::mutex mutex;
  std::exception_ptr error;  // Of the first part that failed: none may leave a thread of onnxruntime.

  void call(int64_t part) noexcept {
    const int64_t length = end - begin;
    try {
      range(function, begin + length * part / count, begin + length * (part + 1) / count);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
    }
  }
};

}  // namespace

SessionThreads::SessionThreads(const onnx::Api& api, const onnx::KernelContext* context)
    : api_(api), context_(context), outer_(current) {
  current = this;
}

SessionThreads::~SessionThreads() { current = outer_; }

void SessionThreads::run(int64_t begin, int64_t end, int64_t grain, Range* range, const void* function) {
  if (begin >= end) return;
  const int64_t most = (end - begin + grain - 1) / grain;
  Parts parts{begin, end, std::min<int64_t>(torch::stable::get_num_threads(), most), range, function, {}, {}};
  if (parts.count <= 1 || current == nullptr) return range(function, begin, end);
  const auto call = [](void* data, size_t part) { static_cast<Parts*>(data)->call(static_cast<int64_t>(part)); };
  const auto count = static_cast<size_t>(parts.count);
  onnx::check(current->api_, current->api_.parallel_for(current->context_, call, count, 0, &parts));
  if (parts.error) std::rethrow_exception(parts.error);
}

}  // namespace laplacianformer

namespace torch::stable {

uint32_t get_num_threads() {
  static const uint32_t threads = std::max(1u, std::thread::hardware_concurrency());
  return threads;
}

}  // namespace torch::stable
