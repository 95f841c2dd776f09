// Inputs have unit stride in their last dimension and outputs are allocated: the Python side does both.
#include "ops/column_variance.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ops/level_choice.h"
#include "ops/threads.h"

namespace laplacianformer {
namespace {

// Rows whose moments are computed by themselves; those of all rows are combined from them, in order.
constexpr int64_t kMomentRows = 256;

// The ranges of rows of a (batch, heads, rows, columns) tensor, head by head.
struct Ranges {
  int64_t batch, heads, rows, width, parts;
  Rows data;
  const TokenMask* mask;

  Ranges(const Tensor& x, Views& views, const TokenMask* token_mask = nullptr)
      : batch(x.size(0)),
        heads(x.size(1)),
        rows(x.size(2)),
        width(x.size(3)),
        parts((rows + kMomentRows - 1) / kMomentRows),
        data(views(x)),
        mask(token_mask) {}

  int64_t per_head() const { return batch * parts; }
  int64_t head(int64_t range) const { return range / per_head(); }
  int64_t matrix(int64_t range) const { return range % per_head() / parts * heads + head(range); }
  int64_t begin(int64_t range) const { return range % parts * kMomentRows; }
  int64_t item(int64_t range) const { return range % per_head() / parts; }
  int64_t count(int64_t range) const {
    const int64_t there = mask ? mask->tokens(item(range)) : rows;
    return std::max(int64_t{0}, std::min(there - begin(range), kMomentRows));
  }
  bool has(int64_t range, int64_t column) const {
    return count(range) > 0 && (!mask || mask->members(item(range))[column] > 0);
  }

  // Calls f(range, its first number) on torch's threads.
  template <class F>
  void each(int64_t number_bytes, F f) const {
    const int64_t grain = 1 + kGrain / (1 + kMomentRows * width);
    torch::stable::parallel_for(0, heads * per_head(), grain, [&](int64_t first, int64_t last) {
      for (int64_t range = first; range < last; ++range) {
        const int64_t offset = data.offsets[matrix(range)] + begin(range) * data.stride;
        f(range, static_cast<char*>(data.data) + offset * number_bytes);
      }
    });
  }
};

// The moments of the ranges, in order, into those of all rows.
template <class R>
void combine_moments(const Ranges& ranges, const R* moments, R* mean, R* variance) {
  for (int64_t head = 0; head < ranges.heads; ++head)
    for (int64_t j = 0; j < ranges.width; ++j) {
      double count = 0, m = 0, s = 0;
      for (int64_t r = head * ranges.per_head(); r < (head + 1) * ranges.per_head(); ++r) {
        if (!ranges.has(r, j)) continue;
        const R* range = moments + r * 2 * ranges.width;
        const double more = static_cast<double>(ranges.count(r)), whole = count + more, step = range[j] - m;
        m += step * more / whole;
        s += range[ranges.width + j] + step * step * count * more / whole;
        count = whole;
      }
      mean[head * ranges.width + j] = static_cast<R>(m);
      variance[head * ranges.width + j] = count > 0 ? static_cast<R>(s / count) : R(0);
    }
}

template <class R>
void write_typed_variance(const Tensor& x, const Tensor& mean, const Tensor& variance, const Level& level,
                          const TokenMask* mask) {
  Views views;
  const Ranges ranges(x, views, mask);
  const Type type = type_of(x);
  std::vector<R> moments(ranges.heads * ranges.per_head() * 2 * ranges.width);
  ranges.each(stored_bytes(type), [&](int64_t range, const void* data) {
    if (ranges.count(range) == 0) return;
    R* to = moments.data() + range * 2 * ranges.width;
    level.column_moments(type, data, ranges.data.stride, ranges.count(range), ranges.width, to, to + ranges.width);
  });
  combine_moments<R>(ranges, moments.data(), static_cast<R*>(mean.data_ptr()), static_cast<R*>(variance.data_ptr()));
}

}  // namespace

void write_variance(const Tensor& x, const Tensor& mean, const Tensor& variance, const Level& level,
                    const TokenMask* mask) {
  const bool wide = type_of(x) == Type::float64;
  const auto write = wide ? write_typed_variance<double> : write_typed_variance<float>;
  write(x, mean, variance, level, mask);
}

namespace {

void variance_forward(Tensor x, Tensor mean, Tensor variance, int64_t level) {
  write_variance(x, mean, variance, level_of(level));
}

void variance_backward(Tensor x, Tensor mean, Tensor factor, Tensor out, int64_t level_number) {
  const Level& level = level_of(level_number);
  Views views;
  const Ranges ranges(x, views);
  const Type type = type_of(x);
  const int64_t head_bytes = ranges.width * accumulation_bytes(type), stored = stored_bytes(type);
  ranges.each(stored, [&](int64_t range, const void* data) {
    const int64_t first = (ranges.matrix(range) * ranges.rows + ranges.begin(range)) * ranges.width;
    level.scaled_differences(type, data, ranges.data.stride, ranges.count(range), ranges.width,
                             static_cast<char*>(mean.data_ptr()) + ranges.head(range) * head_bytes,
                             static_cast<char*>(factor.data_ptr()) + ranges.head(range) * head_bytes,
                             static_cast<char*>(out.data_ptr()) + first * stored);
  });
}

}  // namespace
}  // namespace laplacianformer

STABLE_TORCH_LIBRARY_FRAGMENT(laplacianformer_cpu, m) {
  m.def("variance_forward(Tensor x, Tensor(a!) mean, Tensor(b!) variance, int level) -> ()");
  m.def("variance_backward(Tensor x, Tensor mean, Tensor factor, Tensor(a!) out, int level) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CPU, m) {
  m.impl("variance_forward", TORCH_BOX(&laplacianformer::variance_forward));
  m.impl("variance_backward", TORCH_BOX(&laplacianformer::variance_backward));
}
