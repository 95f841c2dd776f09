#include "onnx/attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "ops/landmarks.h"
#include "ops/laplacian_attention.h"
#include "ops/tensors.h"

namespace laplacianformer::onnx {
namespace {

// With more, torch solves by its own products: see ops/newton_schulz in Python.
constexpr int64_t kMostLandmarks = 128;
constexpr auto kFloat = torch::headeronly::ScalarType::Float;

using Lengths = std::vector<int64_t>;

void require(bool condition, const std::string& expected) {
  if (!condition) throw std::invalid_argument("LaplacianAttention: " + expected);
}

int64_t product(const Lengths& lengths) {
  int64_t count = 1;
  for (const int64_t length : lengths) count *= length;
  return count;
}

// With leading axes of length 1, where there are fewer than three.
Lengths three(const Lengths& lengths) {
  Lengths all(3 - lengths.size(), 1);
  all.insert(all.end(), lengths.begin(), lengths.end());
  return all;
}

Grid grid_of(const Lengths& size, const Lengths& cells, int64_t prefix) {
  Grid grid{};
  std::copy_n(three(size).begin(), 3, grid.length);
  std::copy_n(three(cells).begin(), 3, grid.cells);
  grid.prefix = prefix;
  return grid;
}

Tensor dense_view(float* data, const Lengths& sizes) {
  Lengths strides(sizes.size(), 1);
  for (size_t axis = sizes.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * sizes[axis];
  return Tensor(data, kFloat, sizes, strides);
}

// Rows for the centres of the cells, in row-major order, behind those of the prefix, which rotate nothing. The pairs of
// channels are divided among the axes; those left over are not rotated.
void add_rotation(const Lengths& size, const Lengths& cells, const Attributes& attributes, int64_t pairs,
                  std::vector<float>& cosines, std::vector<float>& sines) {
  const int64_t prefix = attributes.prefix, rows = prefix + product(cells);
  const auto axes = static_cast<int64_t>(size.size()), each = pairs / axes;
  cosines.assign(rows * pairs, 1.0f);
  sines.assign(rows * pairs, 0.0f);
  int64_t inner = product(cells);
  for (int64_t axis = 0; axis < axes; ++axis) {
    inner /= cells[axis];
    for (int64_t row = prefix; row < rows; ++row) {
      const CellRange range((row - prefix) / inner % cells[axis], cells[axis], size[axis]);
      const double centre = 0.5 * static_cast<double>(range.begin + range.end - 1);
      for (int64_t j = 0; j < each; ++j) {
        const double angle = centre * std::pow(attributes.theta, -static_cast<double>(j) / static_cast<double>(each));
        cosines[row * pairs + axis * each + j] = static_cast<float>(std::cos(angle));
        sines[row * pairs + axis * each + j] = static_cast<float>(std::sin(angle));
      }
    }
  }
}

// The tables as the settings take them, or none.
std::vector<Tensor> rotations_of(const Positions* tables) {
  std::vector<Tensor> rotations;
  if (tables == nullptr) return rotations;
  const int64_t pairs = tables->width / 2;
  for (const auto* numbers : {&tables->cosines, &tables->sines, &tables->cell_cosines, &tables->cell_sines}) {
    const int64_t rows = static_cast<int64_t>(numbers->size()) / std::max(pairs, int64_t{1});
    rotations.push_back(dense_view(const_cast<float*>(numbers->data()), {rows, pairs}));
  }
  return rotations;
}

Lengths joined(const std::vector<Lengths>& parts) {
  Lengths all;
  for (const Lengths& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace

Attention::Attention(Attributes attributes, int64_t level) : attributes_(std::move(attributes)), level_(level) {
  const Attributes& a = attributes_;
  require(!a.grid.empty() && a.grid.size() <= 3, "the grid of landmarks must have one to three axes");
  const auto [least, most] = std::minmax_element(a.grid.begin(), a.grid.end());
  require(*least > 0 && a.prefix >= 0 && a.heads > 0 && a.iterations > 0,
          "grid, heads and iterations must be at least 1, prefix at least 0");
  require(a.scale > 0 && a.eps > 0 && a.variance_eps > 0, "scale, eps and variance_eps must be greater than 0");
  const bool few = std::max(*most, a.prefix) <= kMostLandmarks && most_landmarks() <= kMostLandmarks;
  require(few, "expected at most " + std::to_string(kMostLandmarks) + " landmarks: those of the grid and the prefix");
}

int64_t Attention::most_landmarks() const { return attributes_.prefix + product(attributes_.grid); }

std::shared_ptr<const Positions> Attention::positions(const Lengths& size, const Lengths& cells, int64_t width) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!last_ || last_->size != size || last_->width != width) {
    const auto made = std::make_shared<Positions>();
    made->size = size;
    made->width = width;
    add_rotation(size, size, attributes_, width / 2, made->cosines, made->sines);
    add_rotation(size, cells, attributes_, width / 2, made->cell_cosines, made->cell_sines);
    last_ = made;
  }
  return last_;
}

void Attention::check(const Inputs& inputs) const {
  const Lengths& size = inputs.size;
  require(size.size() == axes() && *std::min_element(size.begin(), size.end()) > 0,
          "expected a size of " + std::to_string(axes()) + " axes, each at least 1");
  int64_t rest = inputs.tokens - attributes_.prefix;  // Divided, because a product of any numbers may overflow.
  bool whole = true;
  for (const int64_t length : size) {
    whole = whole && rest % length == 0;
    rest /= length;
  }
  require(whole && rest == 1, "the size does not hold " + std::to_string(inputs.tokens) + " tokens");
  const int64_t channels = inputs.channels, heads = attributes_.heads;
  require(channels > 0 && channels % heads == 0 && (attributes_.theta == 0 || channels / heads % 2 == 0),
          std::to_string(channels) + " channels don't fit " + std::to_string(heads) + " heads");
}

void Attention::evaluate(const Inputs& inputs, float* out) const {
  check(inputs);
  const Attributes& a = attributes_;
  const int64_t batch = inputs.batch, tokens = inputs.tokens, channels = inputs.channels, d = channels / a.heads;
  if (batch == 0) return;
  Lengths cells = a.grid;
  for (size_t axis = 0; axis < cells.size(); ++axis) cells[axis] = std::min(cells[axis], inputs.size[axis]);
  const std::shared_ptr<const Positions> tables = a.theta == 0 ? nullptr : positions(inputs.size, cells, d);
  const auto part = [&](int64_t index) {
    const Lengths strides{tokens * 3 * channels, d, 3 * channels, 1};
    return Tensor(inputs.qkv + index * channels, kFloat, {batch, a.heads, tokens, d}, strides);
  };
  const Tensor q = part(0);
  std::optional<Tensor> gains, variance;
  if (inputs.gains) gains = dense_view(inputs.gains, {a.heads});
  const AttentionSettings settings(q, std::nullopt, gains, rotations_of(tables.get()),
                                   joined({three(inputs.size), three(cells), {a.prefix, a.iterations}}),
                                   {std::numeric_limits<double>::quiet_NaN(), a.scale, a.eps, a.variance_eps}, level_);
  if (inputs.variance) {  // Averaged to the landmarks that there are, like the keys.
    const Grid map = grid_of(a.grid, cells, a.prefix);
    const Tensor stored = dense_view(inputs.variance, {1, a.heads, most_landmarks(), 1});
    variance = pool_tokens({map, nullptr}, stored, settings.level);
  }
  const Tensor result(out, kFloat, {batch, a.heads, tokens, d}, {tokens * channels, d, channels, 1});
  evaluate_attention(settings, {settings, q, part(1), part(2)}, variance, result);
}

}  // namespace laplacianformer::onnx
