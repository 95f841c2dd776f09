// The landmark values L of one head, F with the whitening folded into them, and the gradients of both, in float32:
//   L = (m/N) X S        F = gain/m (D L - mean(D L))        mean(L)
// with S the summed values, X the inverse (without it, L = S) and D the factors of the whitening. L and F are zero for
// landmarks that are not there, and m counts those that are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/panel.h"
#include "kernels/product.h"
#include "kernels/simd.h"
#include "levels/tasks.h"

namespace laplacianformer {
namespace {

// The matrices of one head, in rows of whole vectors with zeros after the last number.
class Folder {
  using V = Vec<float>;

 public:
  // With a null base, only bytes() may be called.
  Folder(const Folding& folding, void* base)
      : f_(folding), m_(folding.landmarks), wide_(padded<float>(folding.width)), high_(padded<float>(m_)) {
    summed_ = take(base, m_ * wide_);
    values_ = take(base, m_ * wide_);
    grads_ = take(base, m_ * wide_);
    columns_ = take(base, f_.width * high_);
    square_ = take(base, m_ * high_);
    centre_ = take(base, wide_);
    total_ = take(base, wide_);
    zeros_ = take(base, wide_ > high_ ? wide_ : high_);
  }

  size_t bytes() const { return numbers_ * sizeof(float); }

  void forward() {
    copy_rows<float>(f_.summed, f_.summed_stride, m_, f_.width, f_.inverse ? summed_ : values_, wide_);
    if (f_.inverse) {
      clear(zeros_, wide_);
      product(Left<float>{f_.inverse, m_, 1, m_, 0}, m_, m_, summed_, wide_, Sums<float>{zeros_, 0, values_, wide_});
      for (int64_t k = 0; k < m_ * wide_; ++k) values_[k] *= f_.fraction;
    }
    clear_absent(values_);
    const float mean = this->mean();
    for (int64_t k = 0; k < wide_; k += kWidth<float>) {
      const int64_t n = f_.width - k;
      V total = splat(0.0f), centre = splat(0.0f);
      for (int64_t j = 0; j < m_; ++j) {
        total += load(values_ + j * wide_ + k);
        centre += whitened(j, k);
      }
      store_part<float>(f_.mean + k, total * mean, n);
      centre = centre * mean;
      for (int64_t j = 0; j < m_; ++j) {
        if (f_.values) store_part<float>(f_.values + j * f_.width + k, load(values_ + j * wide_ + k), n);
        const V centred = present(j) ? whitened(j, k) - centre : splat(0.0f);
        store_part<float>(f_.folded + j * f_.width + k, centred * (f_.gain * mean), n);
      }
    }
  }

  // With e_j the dot product of L_j and of the gradient of F, centred: d factor = gain/m e, d gain = sum factor/m e.
  void backward(const FoldingGradients& u) {
    copy_rows<float>(u.d_folded, f_.width, m_, f_.width, grads_, wide_);
    const bool solved = f_.inverse != nullptr;
    copy_rows<float>(solved ? f_.values : f_.summed, solved ? f_.width : f_.summed_stride, m_, f_.width, values_,
                     wide_);
    clear_absent(grads_);
    clear(centre_, wide_);
    for (int64_t j = 0; j < m_; ++j)
      for (int64_t k = 0; k < wide_; ++k) centre_[k] += grads_[j * wide_ + k];
    const float mean = this->mean(), gain = f_.gain * mean;
    for (int64_t k = 0; k < wide_; ++k) centre_[k] *= mean;
    for (int64_t k = 0; k < wide_; ++k) total_[k] = k < f_.width ? mean * u.d_mean[k] : 0.0f;
    float d_gain = 0;
    for (int64_t j = 0; j < m_; ++j) {
      float* grad = grads_ + j * wide_;
      u.d_factor[j] = 0;
      if (!present(j)) continue;
      V products = splat(0.0f);
      for (int64_t k = 0; k < wide_; k += kWidth<float>) {
        const V centred = load(grad + k) - load(centre_ + k);
        products += centred * load(values_ + j * wide_ + k);
        store(grad + k, centred * (factor(j) * gain) + load(total_ + k));
      }
      float e = 0;
      for (int i = 0; i < kWidth<float>; ++i) e += products[i];
      u.d_factor[j] = gain * e;
      d_gain += factor(j) * mean * e;
    }
    *u.d_gain = d_gain;
    if (solved) {
      solve_backward(u);
    } else {
      write(grads_, wide_, f_.width, 1.0f, u.d_summed);
    }
  }

 private:
  bool present(int64_t j) const { return !f_.members || f_.members[j] > 0; }

  float mean() const { return f_.count ? 1.0f / static_cast<float>(f_.count) : 0.0f; }

  // Zeros for landmarks that are not there.
  void clear_absent(float* rows) const {
    for (int64_t j = 0; j < m_; ++j)
      if (!present(j)) clear(rows + j * wide_, wide_);
  }

  float factor(int64_t j) const { return f_.factor ? f_.factor[j] : 1.0f; }

  // D L, rounded, so that with a single landmark it equals its mean.
  V whitened(int64_t j, int64_t k) const { return in_register<float>(load(values_ + j * wide_ + k) * factor(j)); }

  // From the gradient of L, in `grads_`, those of S = (m/N) X' dL and X = (m/N) dL S'.
  void solve_backward(const FoldingGradients& u) {
    clear(zeros_, wide_ > high_ ? wide_ : high_);
    product(Left<float>{f_.inverse, 1, m_, m_, 0}, m_, m_, grads_, wide_, Sums<float>{zeros_, 0, values_, wide_});
    write(values_, wide_, f_.width, f_.fraction, u.d_summed);
    clear(columns_, f_.width * high_);
    for (int64_t j = 0; j < m_; ++j)
      for (int64_t k = 0; k < f_.width; ++k) columns_[k * high_ + j] = f_.summed[j * f_.summed_stride + k];
    product(Left<float>{grads_, wide_, 1, f_.width, 0}, m_, f_.width, columns_, high_,
            Sums<float>{zeros_, 0, square_, high_});
    write(square_, high_, m_, f_.fraction, u.d_inverse);
  }

  float* take(void* base, int64_t count) {
    float* part = static_cast<float*>(base) + numbers_;
    numbers_ += (count + 15) / 16 * 16;
    return part;
  }

  static void clear(float* x, int64_t count) {
    for (int64_t k = 0; k < count; ++k) x[k] = 0;
  }

  void write(const float* from, int64_t stride, int64_t width, float factor, float* to) const {
    for (int64_t j = 0; j < m_; ++j)
      for (int64_t k = 0; k < width; ++k) to[j * width + k] = factor * from[j * stride + k];
  }

  const Folding& f_;
  const int64_t m_, wide_, high_;
  int64_t numbers_ = 0;
  float *summed_, *values_, *grads_, *columns_, *square_, *centre_, *total_, *zeros_;
};

}  // namespace
}  // namespace laplacianformer
