// Tensors as the ops see them: their types, their rows, and new ones.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "levels/tasks.h"

namespace laplacianformer {

using torch::stable::Tensor;

Type type_of(const Tensor& tensor);
int64_t stored_bytes(Type type);
int64_t accumulation_bytes(Type type);

// Owns the offsets of the matrices of its tensors, which Rows point to.
class Views {
 public:
  Rows operator()(const Tensor& tensor);

 private:
  std::vector<std::vector<int64_t>> offsets_;
};

// The data of a float32 tensor.
inline float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

// With unit stride in the last dimension: the tensor itself, or a copy.
Tensor dense(const Tensor& tensor);

// Dense tensors of the shape and dtype of `like`, the first with another number of columns.
Tensor empty_with_columns(const Tensor& like, int64_t columns);
Tensor empty_as(const Tensor& like);

// A dense float32 tensor.
Tensor empty_floats(const Tensor& like, std::initializer_list<int64_t> shape);

// Asks the system for huge pages for a large result that was just allocated.
void prefer_huge_pages(const Tensor& result);

// The rotation of the rows of one side, (rows, width / 2) each, or none; (batch, rows, width / 2) for landmarks with a
// mask.
struct Rotation {
  std::optional<Tensor> cosines, sines;

  explicit operator bool() const { return cosines.has_value(); }
  RotationTable table() const {
    return cosines ? RotationTable{cosines->data_ptr(), sines->data_ptr()} : RotationTable{};
  }
};

}  // namespace laplacianformer
