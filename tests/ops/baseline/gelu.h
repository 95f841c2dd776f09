// GELU and its gradient, with and without a bias, against the complementary error function in float64.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "levels/level.h"
#include "levels/tasks.h"
#include "matrices.h"

namespace check {

// Phi(x). Not by 1 + erf, which has no digits left for x far below 0.
inline double distribution(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

inline double slope(double x) { return distribution(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)); }

// Inputs from -16 to 16, beyond where GELU is 0 or x.
inline void check_gelu(Report& report, const laplacianformer::Level& level, const Kind& kind, int64_t width,
                       bool biased) {
  const int64_t rows = 40;
  Matrix x = random(rows, width);
  for (double& number : x.data) number *= 8;
  const Matrix bias = random(1, width), gradient = random(rows, width);
  const auto at = [&](int64_t i, int64_t k) { return x(i, k) + (biased ? bias(0, k) : 0); };
  Stored x_stored(kind, {x}, 0), bias_stored(kind, {bias}, 0), gradient_stored(kind, {gradient}, 0);
  Stored out(kind, 1, rows, width, 0), activated(kind, 1, rows, width, 0), back(kind, 1, rows, width, 0);
  laplacianformer::GeluTask task{kind.type,  x_stored.data(), biased ? bias_stored.data() : nullptr, nullptr, width,
                                 out.data(), nullptr};
  level.gelu(task, 0, rows * width);
  const std::string name = std::string("GELU of ") + kind.name + (biased ? " with a bias" : "");
  const Matrix expected(rows, width, [&](int64_t i, int64_t k) { return at(i, k) * distribution(at(i, k)); });
  report.compare(name, out, {expected}, kind.rounding);
  task.grad = gradient_stored.data(), task.out = back.data(), task.activated = activated.data();
  level.gelu(task, 0, rows * width);
  report.compare(name + " beside its gradient", activated, {expected}, kind.rounding);
  report.compare("gradient of " + name, back,
                 {Matrix(rows, width, [&](int64_t i, int64_t k) { return gradient(i, k) * slope(at(i, k)); })},
                 kind.rounding);
  if (kind.type != laplacianformer::Type::float32) return;
  // Small results have their digits, too.
  const Matrix got = out.matrix(0);
  Stored relative(kFloat32, {Matrix(rows, width, [&](int64_t i, int64_t k) {
                    return std::fabs(expected(i, k)) > 0x1p-120 ? got(i, k) / expected(i, k) : 1;
                  })});
  report.compare("relative error of " + name, relative, {Matrix(rows, width, [](int64_t, int64_t) { return 1; })},
                 8 * 0x1p-24);
}

}  // namespace check
