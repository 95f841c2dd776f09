// Work on torch's threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace laplacianformer {

// Less work than this many operations is not worth waking a thread for.
constexpr int64_t kGrain = 1 << 17;

class Scratch {
 public:
  explicit Scratch(size_t bytes) : data_(::operator new(bytes, std::align_val_t(64))) {}
  ~Scratch() { ::operator delete(data_, std::align_val_t(64)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* get() const { return data_; }

 private:
  void* data_;
};

// Calls f(first, last, scratch) for ranges that cover all items, on as many of torch's threads as have `grain` of them.
// Each thread takes a fraction of what is left, again and again: one that is slow, or shares its core, is not waited
// for.
template <class F>
void share_items(int64_t items, int64_t grain, size_t scratch_bytes, F f) {
  const int64_t threads = torch::stable::get_num_threads();
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, std::min(threads, (items + grain - 1) / grain), 1, [&](int64_t, int64_t) {
    if (next >= items) return;
    const Scratch scratch(scratch_bytes);
    for (int64_t begin = next; begin < items;) {
      const int64_t end = begin + std::max(grain, (items - begin) / (2 * threads));
      if (!next.compare_exchange_weak(begin, end)) continue;
      f(begin, std::min(end, items), scratch.get());
      begin = next;
    }
  });
}

}  // namespace laplacianformer
