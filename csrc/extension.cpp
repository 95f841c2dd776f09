// The ops of the `cpu` backend: which side is long, how the work is cut, and torch's threads. The Python side has
// broadcast the batch. The kernel, the product, their gradients and the branch make the last dimension of each input dense
// and allocate their outputs: a few calls less of Python, which is slow when a kernel has just filled the caches. For the
// other ops, the Python side has done both.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "task.h"

namespace laplacianformer {
namespace {

using torch::stable::Tensor;

// Enough items for many cores, few enough that the shares of the short side stay small.
constexpr int64_t kItems = 128;
constexpr int64_t kSplitRows = 128;
// The most memory for those shares, where the short side is long itself.
constexpr int64_t kShareBytes = int64_t{1} << 26;

const Level& level_of(int64_t level) {
#if defined(__x86_64__)
  if (level == 2) return level_avx512;
  if (level == 1) return level_avx2;
#endif
  return level_baseline;
}

int64_t best_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return avx2 ? (avx512 ? 2 : 1) : 0;
#else
  return 0;
#endif
}

Type type_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::headeronly::ScalarType::Double:
      return Type::float64;
    case torch::headeronly::ScalarType::BFloat16:
      return Type::bfloat16;
    case torch::headeronly::ScalarType::Half:
      return Type::float16;
    case torch::headeronly::ScalarType::Float:
      return Type::float32;
    default:
      throw std::invalid_argument("the C++ kernels take float32, float64, bfloat16 and float16");
  }
}

int64_t stored_bytes(Type type) { return type == Type::float64 ? 8 : type == Type::float32 ? 4 : 2; }

// Owns the offsets of the matrices of its tensors, which Rows point to.
class Views {
 public:
  Rows operator()(const Tensor& tensor) {
    const int64_t leading = tensor.dim() - 2;
    int64_t batch = 1;
    for (int64_t i = 0; i < leading; ++i) batch *= tensor.size(i);
    offsets_.emplace_back(batch);
    std::vector<int64_t>& offsets = offsets_.back();
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = leading - 1, rest = b; i >= 0; rest /= tensor.size(i--))
        offsets[b] += rest % tensor.size(i) * tensor.stride(i);
    return Rows{tensor.data_ptr(), offsets.data(), tensor.stride(leading)};
  }

 private:
  std::vector<std::vector<int64_t>> offsets_;
};

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

// Above this size malloc takes memory fresh from the system every time (glibc's largest DEFAULT_MMAP_THRESHOLD), and a
// fault for each 4 KB of a result costs as much as computing it.
constexpr size_t kFresh = size_t{1} << 25;

void prefer_huge_pages(const Tensor& result) {
#if defined(__linux__)
  constexpr uintptr_t kPage = uintptr_t{1} << 21;
  const size_t bytes = result.numel() * stored_bytes(type_of(result));
  if (bytes < kFresh) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(result.data_ptr());
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage, last = (begin + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // A wish: failing is no error.
#endif
}

using Angles = std::optional<Tensor>;

Task make_task(const Level& level, const Tensor& x, const Tensor& y, int64_t value_width, const Angles& cosines,
               const Angles& sines, double scale, Views& views) {
  Task task{};
  task.cosines = cosines ? cosines->data_ptr() : nullptr;
  task.sines = sines ? sines->data_ptr() : nullptr;
  const int64_t rows = x.size(x.dim() - 2), columns = y.size(y.dim() - 2);
  task.batch = 1;
  for (int64_t i = 0; i < x.dim() - 2; ++i) task.batch *= x.size(i);
  task.long_is_row = rows >= columns;
  task.type = type_of(task.long_is_row ? x : y);
  task.short_type = type_of(task.long_is_row ? y : x);
  task.longs = task.long_is_row ? rows : columns;
  task.shorts = task.long_is_row ? columns : rows;
  task.width = x.size(x.dim() - 1);
  task.value_width = value_width;
  task.scale = scale;
  const int64_t most = (task.longs + kSplitRows - 1) / kSplitRows;
  const int64_t wanted = task.batch > 0 ? (kItems + task.batch - 1) / task.batch : 1;
  const int64_t numbers = level.pad(task.type, task.width) + level.pad(task.type, value_width);
  const int64_t share = 1 + task.batch * task.shorts * numbers * (task.type == Type::float64 ? 8 : 4);
  const int64_t affordable = 1 + kShareBytes / share;
  int64_t splits = most < wanted ? most : wanted;
  splits = splits < affordable ? splits : affordable;
  if (splits > 0) {
    task.split_rows = (most + splits - 1) / splits * kSplitRows;
    task.splits = (task.longs + task.split_rows - 1) / task.split_rows;
  }
  const Rows x_rows = views(x), y_rows = views(y);
  task.longs_in = task.long_is_row ? x_rows : y_rows;
  task.shorts_in = task.long_is_row ? y_rows : x_rows;
  return task;
}

// Items below this many pairs times features aren't worth waking a thread.
constexpr int64_t kGrain = 1 << 17;

// Calls f(first, last, scratch) for ranges of all items, on as many of torch's threads as have `grain` of them. Each
// thread takes a share of what is left, again and again: one that is slow, or that something else runs on, is not waited
// for.
template <class F>
void share_items(int64_t items, int64_t grain, size_t scratch_bytes, F f) {
  const int64_t threads = torch::stable::get_num_threads();
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, std::min(threads, (items + grain - 1) / grain), 1, [&](int64_t, int64_t) {
    const Scratch scratch(scratch_bytes);
    for (int64_t begin = next; begin < items;) {
      const int64_t end = begin + std::max(grain, (items - begin) / (2 * threads));
      if (!next.compare_exchange_weak(begin, end)) continue;
      f(begin, std::min(end, items), scratch.get());
      begin = next;
    }
  });
}

using Step = void (*)(const Task&, int64_t, int64_t, void*);

void run(const Level& level, Step step, const Task& task) {
  const int64_t work = 1 + task.split_rows * task.shorts * (1 + task.width + task.value_width);
  share_items(task.items(), 1 + kGrain / work, level.scratch_bytes(task),
              [&](int64_t first, int64_t last, void* scratch) { step(task, first, last, scratch); });
}

// Adds the shares of the items, in order, into `out`, whose matrices are dense.
void add_shares(const Level& level, const Task& task, const void* sums, int64_t width, int64_t stride,
                const Tensor& out) {
  const Type type = type_of(out);
  const int64_t size = task.type == Type::float64 ? 8 : 4, stored = stored_bytes(type);
  char* to = static_cast<char*>(out.data_ptr());
  const int64_t grain = 1 + kGrain / (1 + width * task.splits);
  torch::stable::parallel_for(0, task.batch * task.shorts, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t matrix = row / task.shorts, first = matrix * task.splits * task.shorts + row % task.shorts;
      level.add_shares(type, static_cast<const char*>(sums) + first * stride * size, task.shorts * stride, task.splits,
                       width, to + row * width * stored);
    }
  });
}

size_t shares_bytes(const Task& task, int64_t stride) {
  return task.items() * task.shorts * stride * (task.type == Type::float64 ? 8 : 4);
}

// With unit stride in the last dimension: as it is, or copied.
Tensor dense(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return tensor.size(last) <= 1 || tensor.stride(last) == 1 ? tensor : contiguous(tensor);
}

// A dense tensor of the shape and dtype of `like`, with `columns` columns.
Tensor empty_with(const Tensor& like, int64_t columns) {
  std::vector<int64_t> shape(like.dim(), columns);
  for (int64_t i = 0; i + 1 < like.dim(); ++i) shape[i] = like.size(i);
  return new_empty(like, shape);
}

Tensor empty_as(const Tensor& like) { return empty_with(like, like.size(like.dim() - 1)); }

void write_kernel(const Tensor& x, const Tensor& y, const Angles& cosines, const Angles& sines, const Tensor& out,
                  double scale, int64_t which) {
  const Level& level = level_of(which);
  Views views;
  Task task = make_task(level, x, y, 0, cosines, sines, scale, views);
  task.kernel = views(out);
  prefer_huge_pages(out);
  run(level, level.kernel_forward, task);
}

Tensor kernel_forward(Tensor x, Tensor y, Angles cosines, Angles sines, double scale, int64_t which) {
  const Tensor out = empty_with(x, y.size(y.dim() - 2));
  write_kernel(dense(x), dense(y), cosines, sines, out, scale, which);
  return out;
}

std::tuple<Tensor, Tensor> kernel_backward(Tensor given_grad, Tensor given_x, Tensor given_y, Tensor given_out,
                                           Angles cosines, Angles sines, double scale, int64_t which) {
  const Tensor grad = dense(given_grad), x = dense(given_x), y = dense(given_y), out = dense(given_out);
  const Tensor dx = empty_as(x), dy = empty_as(y);
  const Level& level = level_of(which);
  Views views;
  Task task = make_task(level, x, y, 0, cosines, sines, scale, views);
  task.kernel = views(out);
  task.kernel_grad = views(grad);
  task.long_out = views(task.long_is_row ? dx : dy);
  prefer_huge_pages(task.long_is_row ? dx : dy);
  const int64_t stride = level.pad(task.type, task.width);
  const Scratch sums(shares_bytes(task, stride));
  task.short_sums = sums.get();
  run(level, level.kernel_backward, task);
  add_shares(level, task, sums.get(), task.width, stride, task.long_is_row ? dy : dx);
  return {dx, dy};
}

// `start`: what the sums of each matrix begin with, a row of value_width (only with a row of `out` a long row); or null.
void product(const Tensor& x, const Tensor& y, const Tensor& values, const Angles& cosines, const Angles& sines,
             const Tensor& out, const void* start, double scale, int64_t which) {
  const Level& level = level_of(which);
  Views views;
  Task task = make_task(level, x, y, values.size(values.dim() - 1), cosines, sines, scale, views);
  const int64_t stride = level.pad(task.type, task.value_width);
  if (task.long_is_row) {
    task.short_values = views(values);
    task.long_value_out = views(out);
    task.start = start;
    prefer_huge_pages(out);
    return run(level, level.matmul_forward, task);
  }
  task.long_values = views(values);
  const Scratch sums(shares_bytes(task, stride));
  task.short_value_sums = sums.get();
  run(level, level.matmul_forward, task);
  add_shares(level, task, sums.get(), task.value_width, stride, out);
}

Tensor matmul_forward(Tensor x, Tensor y, Tensor values, Angles cosines, Angles sines, double scale, int64_t which) {
  const Tensor out = empty_with(x, values.size(values.dim() - 1));
  product(dense(x), dense(y), dense(values), cosines, sines, out, nullptr, scale, which);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> matmul_backward(Tensor given_grad, Tensor given_x, Tensor given_y,
                                                   Tensor given_values, Angles cosines, Angles sines, double scale,
                                                   int64_t which) {
  const Tensor grad = dense(given_grad), x = dense(given_x), y = dense(given_y), values = dense(given_values);
  const Tensor dx = empty_as(x), dy = empty_as(y), dvalues = empty_as(values);
  const Level& level = level_of(which);
  Views views;
  Task task = make_task(level, x, y, values.size(values.dim() - 1), cosines, sines, scale, views);
  const int64_t stride = level.pad(task.type, task.width), value_stride = level.pad(task.type, task.value_width);
  const bool by_row = task.long_is_row;
  task.long_values = views(by_row ? grad : values);
  task.short_values = views(by_row ? values : grad);
  task.long_out = views(by_row ? dx : dy);
  prefer_huge_pages(by_row ? dx : dy);
  if (!by_row) task.long_value_out = views(dvalues);
  const Scratch sums(shares_bytes(task, stride)), value_sums(shares_bytes(task, by_row ? value_stride : 0));
  task.short_sums = sums.get();
  task.short_value_sums = value_sums.get();
  run(level, level.matmul_backward, task);
  add_shares(level, task, sums.get(), task.width, stride, by_row ? dy : dx);
  if (by_row) add_shares(level, task, value_sums.get(), task.value_width, value_stride, dvalues);
  return {dx, dy, dvalues};
}

void invert(Inverse& task, const Tensor& w, const Tensor& out, Views& views, const Level& level) {
  task.type = type_of(w);
  task.size = w.size(w.dim() - 1);
  task.w = views(w);
  task.out = views(out);
  const int64_t batch = w.numel() / (task.size * task.size);
  share_items(batch, 1, level.inverse_bytes(task), [&](int64_t first, int64_t last, void* scratch) {
    for (int64_t matrix = first; matrix < last; ++matrix) level.inverse(task, matrix, scratch);
  });
}

void inverse_forward(Tensor w, Tensor out, int64_t iterations, double eps, bool identity, int64_t which) {
  Views views;
  Inverse task{};
  task.iterations = iterations;
  task.eps = eps;
  task.identity = identity;
  invert(task, w, out, views, level_of(which));
}

void invert_back(const Tensor& grad, const Tensor& w, const Tensor& out, int64_t iterations, double eps, bool identity,
                 bool symmetric, int64_t which) {
  Views views;
  Inverse task{};
  task.iterations = iterations;
  task.eps = eps;
  task.identity = identity;
  task.symmetric = symmetric;
  task.grad = views(grad);
  invert(task, w, out, views, level_of(which));
}

void inverse_backward(Tensor grad, Tensor w, Tensor out, int64_t iterations, double eps, bool identity, int64_t which) {
  invert_back(grad, w, out, iterations, eps, identity, false, which);
}

// Rows that are summed by themselves; then these sums are put together in order.
constexpr int64_t kMomentRows = 256;

// The ranges of rows of a (batch, heads, rows, columns) tensor, head by head.
struct Ranges {
  int64_t batch, heads, rows, width, parts;
  Rows data;

  Ranges(const Tensor& x, Views& views)
      : batch(x.size(0)), heads(x.size(1)), rows(x.size(2)), width(x.size(3)),
        parts((rows + kMomentRows - 1) / kMomentRows), data(views(x)) {}

  int64_t of_head() const { return batch * parts; }
  int64_t head(int64_t range) const { return range / of_head(); }
  int64_t matrix(int64_t range) const { return range % of_head() / parts * heads + head(range); }
  int64_t begin(int64_t range) const { return range % parts * kMomentRows; }
  int64_t count(int64_t range) const { return rows - begin(range) < kMomentRows ? rows - begin(range) : kMomentRows; }

  // Calls f(range, its first number) on torch's threads.
  template <class F>
  void each(int64_t number_bytes, F f) const {
    torch::stable::parallel_for(0, heads * of_head(), 1 + kGrain / (1 + kMomentRows * width), [&](int64_t b, int64_t e) {
      for (int64_t range = b; range < e; ++range)
        f(range, static_cast<char*>(data.data) +
                     (data.offsets[matrix(range)] + begin(range) * data.stride) * number_bytes);
    });
  }
};

// Means and sums of squared differences of ranges, in order, into those of all of them.
template <class R>
void combine_moments(const Ranges& ranges, const R* moments, R* mean, R* variance) {
  for (int64_t head = 0; head < ranges.heads; ++head)
    for (int64_t j = 0; j < ranges.width; ++j) {
      double count = 0, m = 0, s = 0;
      for (int64_t r = head * ranges.of_head(); r < (head + 1) * ranges.of_head(); ++r) {
        const R* range = moments + r * 2 * ranges.width;
        const double more = static_cast<double>(ranges.count(r)), whole = count + more, step = range[j] - m;
        m += step * more / whole;
        s += range[ranges.width + j] + step * step * count * more / whole;
        count = whole;
      }
      mean[head * ranges.width + j] = static_cast<R>(m);
      variance[head * ranges.width + j] = static_cast<R>(s / count);
    }
}

template <class R>
void variance_typed(const Tensor& x, const Tensor& mean, const Tensor& variance, const Level& level) {
  Views views;
  const Ranges ranges(x, views);
  const Type type = type_of(x);
  std::vector<R> moments(ranges.heads * ranges.of_head() * 2 * ranges.width);
  ranges.each(stored_bytes(type), [&](int64_t range, const void* data) {
    R* to = moments.data() + range * 2 * ranges.width;
    level.column_moments(type, data, ranges.data.stride, ranges.count(range), ranges.width, to, to + ranges.width);
  });
  combine_moments<R>(ranges, moments.data(), static_cast<R*>(mean.data_ptr()), static_cast<R*>(variance.data_ptr()));
}

void variance_forward(Tensor x, Tensor mean, Tensor variance, int64_t which) {
  const auto typed = type_of(x) == Type::float64 ? variance_typed<double> : variance_typed<float>;
  typed(x, mean, variance, level_of(which));
}

void variance_backward(Tensor x, Tensor mean, Tensor factor, Tensor out, int64_t which) {
  const Level& level = level_of(which);
  Views views;
  const Ranges ranges(x, views);
  const Type type = type_of(x);
  const int64_t row = ranges.width * (type == Type::float64 ? 8 : 4), stored = stored_bytes(type);
  ranges.each(stored, [&](int64_t range, const void* data) {
    const int64_t first = (ranges.matrix(range) * ranges.rows + ranges.begin(range)) * ranges.width;
    level.scaled_differences(type, data, ranges.data.stride, ranges.count(range), ranges.width,
                             static_cast<char*>(mean.data_ptr()) + ranges.head(range) * row,
                             static_cast<char*>(factor.data_ptr()) + ranges.head(range) * row,
                             static_cast<char*>(out.data_ptr()) + first * stored);
  });
}

void turn(const Tensor& x, const Tensor& cosines, const Tensor& sines, int direction, const Tensor& out, int64_t which) {
  const Level& level = level_of(which);
  Views views;
  const Rows from = views(x);
  const int64_t rows = x.size(x.dim() - 2), half = x.size(x.dim() - 1) / 2;
  if (out.numel() == 0) return;
  torch::stable::parallel_for(0, out.numel() / (2 * half), 1 + kGrain / (2 * half), [&](int64_t begin, int64_t end) {
    level.rotate(type_of(x), from, cosines.data_ptr(), sines.data_ptr(), direction, rows, half, begin, end,
                 out.data_ptr());
  });
}

void rotate(Tensor x, Tensor cosines, Tensor sines, Tensor out, int64_t which) {
  turn(x, cosines, sines, 1, out, which);
}

// Runs the register-only loop on each of torch's threads; returns the elements of all of them.
int64_t peak(int64_t rounds, bool fused, int64_t which) {
  const Level& level = level_of(which);
  const int64_t threads = torch::stable::get_num_threads();
  std::vector<double> results(threads);
  std::vector<int64_t> elements(threads);
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) elements[t] = rounds * level.peak(rounds, fused, &results[t]);
  });
  int64_t total = 0;
  for (int64_t n : elements) total += n;
  return total;
}

}  // namespace
}  // namespace laplacianformer

#include "branch.h"

STABLE_TORCH_LIBRARY(laplacianformer_cpu, m) {
  m.def(
      "kernel_forward(Tensor x, Tensor y, Tensor? cosines, Tensor? sines, float scale, int level) -> Tensor");
  m.def(
      "kernel_backward(Tensor grad, Tensor x, Tensor y, Tensor out, Tensor? cosines, Tensor? sines, float scale, "
      "int level) -> (Tensor, Tensor)");
  m.def(
      "matmul_forward(Tensor x, Tensor y, Tensor values, Tensor? cosines, Tensor? sines, float scale, int level) "
      "-> Tensor");
  m.def(
      "matmul_backward(Tensor grad, Tensor x, Tensor y, Tensor values, Tensor? cosines, Tensor? sines, float scale, "
      "int level) -> (Tensor, Tensor, Tensor)");
  m.def("rotate(Tensor x, Tensor cosines, Tensor sines, Tensor(a!) out, int level) -> ()");
  m.def("inverse_forward(Tensor w, Tensor(a!) out, int iterations, float eps, bool identity, int level) -> ()");
  m.def(
      "inverse_backward(Tensor grad, Tensor w, Tensor(a!) out, int iterations, float eps, bool identity, int level) "
      "-> ()");
  m.def("variance_forward(Tensor x, Tensor(a!) mean, Tensor(b!) variance, int level) -> ()");
  m.def("variance_backward(Tensor x, Tensor mean, Tensor factor, Tensor(a!) out, int level) -> ()");
  m.def(
      "branch(Tensor q, Tensor k, Tensor v, Tensor? cosines, Tensor? sines, Tensor? cell_cosines, Tensor? cell_sines, "
      "Tensor? variance, Tensor? gains, float gain, int height, int width, int rows, int columns, float scale, float eps, "
      "float variance_eps, int iterations, int level) -> Tensor");
  m.def(
      "branch_forward(Tensor q, Tensor k, Tensor v, Tensor? cosines, Tensor? sines, Tensor? cell_cosines, "
      "Tensor? cell_sines, Tensor? gains, float gain, int height, int width, int rows, int columns, float scale, "
      "float eps, float variance_eps, int iterations, int level) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, "
      "Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "branch_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor mean, Tensor variance, Tensor kernel, "
      "Tensor landmarks, Tensor w, Tensor inverse, Tensor summed, Tensor values, Tensor folded, Tensor? cosines, "
      "Tensor? sines, Tensor? cell_cosines, Tensor? cell_sines, Tensor? gains, float gain, int height, int width, "
      "int rows, int columns, float scale, float eps, float variance_eps, int iterations, int level) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def("best_level() -> int");
  m.def("peak(int rounds, bool fused, int level) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CPU, m) {
  m.impl("kernel_forward", TORCH_BOX(&laplacianformer::kernel_forward));
  m.impl("kernel_backward", TORCH_BOX(&laplacianformer::kernel_backward));
  m.impl("matmul_forward", TORCH_BOX(&laplacianformer::matmul_forward));
  m.impl("matmul_backward", TORCH_BOX(&laplacianformer::matmul_backward));
  m.impl("inverse_forward", TORCH_BOX(&laplacianformer::inverse_forward));
  m.impl("inverse_backward", TORCH_BOX(&laplacianformer::inverse_backward));
  m.impl("variance_forward", TORCH_BOX(&laplacianformer::variance_forward));
  m.impl("variance_backward", TORCH_BOX(&laplacianformer::variance_backward));
  m.impl("rotate", TORCH_BOX(&laplacianformer::rotate));
  m.impl("branch", TORCH_BOX(&laplacianformer::branch));
  m.impl("branch_forward", TORCH_BOX(&laplacianformer::branch_forward));
  m.impl("branch_backward", TORCH_BOX(&laplacianformer::branch_backward));
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CompositeExplicitAutograd, m) {
  m.impl("best_level", TORCH_BOX(&laplacianformer::best_level));
  m.impl("peak", TORCH_BOX(&laplacianformer::peak));
}
