// Rotations of pairs of channels, in float64, and their tables.
#pragma once

#include <cmath>
#include <cstdint>

#include "levels/tasks.h"
#include "matrices.h"

namespace check {

inline Matrix rotated(const Matrix& x, const Matrix& angles, double direction) {
  const int64_t half = x.columns / 2;
  return Matrix(x.rows, x.columns, [&](int64_t i, int64_t j) {
    const double cosine = std::cos(angles(i, j % half)), sine = direction * std::sin(angles(i, j % half));
    return j < half ? x(i, j) * cosine - x(i, j + half) * sine : x(i, j - half) * sine + x(i, j) * cosine;
  });
}

// One angle for each row and pair, and its cosine and sine in the type in which sums of `kind` accumulate.
struct Rotation {
  Matrix angles;
  Stored cosines, sines;

  Rotation(const Kind& kind, int64_t rows, int64_t half)
      : angles(random(rows, half)), cosines(table(kind, std::cos)), sines(table(kind, std::sin)) {}

  laplacianformer::RotationTable view() { return {cosines.data(), sines.data()}; }

 private:
  Stored table(const Kind& kind, double (*f)(double)) const {
    const Matrix numbers(angles.rows, angles.columns, [&](int64_t i, int64_t j) { return f(angles(i, j)); });
    return Stored(kind.type == Type::float64 ? kFloat64 : kFloat32, {numbers}, 0);
  }
};

}  // namespace check
