// The kernels of the baseline against float64, without torch: for machines that have no more than a compiler, and for
// emulators. Prints what fails; the exit code is 0 if nothing does.
//
//   c++ -std=c++17 -O3 -Icsrc tests/ops/baseline/main.cpp csrc/levels/baseline.cpp -o baseline && ./baseline
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gelu.h"
#include "levels/level.h"
#include "levels/tasks.h"
#include "matrices.h"
#include "pairs.h"
#include "rotation.h"

namespace check {
namespace {

using namespace laplacianformer;

const Level& level = level_baseline;

// Widths of whole vectors and others, several blocks and chunks, both forms of the distance, one of each.
void check_pairs(Report& report) {
  const Shape shapes[] = {{300, 49, 32, 32, 4, true},
                          {131, 67, 9, 3, 0.5, false},
                          {130, 5, 70, 16, 16, false},
                          {20, 31, 64, 33, 16, false},
                          {1, 1, 1, 1, 4, false}};
  for (const Shape& shape : shapes)
    for (const Kind& kind : kKinds) {
      for (const bool flag : {true, false}) {
        PairCheck(report, level, kind, shape).kernel(flag);
        PairCheck(report, level, kind, shape).product(flag);
      }
      if (kind.type == Type::float32 && !shape.rotated) PairCheck(report, level, kind, shape).stored();
    }
}

// ---- Newton-Schulz ----

Matrix inverse(const Matrix& w, const InverseTask& task) {
  const int64_t n = w.rows;
  const Matrix a(n, n, [&](int64_t i, int64_t j) { return w(i, j) + (i == j ? task.eps : 0); });
  double rows = 0, columns = 0;
  for (int64_t i = 0; i < n; ++i) {
    double row = 0, column = 0;
    for (int64_t j = 0; j < n; ++j) row += std::fabs(a(i, j)), column += std::fabs(a(j, i));
    rows = std::fmax(rows, row), columns = std::fmax(columns, column);
  }
  Matrix x(n, n, [&](int64_t i, int64_t j) {
    return task.identity ? (i == j ? 1.5 / rows : 0) : a(j, i) / (rows * columns);
  });
  for (int64_t k = 0; k < task.iterations; ++k) x = added(added(x, 1, x), -1, product(x, product(a, x)));
  return x;
}

void check_inverse(Report& report, const Kind& kind, int64_t size, bool identity, bool symmetric) {
  const Matrix half = random(size, size), gradient = random(size, size);
  Matrix w = added(half, 1, transposed(half));
  for (int64_t i = 0; i < size; ++i) w(i, i) += 4 * static_cast<double>(size);
  if (!symmetric) w = added(w, 0.25, half);
  Stored w_stored(kind, {w}), gradient_stored(kind, {gradient}), out(kind, 1, size, size);
  InverseTask task{};
  task.type = kind.type;
  task.size = size;
  task.iterations = 6;
  task.eps = 1e-2;
  task.identity = identity;
  task.w = w_stored.view();
  task.out = out.view();
  const auto run = [&] {
    Scratch scratch(level.inverse_bytes(task));
    level.inverse(task, 0, scratch.get());
  };
  const std::string name = std::string("inverse in ") + kind.name + " of size " + std::to_string(size);
  run();
  report.compare(name, out, {inverse(w, task)}, 10 * kind.rounding);
  task.grad = gradient_stored.view();
  task.symmetric = symmetric;
  run();
  Matrix direction = random(size, size);
  if (symmetric) direction = added(direction, 1, transposed(direction));
  report.derivative(
      "gradient of the " + name, dot(out.matrix(0), direction),
      [&](double step) { return dot(gradient, inverse(added(w, step, direction), task)); }, 1e-3);
}

// ---- the values of landmarks ----

struct Folded {
  Matrix values, folded, mean;
};

Folded fold(const Matrix& summed, const Matrix& inverse, const Matrix& factor, double fraction, double gain) {
  const int64_t m = summed.rows, width = summed.columns;
  Matrix values = product(inverse, summed);
  for (double& value : values.data) value *= fraction;
  const double part = 1 / static_cast<double>(m);
  const auto column_mean = [&](int64_t k, bool whitened) {
    double sum = 0;
    for (int64_t j = 0; j < m; ++j) sum += values(j, k) * (whitened ? factor(j, 0) : 1);
    return sum * part;
  };
  const Matrix folded(m, width, [&](int64_t j, int64_t k) {
    return gain * part * (factor(j, 0) * values(j, k) - column_mean(k, true));
  });
  return {values, folded, Matrix(1, width, [&](int64_t, int64_t k) { return column_mean(k, false); })};
}

void check_fold(Report& report, int64_t m, int64_t width) {
  const Matrix summed = random(m, width), inverse = random(m, m), factor = random(m, 1);
  const Matrix d_folded = random(m, width), d_mean = random(1, width);
  const double fraction = 0.25, gain = 7;
  const auto dense = [](const Matrix& a) { return Stored(kFloat32, {a}, 0); };
  Stored s = dense(summed), x = dense(inverse), f = dense(factor), df = dense(d_folded), dm = dense(d_mean);
  Stored values = dense(summed), folded = dense(summed), mean = dense(d_mean);
  Folding task{m,
               width,
               m,
               nullptr,
               float(fraction),
               float(gain),
               x.data<float>(),
               f.data<float>(),
               s.data<float>(),
               width,
               values.data<float>(),
               folded.data<float>(),
               mean.data<float>()};
  Scratch scratch(level.folding_bytes(task));
  level.fold(task, scratch.get());
  const Folded expected = fold(summed, inverse, factor, fraction, gain);
  report.compare("values of landmarks", values, {expected.values}, kFloat32.rounding);
  report.compare("folded values", folded, {expected.folded}, kFloat32.rounding);
  report.compare("mean of the values", mean, {expected.mean}, kFloat32.rounding);
  Stored ds = dense(summed), dx = dense(inverse), dfactor = dense(factor), dgain(kFloat32, 1, 1, 1);
  level.fold_backward(task,
                      {df.data<float>(), dm.data<float>(), ds.data<float>(), dx.data<float>(), dfactor.data<float>(),
                       dgain.data<float>()},
                      scratch.get());
  const Matrix along_s = random(m, width), along_x = random(m, m), along_f = random(m, 1);
  const auto loss = [&](double by_s, double by_x, double by_f, double by_gain) {
    const Folded at = fold(added(summed, by_s, along_s), added(inverse, by_x, along_x), added(factor, by_f, along_f),
                           fraction, gain + by_gain);
    return dot(d_folded, at.folded) + dot(d_mean, at.mean);
  };
  const double allowed = 1e-3;
  report.derivative(
      "gradient of the sums", dot(ds.matrix(0), along_s), [&](double h) { return loss(h, 0, 0, 0); }, allowed);
  report.derivative(
      "gradient of the inverse", dot(dx.matrix(0), along_x), [&](double h) { return loss(0, h, 0, 0); }, allowed);
  report.derivative(
      "gradient of the factors", dot(dfactor.matrix(0), along_f), [&](double h) { return loss(0, 0, h, 0); }, allowed);
  report.derivative("gradient of the gain", dgain.matrix(0)(0, 0), [&](double h) { return loss(0, 0, 0, h); }, allowed);
}

// ---- landmarks ----

// The weights of the tokens in the landmarks: those of a cell have equal ones.
Matrix cells(const Grid& grid, const std::vector<char>& mask) {
  Matrix weights(grid.landmarks(), grid.tokens());
  for (int64_t i = 0; i < grid.prefix; ++i) weights(i, i) = 1;
  for (int64_t cell = 0; cell < grid.cells[1] * grid.cells[2]; ++cell) {
    const CellRange y(cell / grid.cells[2], grid.cells[1], grid.length[1]);
    const CellRange x(cell % grid.cells[2], grid.cells[2], grid.length[2]);
    double count = 0;
    for (int64_t token = grid.prefix; token < grid.tokens(); ++token) {
      const int64_t index = token - grid.prefix;
      const bool inside = y.contains(index / grid.length[2]) && x.contains(index % grid.length[2]);
      weights(grid.prefix + cell, token) = inside && mask[token];
      count += inside && mask[token];
    }
    for (int64_t token = 0; token < grid.tokens(); ++token) weights(grid.prefix + cell, token) /= count;
  }
  return weights;
}

void check_pool(Report& report, const Kind& kind, int64_t width, bool masked) {
  const Grid grid{{1, 9, 11}, {1, 3, 4}, 2};
  std::vector<char> mask(grid.tokens(), 1);
  if (masked) mask[5] = mask[30] = mask[grid.tokens() - 1] = 0;
  const Matrix weights = cells(grid, mask), tokens = random(grid.tokens(), width);
  std::vector<int64_t> members;
  for (int64_t i = 0; i < weights.rows; ++i) {
    members.push_back(0);
    for (int64_t j = 0; j < weights.columns; ++j) members.back() += weights(i, j) > 0;
  }
  const Box box{{1, 9, 11}, {1, 3, 4}, masked ? reinterpret_cast<bool*>(mask.data()) : nullptr, members.data()};
  Stored stored(kind, {tokens}), out(kFloat32, 1, weights.rows, width, 0);
  for (int64_t i = 0; i < weights.rows; ++i)
    level.pool(kind.type, stored.data(), stored.stride, grid, box, i, width, out.data<float>() + i * width);
  report.compare(std::string("landmarks from ") + kind.name, out, {product(weights, tokens)}, kFloat32.rounding);
  const Matrix gradient = random(weights.rows, width);
  Stored given(kFloat32, {gradient}, 0), back(kFloat32, {Matrix(grid.rows() * grid.length[2], width)}, 0);
  for (int64_t row = 0; row < grid.rows(); ++row)
    level.pool_backward(given.data<float>(), grid, box, row, width, back.data<float>() + row * grid.length[2] * width);
  const Matrix expected = product(transposed(weights), gradient);
  report.compare("gradient of tokens from landmarks", back,
                 {Matrix(back.rows, width, [&](int64_t i, int64_t k) { return expected(grid.prefix + i, k); })},
                 kFloat32.rounding);
}

// ---- rows ----

void check_rows(Report& report, const Kind& kind, int64_t rows, int64_t width) {
  const Matrix x = random(rows, width), other = random(rows, width);
  Stored stored(kind, {x, other});
  Rotation rotation(kind, rows, width / 2);
  Stored turned(kind, 2, rows, width, 0);
  level.rotate({kind.type, stored.view(), rotation.view(), -1, rows, width / 2, 0, turned.data()}, 0, 2 * rows);
  const std::string name = std::string(" of ") + kind.name;
  report.compare("rotation" + name, turned, {rotated(x, rotation.angles, -1), rotated(other, rotation.angles, -1)},
                 kind.rounding);

  const Kind wide = kind.type == Type::float64 ? kFloat64 : kFloat32;
  Stored mean(wide, 1, 1, width, 0), squares(wide, 1, 1, width, 0), scaled(kind, 1, rows, width, 0);
  level.column_moments(kind.type, stored.data(), stored.stride, rows, width, mean.data(), squares.data());
  const Matrix means(1, width, [&](int64_t, int64_t j) {
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += x(i, j) / static_cast<double>(rows);
    return sum;
  });
  report.compare("means" + name, mean, {means}, 10 * wide.rounding);
  report.compare("squares" + name, squares,
                 {Matrix(1, width,
                         [&](int64_t, int64_t j) {
                           double sum = 0;
                           for (int64_t i = 0; i < rows; ++i) sum += (x(i, j) - means(0, j)) * (x(i, j) - means(0, j));
                           return sum;
                         })},
                 10 * wide.rounding);
  const Matrix factor = random(1, width);
  Stored factors(wide, {factor}, 0), exact(wide, {means}, 0);
  level.scaled_differences(kind.type, stored.data(), stored.stride, rows, width, exact.data(), factors.data(),
                           scaled.data());
  report.compare("scaled differences" + name, scaled,
                 {Matrix(rows, width, [&](int64_t i, int64_t j) { return factor(0, j) * (x(i, j) - means(0, j)); })},
                 kind.rounding);
}

void check_picked(Report& report, const Kind& kind, int64_t rows, int64_t width) {
  const Matrix x = random(rows, width);
  Stored stored(kind, {x}), out(kFloat32, 1, (rows + 2) / 3, width, 0), back(kFloat32, {x}, 0);
  Rotation rotation(kFloat32, rows, width / 2);
  const Matrix turned = rotated(x, rotation.angles, 1);
  std::vector<int64_t> index;
  for (int64_t i = 0; i < rows; i += 3) index.push_back(i);
  const PickedRows picked{index.data(), static_cast<int64_t>(index.size()), width, rotation.view()};
  level.gather(kind.type, picked, stored.data(), stored.stride, out.data<float>());
  report.compare(std::string("picked rows of ") + kind.name, out,
                 {Matrix(out.rows, width, [&](int64_t i, int64_t k) { return turned(3 * i, k); })}, kFloat32.rounding);
  for (int64_t i : index)
    for (int64_t k = 0; k < width; ++k) back.data<float>()[i * width + k] = NAN;
  level.scatter(picked, out.data<float>(), back.data<float>(), width);
  report.compare("rows put back", back, {x}, kFloat32.rounding);
}

}  // namespace
}  // namespace check

int main() {
  using namespace check;
  Report report;
  check_pairs(report);
  for (const Kind& kind : {kFloat32, kFloat64})
    for (const int64_t size : {49, 7})
      for (const bool flag : {true, false}) check_inverse(report, kind, size, flag, flag);
  check_fold(report, 49, 32);
  check_fold(report, 5, 7);
  for (const Kind& kind : kKinds) {
    for (const int64_t width : {32, 5})
      for (const bool masked : {false, true}) check_pool(report, kind, width, masked);
    for (const int64_t width : {32, 10}) check_rows(report, kind, 37, width);
    if (kind.type == Type::float64) continue;
    check_picked(report, kind, 20, 10);
    for (const int64_t width : {32, 13})
      for (const bool biased : {false, true}) check_gelu(report, level, kind, width, biased);
  }
  return report.finish();
}
