// Prefetches memory that is needed soon, a little at a time while registers are computed on: neither waits for the
// other.
#pragma once

#include <cstdint>

#include "kernels/basics.h"

namespace laplacianformer {
namespace {

class Prefetcher {
 public:
  INLINE void clear() { count_ = 0; }

  // Adds `rows` rows of `bytes` bytes that lie `stride` bytes apart, to be prefetched within `steps` steps; none of
  // these is 0, but the stride may be. Nothing is read or written, so any address is valid.
  template <bool Write>
  INLINE void add(const void* data, int64_t stride, int64_t bytes, int64_t rows, int64_t steps) {
    if (stride == bytes) {  // Dense: cut into whole lines, so that none is prefetched twice.
      const int64_t lines = (rows * bytes + kLine - 1) / kLine;
      stride = bytes = (lines + steps - 1) / steps * kLine;
      rows = (lines * kLine + bytes - 1) / bytes;
    }
    const int64_t pace = (rows + steps - 1) / steps;
    ranges_[count_++] = {static_cast<const char*>(data), stride, bytes, rows, pace, Write};
  }

  INLINE void step() {
    for (int i = 0; i < count_; ++i) {
      Range& range = ranges_[i];
      const int64_t rows = smaller(range.pace, range.rows);
      const char* row = range.row;
      range.rows -= rows;
      range.row += rows * range.stride;
      for (; row < range.row; row += range.stride)
        if (range.write) {
          for (const char* line = row; line < row + range.bytes; line += kLine) __builtin_prefetch(line, 1);
        } else {
          for (const char* line = row; line < row + range.bytes; line += kLine) __builtin_prefetch(line, 0);
        }
    }
  }

 private:
  static constexpr int64_t kLine = 64;  // Bytes of a cache line.

  struct Range {
    const char* row;
    int64_t stride, bytes, rows, pace;
    bool write;
  };

  Range ranges_[4];  // There are never more at a time.
  int count_ = 0;
};

}  // namespace
}  // namespace laplacianformer
