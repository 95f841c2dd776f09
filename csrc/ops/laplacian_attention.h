// The global branch of the attention in one call for evaluation, and in one per direction for training: for small
// images the calls of its parts take as long as their work. With Km the landmarks, which are the pooled keys, it is
//   mean(L) + k(Q, Km) F        L = (m/N) inv(k(Km, Km) + eps I) k(Km, K) V        F: L whitened, see kernels/fold.h
// Everything but the tokens and their gradients is float32; these may be bfloat16 or float16, and are widened as they
// are read. With a mask, the tokens that count are first packed one after the other, in float32, so that everything
// else runs on as many rows as there are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "levels/level.h"
#include "levels/tasks.h"
#include "ops/landmarks.h"
#include "ops/pair_task.h"
#include "ops/tensors.h"
#include "ops/threads.h"
#include "ops/token_mask.h"

namespace laplacianformer {

// What all three ops are given beside tokens. Where tokens and landmarks are on the same grid, every token is a
// landmark and nothing is solved.
struct AttentionSettings {
  Grid grid;
  int64_t iterations;
  double gain, scale, eps, variance_eps;  // gain: NaN for the square root of the number of landmarks.
  std::optional<Tensor> gains;            // (heads), used instead of `gain`.
  Rotation token_rotation, landmark_rotation;
  std::optional<TokenMask> mask;
  const Level& level;

  // As the schema has them. q: any tensor of tokens, for its shape. mask: (batch, tokens) bool. rotations: none, or the
  // cosines and sines of tokens and of landmarks, with a mask those of landmarks for each item. sizes: three lengths of
  // the grid of tokens and three of that of landmarks, tokens before the grid, iterations. numbers: gain, scale, eps,
  // variance_eps.
  AttentionSettings(const Tensor& q, const std::optional<Tensor>& mask, const std::optional<Tensor>& gains,
                    const std::vector<Tensor>& rotations, const std::vector<int64_t>& sizes,
                    const std::vector<double>& numbers, int64_t level);

  int64_t tokens() const { return grid.tokens(); }
  int64_t landmarks() const { return grid.landmarks(); }
  bool solves() const { return tokens() != landmarks(); }
  bool solves(int64_t item) const { return solves() && !(mask && mask->exact(item)); }
  Layout layout() const { return {grid, mask ? &*mask : nullptr}; }
  const int64_t* counts() const { return mask ? mask->counts() : nullptr; }
  // Packed tokens are rotated already.
  Rotation long_rotation() const { return mask ? Rotation{} : token_rotation; }
  const Rotation& short_rotation() const { return solves() || mask ? landmark_rotation : token_rotation; }
  RowPairs with_landmarks(const Tensor& q, const Tensor& landmarks) const {
    return {q, landmarks, long_rotation(), scale, counts()};
  }
  float head_gain(int64_t head, int64_t landmarks) const {
    if (gains) return floats(*gains)[head];
    return static_cast<float>(std::isnan(gain) ? std::sqrt(static_cast<double>(landmarks)) : gain);
  }
};

// The landmarks (batch, heads, m, width), and what their values L are made from: the kernel w of all pairs of
// landmarks, its inverse, and k(Km, K) V. Where nothing is solved, `summed` is V, and w and its inverse are empty.
// With a mask, an item in which every token is a landmark has its V there, too.
struct Solution {
  Tensor landmarks, w, inverse, summed;
};

// What the gradient needs beside tokens and variance. What is not needed, or is an input, is empty.
struct SavedAttention {
  Tensor mean;    // (heads, m), of the columns of the kernel.
  Tensor kernel;  // k(Q, Km): (batch, heads, tokens, m).
  Solution solution;
  Tensor values, folded;  // L and F: (batch, heads, m, width).

  // As the schema has it, and back.
  std::vector<Tensor> list() const;
  static SavedAttention from(const std::vector<Tensor>& list);
};

// What the mask of an item changes.
inline void describe(Folding& folding, const TokenMask& mask, int64_t item) {
  folding.count = mask.landmarks(item);
  folding.members = mask.members(item);
  folding.fraction = static_cast<float>(folding.count) / static_cast<float>(std::max(int64_t{1}, mask.tokens(item)));
}

// The tensor itself. Throws if it is no longer float32: whatever stored it between the passes may have changed it.
const Tensor& saved_float32(const Tensor& tensor);

// The same, contiguous.
Tensor restored(const Tensor& tensor);

// The tokens that the kernels read: with a mask, those that count, packed and rotated.
struct PackedTokens {
  Tensor given_k, given_v;  // As they were given.
  Tensor q, k, v;

  PackedTokens(const AttentionSettings& settings, const Tensor& q, const Tensor& k, const Tensor& v);
};

// The branch in evaluation, whitened by a variance, (heads, m) or (batch, heads, m), or by none. out: (batch, heads,
// tokens, width) of the type of the queries, any strides but the last; with a mask, packed.
void evaluate_attention(const AttentionSettings& settings, const PackedTokens& tokens,
                        const std::optional<Tensor>& variance, const Tensor& out);

// With a mask, the rows and columns of w that belong to no landmark become zeros, but for the diagonal.
void set_absent(const AttentionSettings& settings, const Tensor& w, float diagonal);

// 1 / sqrt(variance + eps), the factors of the whitening.
std::vector<float> whitening_factors(const Tensor& variance, double eps);

// Calls f(matrix, its folding, scratch) for each head of each image, on torch's threads. f sets the outputs. factors:
// none for ones, or (heads, m), or (batch, heads, m).
template <class F>
void each_folding(const AttentionSettings& settings, const Solution& solution, const std::vector<float>& factors, F f) {
  Views views;
  const Rows summed = views(solution.summed);
  const int64_t heads = solution.summed.size(1), m = settings.landmarks();
  Folding common{};
  common.landmarks = m;
  common.width = solution.summed.size(3);
  common.count = m;
  common.fraction = static_cast<float>(m) / static_cast<float>(settings.tokens());
  common.summed_stride = summed.stride;
  const size_t bytes = settings.level.folding_bytes(common);
  const int64_t grain = 1 + kGrain / (1 + m * m * common.width);
  share_items(solution.summed.size(0) * heads, grain, bytes, [&](int64_t first, int64_t last, void* scratch) {
    for (int64_t i = first; i < last; ++i) {
      Folding folding = common;
      folding.inverse = settings.solves(i / heads) ? floats(solution.inverse) + i * m * m : nullptr;
      if (!factors.empty()) folding.factor = factors.data() + i * m % static_cast<int64_t>(factors.size());
      if (settings.mask) describe(folding, *settings.mask, i / heads);
      folding.gain = settings.head_gain(i % heads, folding.count);
      folding.summed = static_cast<const float*>(summed.data) + summed.offsets[i];
      f(i, folding, scratch);
    }
  });
}

}  // namespace laplacianformer
