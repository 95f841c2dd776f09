// The kernel, its product with values, and their gradients.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "levels/level.h"
#include "levels/tasks.h"
#include "matrices.h"
#include "rotation.h"

namespace check {

struct Shape {
  int64_t longs, shorts, width, values;
  double scale;
  bool rotated;
};

// One matrix in float64: x and y are the long and the short rows, u and v their values, p a gradient of the kernel.
struct Pairs {
  Matrix x, y, u, v, p, seen, kernel;
  double scale;

  Pairs(const Shape& s, const Matrix& angles)
      : x(random(s.longs, s.width)),
        y(random(s.shorts, s.width)),
        u(random(s.longs, s.values)),
        v(random(s.shorts, s.values)),
        p(random(s.longs, s.shorts)),
        seen(s.rotated ? rotated(x, angles, 1) : x),
        kernel(s.longs, s.shorts),
        scale(s.scale) {
    kernel = Matrix(s.longs, s.shorts, [&](int64_t i, int64_t j) {
      double distance = 0;
      for (int64_t k = 0; k < s.width; ++k) distance += std::fabs(seen(i, k) - y(j, k));
      return std::exp(-distance / scale);
    });
  }

  // The gradient of x as it is seen, or of y, from that of the kernel.
  Matrix gradient(const Matrix& of_kernel, bool of_longs) const {
    return Matrix(of_longs ? x.rows : y.rows, x.columns, [&](int64_t i, int64_t k) {
      double sum = 0;
      for (int64_t j = 0; j < (of_longs ? y.rows : x.rows); ++j) {
        const int64_t l = of_longs ? i : j, s = of_longs ? j : i;
        const double difference = seen(l, k) - y(s, k), sign = (difference > 0) - (difference < 0);
        sum -= of_kernel(l, s) * kernel(l, s) / scale * (of_longs ? sign : -sign);
      }
      return sum;
    });
  }
};

// Two matrices of this shape, their task, and its functions against what is expected.
class PairCheck {
 public:
  PairCheck(Report& report, const laplacianformer::Level& level, const Kind& kind, const Shape& shape)
      : report_(report),
        level_(level),
        kind_(kind),
        shape_(shape),
        name_(std::string(kind.name) + " " + std::to_string(shape.longs) + " x " + std::to_string(shape.shorts) +
              " x " + std::to_string(shape.width) + ", scale " + std::to_string(shape.scale)),
        rotation_(kind, shape.longs, shape.width / 2),
        pairs_{Pairs(shape, rotation_.angles), Pairs(shape, rotation_.angles)},
        x_(kind, all(&Pairs::x)),
        y_(kind, all(&Pairs::y)),
        u_(kind, all(&Pairs::u)),
        v_(kind, all(&Pairs::v)) {
    task_.type = task_.short_type = kind.type;
    task_.batch = 2;
    task_.longs = shape.longs;
    task_.shorts = shape.shorts;
    task_.width = shape.width;
    task_.value_width = shape.values;
    task_.scale = shape.scale;
    task_.split_rows = 128;
    task_.splits = (shape.longs + 127) / 128;
    task_.longs_in = x_.view();
    task_.shorts_in = y_.view();
    if (shape.rotated) task_.rotation = rotation_.view();
  }

  // Kernel matrices with one row per long row, or one column.
  void kernel(bool long_is_row) {
    const auto laid_out = [&](const Matrix& a) { return long_is_row ? a : transposed(a); };
    const auto kernels = each([&](const Pairs& a) { return laid_out(a.kernel); });
    Stored kernel(kind_, 2, kernels[0].rows, kernels[0].columns);
    task_.long_is_row = long_is_row;
    task_.kernel = kernel.view();
    run(level_.kernel_forward);
    report_.compare("kernel of " + name_, kernel, kernels, kind_.rounding);
    Stored gradient(kind_, each([&](const Pairs& a) { return laid_out(a.p); }));
    task_.kernel_grad = gradient.view();
    gradients("kernel", level_.kernel_backward, [](const Pairs& a) { return a.p; });
  }

  // kernel @ v, or kernel' @ u, and the gradients of the features from u v'.
  void product(bool by_long) {
    const auto expected = each([&](const Pairs& a) {
      return by_long ? check::product(a.kernel, a.v) : check::product(transposed(a.kernel), a.u);
    });
    Stored out(kind_, 2, shape_.longs, shape_.values);
    Sums sums(*this, shape_.values);
    task_.long_values = u_.view();
    task_.short_values = v_.view();
    task_.long_value_out = by_long ? out.view() : laplacianformer::Rows{};
    task_.short_value_sums = sums.get();
    const auto compare = [&](const char* what) {
      Stored found = by_long ? out : sums.added();
      report_.compare(what + name_, found, expected, kind_.rounding);
    };
    run(level_.matmul_forward);
    compare("product of ");
    gradients("product", level_.matmul_backward, [](const Pairs& a) { return check::product(a.u, transposed(a.v)); });
    compare("product in the gradient of ");
  }

  // The same with the kernel given, and a gradient that also comes through the variance: slope (kernel - mean).
  void stored() {
    const Matrix start = random(2, shape_.values), slope = random(2, shape_.shorts), mean = random(2, shape_.shorts);
    Stored kernel(kFloat32, all(&Pairs::kernel)), out(kFloat32, 2, shape_.longs, shape_.values);
    Stored starts(kFloat32, {start}, 0), slopes(kFloat32, {slope}, 0), means(kFloat32, {mean}, 0);
    Sums sums(*this, shape_.values);
    const int64_t padded = level_.pad(Type::float32, shape_.values);
    std::vector<float> totals(2 * task_.splits * padded);
    task_.long_is_row = true;
    task_.kernel = kernel.view();
    task_.long_values = u_.view();
    task_.short_values = v_.view();
    task_.long_value_out = out.view();
    task_.short_value_sums = sums.get();
    task_.value_totals = totals.data();
    task_.start = starts.data();
    task_.slopes = slopes.data<float>();
    task_.means = means.data<float>();
    run(level_.stored_forward);
    report_.compare("stored product of " + name_, out, each([&](const Pairs& a) {
                      const Matrix plain = check::product(a.kernel, a.v);
                      const int64_t b = &a - pairs_;
                      return Matrix(plain.rows, plain.columns,
                                    [&](int64_t i, int64_t j) { return plain(i, j) + start(b, j); });
                    }),
                    kind_.rounding);
    run(level_.stored_transposed);
    Stored added = sums.added();
    report_.compare("stored transposed product of " + name_, added,
                    each([](const Pairs& a) { return check::product(transposed(a.kernel), a.u); }), kind_.rounding);
    gradients("stored product", level_.stored_backward, [&](const Pairs& a) {
      const Matrix outer = check::product(a.u, transposed(a.v));
      const int64_t b = &a - pairs_;
      return Matrix(outer.rows, outer.columns,
                    [&](int64_t i, int64_t j) { return outer(i, j) + slope(b, j) * (a.kernel(i, j) - mean(b, j)); });
    });
  }

 private:
  template <class F>
  std::vector<Matrix> each(F f) const {
    return {f(pairs_[0]), f(pairs_[1])};
  }
  std::vector<Matrix> all(Matrix Pairs::* member) const { return {pairs_[0].*member, pairs_[1].*member}; }

  void run(laplacianformer::PairFunction* function) {
    Scratch scratch(level_.pair_bytes(task_));
    function(task_, 0, task_.items(), scratch.get());
  }

  // Partial sums of the short side: one matrix for each item, added up by the level.
  class Sums {
   public:
    Sums(const PairCheck& check, int64_t width)
        : check_(check),
          width_(width),
          stride_(check.level_.pad(check.kind_.type, width)),
          data_(check.task_.items() * check.shape_.shorts * stride_ * 8) {}

    void* get() { return data_.get(); }

    Stored added() {
      const int64_t splits = check_.task_.splits, shorts = check_.shape_.shorts;
      const int64_t bytes = check_.kind_.type == Type::float64 ? 8 : 4;
      Stored out(check_.kind_, 2, shorts, width_, 0);
      for (int64_t row = 0; row < 2 * shorts; ++row)
        check_.level_.add_rows(
            check_.kind_.type,
            static_cast<char*>(get()) + (row / shorts * splits * shorts + row % shorts) * stride_ * bytes,
            shorts * stride_, splits, width_, out.data<char>() + row * width_ * check_.kind_.bytes);
      return out;
    }

   private:
    const PairCheck& check_;
    const int64_t width_, stride_;
    Scratch data_;
  };

  // Of both sides, from the gradient of the kernel that `of_kernel` returns for a matrix.
  template <class F>
  void gradients(const char* what, laplacianformer::PairFunction* function, F of_kernel) {
    Stored longs(kind_, 2, shape_.longs, shape_.width);
    Sums shorts(*this, shape_.width);
    task_.long_out = longs.view();
    task_.short_sums = shorts.get();
    run(function);
    Stored added = shorts.added();
    const std::string name = std::string(what) + " of " + name_;
    report_.compare("gradient of the long rows of the " + name, longs, each([&](const Pairs& a) {
                      const Matrix seen = a.gradient(of_kernel(a), true);
                      return shape_.rotated ? rotated(seen, rotation_.angles, -1) : seen;
                    }),
                    kind_.rounding);
    report_.compare("gradient of the short rows of the " + name, added,
                    each([&](const Pairs& a) { return a.gradient(of_kernel(a), false); }), kind_.rounding);
  }

  Report& report_;
  const laplacianformer::Level& level_;
  const Kind kind_;
  const Shape shape_;
  const std::string name_;
  Rotation rotation_;
  const Pairs pairs_[2];
  Stored x_, y_, u_, v_;
  laplacianformer::PairTask task_{};
};

}  // namespace check
