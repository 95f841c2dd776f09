// Newton-Schulz iteration for the inverse of A = W + eps I, and its adjoint: one matrix at a time, in the cache.
//   X_{k+1} = X_k (2 I - A X_k)
// Matrices here have `stride` numbers per row, zero beyond their size, so that products run on whole vectors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/convert.h"
#include "kernels/panel.h"
#include "kernels/product.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// As in the reference: X_0 = 1.5 / norminf(A) I, or A' / (norm1(A) norminf(A)).
constexpr double kIdentityFactor = 1.5;

template <class T>
class Inverter {
  using R = Accumulation<T>;

 public:
  // With a null base, only bytes() may be called.
  Inverter(const InverseTask& task, void* base)
      : task_(task), size_(task.size), stride_(padded<R>(task.size)), base_(static_cast<R*>(base)) {
    const int64_t iterates = task.grad.data ? task.iterations : 2;
    iterates_ = used_;
    used_ += iterates * numbers();
    R** const matrices[] = {&negative_, &transposed_, &work_, &left_, &right_, &grad_, &sum_};
    for (R** matrix : matrices) {
      *matrix = base_ + used_;
      used_ += numbers();
    }
    rows_ = base_ + used_;
    columns_ = rows_ + stride_;
    used_ += 2 * stride_;
  }

  size_t bytes() const { return used_ * sizeof(R); }

  void forward(int64_t matrix) {
    begin(matrix);
    for (int64_t k = 1; k < task_.iterations; ++k) step(iterate(k % 2), iterate((k + 1) % 2));
    write(iterate(task_.iterations % 2), matrix);
  }

  // The gradient of A from that of the result. The iterates are recomputed.
  void backward(int64_t matrix) {
    begin(matrix);
    for (int64_t k = 1; k + 1 < task_.iterations; ++k) step(iterate(k), iterate(k + 1));
    read(task_.grad, matrix, grad_, 1);
    clear(sum_);
    if (task_.symmetric) symmetrize(grad_, R(0.5));
    for (int64_t k = task_.iterations - 1; k >= 0; --k)
      task_.symmetric ? step_back_symmetric(iterate(k)) : step_back(iterate(k));
    start_back();
    write(sum_, matrix);
  }

 private:
  int64_t numbers() const { return size_ * stride_; }
  R* iterate(int64_t k) { return base_ + iterates_ + k * numbers(); }

  void clear(R* x) {
    for (int64_t i = 0; i < numbers(); ++i) x[i] = 0;
  }

  void read(const Rows& rows, int64_t matrix, R* to, R factor) {
    for (int64_t i = 0; i < size_; ++i) {
      const T* from = row_of<const T>(rows, matrix, i);
      for (int64_t j = 0; j < stride_; ++j) to[i * stride_ + j] = j < size_ ? factor * widen(from[j]) : R(0);
    }
  }

  void write(const R* from, int64_t matrix) {
    for (int64_t i = 0; i < size_; ++i) narrow_row(from + i * stride_, size_, row_of<T>(task_.out, matrix, i));
  }

  void transpose_to(const R* from, R* to) {
    clear(to);
    for (int64_t i = 0; i < size_; ++i)
      for (int64_t j = 0; j < size_; ++j) to[j * stride_ + i] = from[i * stride_ + j];
  }

  // out += left @ right
  void multiply(const R* left, const R* right, R* out) {
    product(Left<R>{left, stride_, 1, size_, 0}, size_, size_, right, stride_, add_to(out, stride_));
  }

  // -A, the norms, and the first two iterates (the second only if there is room for it).
  void begin(int64_t matrix) {
    read(task_.w, matrix, negative_, -1);
    for (int64_t i = 0; i < size_; ++i) negative_[i * stride_ + i] -= static_cast<R>(task_.eps);
    row_norm_ = largest_sum(negative_, rows_);
    R *x = iterate(0), *next = iterate(1);
    const bool both = task_.iterations > 1 || !task_.grad.data;
    if (task_.identity) {
      const R factor = static_cast<R>(kIdentityFactor) / row_norm_;
      clear(x);
      for (int64_t i = 0; i < size_; ++i) x[i * stride_ + i] = factor;
      if (!both) return;
      for (int64_t i = 0; i < numbers(); ++i) next[i] = factor * (factor * negative_[i]);
      for (int64_t i = 0; i < size_; ++i) next[i * stride_ + i] += 2 * factor;
    } else {
      transpose_to(negative_, x);
      column_norm_ = largest_sum(x, columns_);
      for (int64_t i = 0; i < numbers(); ++i) x[i] /= -(row_norm_ * column_norm_);
      if (both) step(x, next);
    }
  }

  // next = 2 x - x A x
  void step(const R* x, R* next) {
    clear(work_);
    multiply(negative_, x, work_);
    for (int64_t i = 0; i < numbers(); ++i) next[i] = 2 * x[i];
    multiply(x, work_, next);
  }

  // With G the gradient of the next iterate: sum -= X' G X', G = 2 G - G X' A' - A' X' G.
  void step_back(const R* x) {
    clear(left_);
    clear(right_);
    clear(work_);
    transpose_to(x, transposed_);
    multiply(transposed_, grad_, left_);
    multiply(grad_, transposed_, right_);
    multiply(left_, transposed_, work_);
    for (int64_t i = 0; i < numbers(); ++i) {
      sum_[i] -= work_[i];
      grad_[i] *= 2;
    }
    transpose_to(negative_, transposed_);
    multiply(right_, transposed_, grad_);
    multiply(transposed_, left_, grad_);
  }

  // The same for symmetric A, X and G.
  void step_back_symmetric(const R* x) {
    clear(left_);
    clear(right_);
    clear(work_);
    multiply(x, grad_, left_);
    multiply(left_, x, work_);
    multiply(negative_, left_, right_);
    for (int64_t i = 0; i < numbers(); ++i) sum_[i] -= work_[i];
    symmetrize(right_, R(1));
    for (int64_t i = 0; i < numbers(); ++i) grad_[i] = 2 * grad_[i] + right_[i];
  }

  // factor (x + x'), in place.
  void symmetrize(R* x, R factor) {
    for (int64_t i = 0; i < size_; ++i)
      for (int64_t j = 0; j <= i; ++j)
        x[i * stride_ + j] = x[j * stride_ + i] = factor * (x[i * stride_ + j] + x[j * stride_ + i]);
  }

  // Adds the gradient of A through the first iterate, whose own gradient is in grad_.
  void start_back() {
    split_gradient(row_norm_, rows_);
    R along = 0;
    if (task_.identity) {
      for (int64_t i = 0; i < size_; ++i) along += grad_[i * stride_ + i];
      const R factor = static_cast<R>(kIdentityFactor) / (row_norm_ * row_norm_) * along;
      add_signs([&](int64_t i, int64_t) { return -factor * rows_[i]; });
    } else {
      const R whole = row_norm_ * column_norm_;
      split_gradient(column_norm_, columns_);
      for (int64_t i = 0; i < size_; ++i)
        for (int64_t j = 0; j < size_; ++j) along -= grad_[i * stride_ + j] * negative_[j * stride_ + i];
      along /= whole;
      for (int64_t i = 0; i < size_; ++i)
        for (int64_t j = 0; j < size_; ++j) sum_[i * stride_ + j] += grad_[j * stride_ + i] / whole;
      add_signs([&](int64_t i, int64_t j) { return -along * (rows_[i] / row_norm_ + columns_[j] / column_norm_); });
    }
  }

  // sum_ij += sign(a_ij) weight(i, j)
  template <class F>
  void add_signs(F weight) {
    for (int64_t i = 0; i < size_; ++i)
      for (int64_t j = 0; j < size_; ++j) {
        const R a = -negative_[i * stride_ + j];
        if (a != 0) sum_[i * stride_ + j] += a > 0 ? weight(i, j) : -weight(i, j);
      }
  }

  // Writes the absolute sums of the rows and returns the largest, or NaN if there is one.
  R largest_sum(const R* x, R* sums) {
    R largest = 0;
    for (int64_t i = 0; i < size_; ++i) {
      R sum = 0;
      for (int64_t j = 0; j < size_; ++j) sum += x[i * stride_ + j] < 0 ? -x[i * stride_ + j] : x[i * stride_ + j];
      sums[i] = sum;
      if (sum > largest || sum != sum) largest = sum;
    }
    return largest;
  }

  // Turns sums into the gradient of the largest with respect to each: split evenly among those that tie for it.
  void split_gradient(R largest, R* sums) {
    R ties = 0;
    for (int64_t i = 0; i < size_; ++i) ties += sums[i] == largest ? R(1) : R(0);
    for (int64_t i = 0; i < size_; ++i) sums[i] = sums[i] == largest ? 1 / ties : R(0);
  }

  const InverseTask& task_;
  const int64_t size_, stride_;
  R* const base_;
  int64_t used_ = 0, iterates_ = 0;
  R *negative_, *transposed_, *work_, *left_, *right_, *grad_, *sum_, *rows_, *columns_;
  R row_norm_ = 0, column_norm_ = 0;
};

}  // namespace
}  // namespace laplacianformer
