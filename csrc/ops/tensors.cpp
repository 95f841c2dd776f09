#include "ops/tensors.h"

#include <torch/csrc/stable/ops.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstddef>
#include <stdexcept>

namespace laplacianformer {

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

int64_t accumulation_bytes(Type type) { return type == Type::float64 ? 8 : 4; }

Rows Views::operator()(const Tensor& tensor) {
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

Tensor dense(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return tensor.size(last) <= 1 || tensor.stride(last) == 1 ? tensor : contiguous(tensor);
}

Tensor empty_with_columns(const Tensor& like, int64_t columns) {
  std::vector<int64_t> shape(like.dim(), columns);
  for (int64_t i = 0; i + 1 < like.dim(); ++i) shape[i] = like.size(i);
  return new_empty(like, shape);
}

Tensor empty_as(const Tensor& like) { return empty_with_columns(like, like.size(like.dim() - 1)); }

Tensor empty_floats(const Tensor& like, std::initializer_list<int64_t> shape) {
  return new_empty(like, std::vector<int64_t>(shape), torch::headeronly::ScalarType::Float);
}

#if defined(__linux__)
// Above this size malloc takes fresh memory from the system every time (glibc's largest DEFAULT_MMAP_THRESHOLD), and a
// page fault for each 4 KB of a result costs as much as computing it.
constexpr size_t kFresh = size_t{1} << 25;

void prefer_huge_pages(const Tensor& result) {
  constexpr uintptr_t kPage = uintptr_t{1} << 21;
  const size_t bytes = result.numel() * stored_bytes(type_of(result));
  if (bytes < kFresh) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(result.data_ptr());
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage, last = (begin + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // A hint: failing is no error.
}
#else
void prefer_huge_pages(const Tensor&) {}
#endif

}  // namespace laplacianformer
