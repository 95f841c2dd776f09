// Tensors without torch: a shape, strides, and memory that is shared or belongs to someone else. They have the names of
// LibTorch's stable ABI, so that the files of ops/ make a library without torch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace torch::headeronly {

enum class ScalarType { Float, Double, BFloat16, Half };

}  // namespace torch::headeronly

namespace torch::stable {

using headeronly::ScalarType;

class Tensor {
 public:
  static constexpr int64_t kAxes = 4;  // At most.
  using Lengths = std::vector<int64_t>;

  // Memory of someone else.
  Tensor(void* data, ScalarType type, const Lengths& sizes, const Lengths& strides)
      : data_(data), type_(type), dim_(static_cast<int64_t>(sizes.size())) {
    if (dim_ > kAxes) throw std::invalid_argument("tensors have at most 4 axes");
    std::copy(sizes.begin(), sizes.end(), sizes_.begin());
    std::copy(strides.begin(), strides.end(), strides_.begin());
  }

  // Dense, not initialised.
  Tensor(ScalarType type, const Lengths& sizes) : Tensor(nullptr, type, sizes, dense_strides(sizes)) {
    const auto release = [](void* memory) { ::operator delete(memory, std::align_val_t(64)); };
    memory_ = std::shared_ptr<void>(::operator new(bytes(), std::align_val_t(64)), release);
    data_ = memory_.get();
  }

  int64_t dim() const { return dim_; }
  int64_t size(int64_t axis) const { return sizes_[axis]; }
  int64_t stride(int64_t axis) const { return strides_[axis]; }
  ScalarType scalar_type() const { return type_; }
  void* data_ptr() const { return data_; }

  int64_t numel() const {
    int64_t count = 1;
    for (int64_t axis = 0; axis < dim_; ++axis) count *= sizes_[axis];
    return count;
  }

  bool is_contiguous() const {
    for (int64_t axis = dim_ - 1, expected = 1; axis >= 0; expected *= sizes_[axis--])
      if (sizes_[axis] != 1 && strides_[axis] != expected) return false;
    return true;
  }

  size_t bytes() const {
    const bool wide = type_ == ScalarType::Double, whole = type_ == ScalarType::Float;
    return static_cast<size_t>(numel()) * (wide ? 8 : whole ? 4 : 2);
  }

  void swap_axes(int64_t a, int64_t b) {
    std::swap(sizes_[a], sizes_[b]);
    std::swap(strides_[a], strides_[b]);
  }

 private:
  static Lengths dense_strides(const Lengths& sizes) {
    Lengths strides(sizes.size(), 1);
    for (size_t axis = sizes.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * sizes[axis];
    return strides;
  }

  void* data_;
  ScalarType type_;
  int64_t dim_;
  std::array<int64_t, kAxes> sizes_{}, strides_{};
  std::shared_ptr<void> memory_;
};

inline Tensor new_empty(const Tensor& like, const std::vector<int64_t>& shape,
                        std::optional<ScalarType> type = std::nullopt) {
  return Tensor(type.value_or(like.scalar_type()), shape);
}

inline Tensor new_zeros(const Tensor& like, const std::vector<int64_t>& shape) {
  const Tensor zeros(like.scalar_type(), shape);
  std::memset(zeros.data_ptr(), 0, zeros.bytes());
  return zeros;
}

inline Tensor transpose(Tensor tensor, int64_t a, int64_t b) {
  tensor.swap_axes(a, b);
  return tensor;
}

// Nothing is copied or converted here: what onnxruntime gives is dense and float32.
inline Tensor contiguous(const Tensor& tensor) {
  if (!tensor.is_contiguous()) throw std::invalid_argument("expected a dense tensor");
  return tensor;
}

inline Tensor to(const Tensor& tensor, ScalarType type) {
  if (tensor.scalar_type() != type) throw std::invalid_argument("expected a tensor of float32");
  return tensor;
}

}  // namespace torch::stable
