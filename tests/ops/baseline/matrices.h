// Matrices in float64, the same in a stored type, and how the two are compared.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "levels/tasks.h"

namespace check {

using laplacianformer::Rows;
using laplacianformer::Type;

struct Kind {
  Type type;
  const char* name;
  int64_t bytes;
  // The largest error over the largest number: of sums in the accumulation type, or of two roundings to the stored
  // type.
  double rounding;
};

constexpr Kind kFloat32{Type::float32, "float32", 4, 4e-6}, kFloat64{Type::float64, "float64", 8, 1e-14};
constexpr Kind kKinds[] = {
    kFloat32, kFloat64, {Type::bfloat16, "bfloat16", 2, 0x1p-7}, {Type::float16, "float16", 2, 0x1p-9}};

struct Matrix {
  int64_t rows, columns;
  std::vector<double> data;

  Matrix(int64_t r, int64_t c) : rows(r), columns(c), data(r * c) {}
  Matrix(int64_t r, int64_t c, const std::function<double(int64_t, int64_t)>& f) : Matrix(r, c) {
    for (int64_t i = 0; i < r; ++i)
      for (int64_t j = 0; j < c; ++j) (*this)(i, j) = f(i, j);
  }
  double& operator()(int64_t i, int64_t j) { return data[i * columns + j]; }
  double operator()(int64_t i, int64_t j) const { return data[i * columns + j]; }
};

inline Matrix transposed(const Matrix& a) {
  return Matrix(a.columns, a.rows, [&](int64_t i, int64_t j) { return a(j, i); });
}

inline Matrix product(const Matrix& a, const Matrix& b) {
  return Matrix(a.rows, b.columns, [&](int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t k = 0; k < a.columns; ++k) sum += a(i, k) * b(k, j);
    return sum;
  });
}

// a + factor b
inline Matrix added(const Matrix& a, double factor, const Matrix& b) {
  return Matrix(a.rows, a.columns, [&](int64_t i, int64_t j) { return a(i, j) + factor * b(i, j); });
}

inline double dot(const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (size_t k = 0; k < a.data.size(); ++k) sum += a.data[k] * b.data[k];
  return sum;
}

// Multiples of 1/64 from -2 to 2, which every stored type has exactly, and of which many are equal.
inline Matrix random(int64_t rows, int64_t columns) {
  static std::mt19937 generator(0);
  return Matrix(rows, columns, [](int64_t, int64_t) { return (static_cast<int>(generator() % 256) - 128) / 64.0; });
}

inline double decoded(Type type, const unsigned char* from) {
  float single;
  double result;
  uint16_t half;
  uint32_t bits;
  switch (type) {
    case Type::float32:
      return std::memcpy(&single, from, 4), single;
    case Type::float64:
      return std::memcpy(&result, from, 8), result;
    case Type::bfloat16:
      std::memcpy(&half, from, 2);
      bits = uint32_t{half} << 16;
      return std::memcpy(&single, &bits, 4), single;
    case Type::float16:
      break;
  }
  std::memcpy(&half, from, 2);
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 31) return mantissa ? NAN : (half >> 15 ? -INFINITY : INFINITY);
  result = exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return half >> 15 ? -result : result;
}

// For numbers that the type has exactly, or float32 and float64.
inline void encode(Type type, double number, unsigned char* to) {
  const float single = static_cast<float>(number);
  uint32_t bits;
  std::memcpy(&bits, &single, 4);
  uint16_t half = static_cast<uint16_t>(bits >> 16);
  if (type == Type::float32) return void(std::memcpy(to, &single, 4));
  if (type == Type::float64) return void(std::memcpy(to, &number, 8));
  if (type == Type::float16) {
    int exponent;
    const double fraction = std::frexp(std::fabs(number), &exponent);
    const int magnitude = number == 0 ? 0 : (exponent + 14) * 1024 + static_cast<int>(fraction * 2048) - 1024;
    half = static_cast<uint16_t>(magnitude | (number < 0 ? 0x8000 : 0));
  }
  std::memcpy(to, &half, 2);
}

// Matrices in memory, with a gap after each row. What is not written is NaN.
class Stored {
 public:
  const Kind kind;
  const int64_t rows, columns, stride;

  Stored(const Kind& k, int64_t batch, int64_t r, int64_t c, int64_t gap = 3)
      : kind(k), rows(r), columns(c), stride(c + gap), bytes_(batch * r * stride * k.bytes, 0xff) {
    for (int64_t b = 0; b < batch; ++b) offsets_.push_back(b * r * stride);
  }

  Stored(const Kind& k, const std::vector<Matrix>& from, int64_t gap = 3)
      : Stored(k, static_cast<int64_t>(from.size()), from[0].rows, from[0].columns, gap) {
    for (size_t b = 0; b < from.size(); ++b)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) encode(kind.type, from[b](i, j), at(b, i, j));
  }

  Rows view() { return {bytes_.data(), offsets_.data(), stride}; }

  template <class T = void>
  T* data() {
    return reinterpret_cast<T*>(bytes_.data());
  }

  Matrix matrix(int64_t b) {
    return Matrix(rows, columns, [&](int64_t i, int64_t j) { return decoded(kind.type, at(b, i, j)); });
  }

  int64_t batch() const { return static_cast<int64_t>(offsets_.size()); }

  // Whether nothing was written between the rows.
  bool gaps_are_whole() {
    for (int64_t b = 0; b < batch(); ++b)
      for (int64_t i = 0; i < rows; ++i)
        for (const unsigned char* byte = at(b, i, columns); byte < at(b, i, stride); ++byte)
          if (*byte != 0xff) return false;
    return true;
  }

 private:
  unsigned char* at(int64_t b, int64_t i, int64_t j) {
    return bytes_.data() + (offsets_[b] + i * stride + j) * kind.bytes;
  }

  std::vector<unsigned char> bytes_;
  std::vector<int64_t> offsets_;
};

// Memory for a kernel, aligned as the ops align it.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : bytes_(bytes + 64, 0xff) {}

  void* get() {
    const uintptr_t first = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - first % 64) % 64;
  }

 private:
  std::vector<unsigned char> bytes_;
};

// Counts comparisons, and prints those that fail.
class Report {
 public:
  void compare(const std::string& what, Stored& given, const std::vector<Matrix>& expected, double allowed) {
    double error = 0, largest = 0;
    for (int64_t b = 0; b < given.batch(); ++b) {
      const Matrix got = given.matrix(b);
      for (size_t k = 0; k < got.data.size(); ++k) {
        const double difference = std::fabs(got.data[k] - expected[b].data[k]);
        if (!(difference <= error)) error = difference;  // NaN is larger than any number.
        largest = std::fmax(largest, std::fabs(expected[b].data[k]));
      }
    }
    settle(what, error <= allowed * largest && given.gaps_are_whole(), error / largest, allowed);
  }

  // A derivative along a direction, against the quotient of differences.
  void derivative(const std::string& what, double given, const std::function<double(double)>& f, double allowed) {
    const double step = 1e-4, expected = (f(step) - f(-step)) / (2 * step), error = std::fabs(given / expected - 1);
    settle(what, error <= allowed, error, allowed);
  }

  int finish() const {
    std::printf("%d comparisons, %d failed\n", comparisons_, failures_);
    return failures_ || !comparisons_;
  }

 private:
  void settle(const std::string& what, bool good, double error, double allowed) {
    ++comparisons_;
    if (good) return;
    ++failures_;
    std::printf("%s: error %.2e, allowed %.2e, or numbers written between rows\n", what.c_str(), error, allowed);
  }

  int comparisons_ = 0, failures_ = 0;
};

}  // namespace check
