// The operator of ONNX files: the global branch of the attention in evaluation, on images without a mask.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace laplacianformer::onnx {

// Cosines and sines of tokens and of landmarks, (rows, width / 2) each.
struct Positions {
  std::vector<int64_t> size;  // Of the grid of tokens.
  int64_t width;
  std::vector<float> cosines, sines, cell_cosines, cell_sines;
};

// What a node of the graph says.
struct Attributes {
  int64_t heads, prefix, iterations;
  std::vector<int64_t> grid;               // The most cells along each axis.
  double scale, eps, variance_eps, theta;  // theta: of the rotary positions, 0 for none.
};

// Dense tensors of one call.
struct Inputs {
  float* qkv;  // (batch, tokens, 3 * channels): queries, keys and values.
  int64_t batch, tokens, channels;
  std::vector<int64_t> size;
  float* variance;  // (heads, prefix + cells of `grid`), or null for no whitening.
  float* gains;     // (heads), or null for the square root of the number of landmarks.
};

// One node. Calls may come from several threads.
class Attention {
 public:
  Attention(Attributes attributes, int64_t level);  // level: as `level_of` takes it.

  // The result, (batch, tokens, channels). Throws std::invalid_argument where the inputs don't fit.
  void evaluate(const Inputs& inputs, float* out) const;

  // The variances that a node takes.
  int64_t heads() const { return attributes_.heads; }
  int64_t most_landmarks() const;
  size_t axes() const { return attributes_.grid.size(); }

 private:
  void check(const Inputs& inputs) const;
  std::shared_ptr<const Positions> positions(const std::vector<int64_t>& size, const std::vector<int64_t>& cells,
                                             int64_t width) const;

  const Attributes attributes_;
  const int64_t level_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Positions> last_;  // Those of the last size: images mostly have one.
};

}  // namespace laplacianformer::onnx
