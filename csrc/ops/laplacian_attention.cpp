#include "ops/laplacian_attention.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>

#include "ops/column_variance.h"
#include "ops/laplacian_kernel.h"
#include "ops/laplacian_matmul.h"
#include "ops/level_choice.h"
#include "ops/newton_schulz.h"
#include "ops/pair_task.h"
#include "ops/rotate.h"

namespace laplacianformer {
namespace {

void check_length(size_t length, bool expected, const char* what) {
  if (!expected) throw std::invalid_argument("attention: " + std::to_string(length) + " " + what);
}

constexpr size_t kSavedTensors = 8;

}  // namespace

AttentionSettings::AttentionSettings(const Tensor& q, const std::optional<Tensor>& given_mask,
                                     const std::optional<Tensor>& given_gains, const std::vector<Tensor>& rotations,
                                     const std::vector<int64_t>& sizes, const std::vector<double>& numbers,
                                     int64_t level_number)
    : gains(given_gains), level(level_of(level_number)) {
  check_length(rotations.size(), rotations.empty() || rotations.size() == 4, "tables of rotations, expected 0 or 4");
  check_length(sizes.size(), sizes.size() == 8, "sizes, expected lengths, cells, prefix and iterations");
  check_length(numbers.size(), numbers.size() == 4, "numbers, expected gain, scale, eps and variance_eps");
  grid = Grid{{sizes[0], sizes[1], sizes[2]}, {sizes[3], sizes[4], sizes[5]}, sizes[6]};
  iterations = sizes[7];
  gain = numbers[0];
  scale = numbers[1];
  eps = numbers[2];
  variance_eps = numbers[3];
  if (given_mask) mask.emplace(*given_mask, grid, q.size(1));
  if (rotations.empty()) return;
  token_rotation = {rotations[0], rotations[1]};
  landmark_rotation = {rotations[2], rotations[3]};
}

std::vector<Tensor> SavedAttention::list() const {
  return {mean, kernel, solution.landmarks, solution.w, solution.inverse, solution.summed, values, folded};
}

SavedAttention SavedAttention::from(const std::vector<Tensor>& list) {
  check_length(list.size(), list.size() == kSavedTensors, "saved tensors, expected 8");
  std::vector<Tensor> t;
  for (const Tensor& tensor : list) t.push_back(restored(tensor));
  return {t[0], t[1], {t[2], t[3], t[4], t[5]}, t[6], t[7]};
}

const Tensor& saved_float32(const Tensor& tensor) {
  if (type_of(tensor) != Type::float32) throw std::invalid_argument("what is kept for the gradient must stay float32");
  return tensor;
}

Tensor restored(const Tensor& tensor) { return saved_float32(tensor).is_contiguous() ? tensor : contiguous(tensor); }

std::vector<float> whitening_factors(const Tensor& variance, double eps) {
  std::vector<float> factors(variance.numel());
  for (int64_t i = 0; i < variance.numel(); ++i)
    factors[i] = static_cast<float>(1 / std::sqrt(floats(variance)[i] + eps));
  return factors;
}

PackedTokens::PackedTokens(const AttentionSettings& settings, const Tensor& q_rows, const Tensor& k_rows,
                           const Tensor& v_rows)
    : given_k(k_rows), given_v(v_rows), q(q_rows), k(k_rows), v(v_rows) {
  if (!settings.mask) return;
  const Rotation& rotation = settings.token_rotation;
  q = settings.mask->pack(q, rotation, settings.level);
  k = settings.mask->pack(k, rotation, settings.level);
  v = settings.mask->pack(v, {}, settings.level);
}

void set_absent(const AttentionSettings& settings, const Tensor& w, float diagonal) {
  if (!settings.mask) return;
  const int64_t heads = w.size(1), m = settings.landmarks();
  for (int64_t i = 0; i < w.size(0) * heads; ++i) {
    const int64_t* members = settings.mask->members(i / heads);
    float* matrix = floats(w) + i * m * m;
    for (int64_t row = 0; row < m; ++row)
      for (int64_t column = 0; column < m; ++column)
        if (members[row] == 0 || members[column] == 0) matrix[row * m + column] = row == column ? diagonal : 0.0f;
  }
}

namespace {

// The keys averaged over each cell, then rotated.
Tensor pool_keys(const AttentionSettings& settings, const Tensor& k) {
  const Rotation& rotation = settings.short_rotation();
  if (settings.solves() || settings.mask) {
    const Tensor landmarks = pool_tokens(settings.layout(), k, settings.level);
    if (rotation) write_rotated(landmarks, rotation, 1, landmarks, settings.level);
    return landmarks;
  }
  if (!rotation) return k;
  const Tensor landmarks = empty_floats(k, {k.size(0), k.size(1), k.size(2), k.size(3)});
  write_rotated(k, rotation, 1, landmarks, settings.level);
  return landmarks;
}

// k(Km, K) V, from packed keys and values with a mask; where every token of an item is a landmark, its values.
Tensor sum_values(const AttentionSettings& settings, const Tensor& landmarks, const Tensor& k, const Tensor& v,
                  const Tensor& packed_k, const Tensor& packed_v) {
  const int64_t m = settings.landmarks(), heads = v.size(1), numbers = m * v.size(3);
  const Tensor summed = empty_floats(k, {k.size(0), heads, m, v.size(3)});
  const RowPairs pairs{landmarks, packed_k, settings.long_rotation(), settings.scale, settings.counts()};
  write_product(pairs, packed_v, nullptr, summed, settings.level);
  if (!settings.mask) return summed;
  const Tensor values = pool_tokens(settings.layout(), v, settings.level);
  for (int64_t i = 0; i < v.size(0) * heads; ++i) {
    float* rows = floats(summed) + i * numbers;
    if (!settings.solves(i / heads)) std::copy_n(floats(values) + i * numbers, numbers, rows);
    // A landmark that is not there must not reach the gradient of the inverse.
    for (int64_t j = 0; j < m; ++j)
      if (settings.mask->members(i / heads)[j] == 0) std::fill_n(rows + j * v.size(3), v.size(3), 0.0f);
  }
  return summed;
}

// k, v: as they were given, for the landmarks. packed_k, packed_v: the same without a mask, else those that count.
Solution solve(const AttentionSettings& settings, const Tensor& k, const Tensor& v, const Tensor& packed_k,
               const Tensor& packed_v) {
  const Level& level = settings.level;
  if (!settings.solves()) {
    constexpr auto kFloat32 = torch::headeronly::ScalarType::Float;
    const Tensor none = empty_floats(k, {0});
    if (settings.mask) return {pool_keys(settings, k), none, none, pool_tokens(settings.layout(), v, level)};
    return {pool_keys(settings, to(k, kFloat32)), none, none, to(v, kFloat32)};
  }
  const Tensor landmarks = pool_keys(settings, k);
  const int64_t batch = k.size(0), heads = k.size(1), m = settings.landmarks();
  const Tensor w = empty_floats(k, {batch, heads, m, m}), inverse = empty_floats(k, {batch, heads, m, m});
  write_kernel({landmarks, landmarks, {}, settings.scale}, w, level);
  set_absent(settings, w, 1.0f);
  write_inverse(w, {settings.iterations, settings.eps, true}, inverse, level);
  return {landmarks, w, inverse, sum_values(settings, landmarks, k, v, packed_k, packed_v)};
}

// F, and the mean of L that is added to every row of the result.
struct Folded {
  Tensor folded, mean;
};

// L is written to `values` unless that is null. No factors stand for ones.
Folded fold(const AttentionSettings& settings, const Solution& solution, const std::vector<float>& factors,
            float* values) {
  const Tensor& summed = solution.summed;
  const int64_t batch = summed.size(0), heads = summed.size(1), m = settings.landmarks(), d = summed.size(3);
  const Folded out{empty_floats(summed, {batch, heads, m, d}), empty_floats(summed, {batch, heads, d})};
  each_folding(settings, solution, factors, [&](int64_t i, Folding& folding, void* scratch) {
    folding.values = values ? values + i * m * d : nullptr;
    folding.folded = floats(out.folded) + i * m * d;
    folding.mean = floats(out.mean) + i * d;
    settings.level.fold(folding, scratch);
  });
  return out;
}

// (batch, heads, tokens, width) with the layout of (batch, tokens, heads, width).
Tensor empty_result(const Tensor& q) {
  return transpose(new_empty(q, {q.size(0), q.size(2), q.size(1), q.size(3)}), 1, 2);
}

}  // namespace

void evaluate_attention(const AttentionSettings& settings, const PackedTokens& tokens,
                        const std::optional<Tensor>& variance, const Tensor& out) {
  const Solution solution = solve(settings, tokens.given_k, tokens.given_v, tokens.k, tokens.v);
  std::vector<float> factors;
  if (variance) factors = whitening_factors(*variance, settings.variance_eps);
  const Folded folded = fold(settings, solution, factors, nullptr);
  write_product(settings.with_landmarks(tokens.q, solution.landmarks), folded.folded, folded.mean.data_ptr(), out,
                settings.level);
}

namespace {

// q, k, v: (batch, heads, tokens, width). They may be bfloat16 or float16, as under autocast: they are widened as they
// are read. mask: (batch, tokens) of the tokens that count, or none for all; the result is float32 then. variance:
// (heads, m) or (batch, heads, m) of the whitening, or none.
Tensor attention_evaluate(Tensor given_q, Tensor given_k, Tensor given_v, std::optional<Tensor> mask,
                          std::optional<Tensor> variance, std::optional<Tensor> gains, std::vector<Tensor> rotations,
                          std::vector<int64_t> sizes, std::vector<double> numbers, int64_t level) {
  const AttentionSettings settings(given_q, mask, gains, rotations, sizes, numbers, level);
  const PackedTokens tokens(settings, dense(given_q), dense(given_k), dense(given_v));
  const Tensor out = settings.mask ? empty_as(tokens.q) : empty_result(tokens.q);
  evaluate_attention(settings, tokens, variance, out);
  return settings.mask ? settings.mask->unpack(out, {}, true, settings.level) : out;
}

// out = mean + kernel @ folded, with a stored kernel.
void multiply_stored(const AttentionSettings& settings, const RowPairs& pairs, const Tensor& kernel,
                     const Folded& folded, const Tensor& out) {
  Views views;
  PairTask task = make_task(settings.level, pairs, folded.folded.size(3), views);
  task.kernel = views(kernel);
  task.short_values = views(folded.folded);
  task.long_value_out = views(out);
  task.start = folded.mean.data_ptr();
  run(settings.level, settings.level.stored_forward, task);
}

// The same in training, whitened by the variance of the kernel itself: the result, in the dtype of the tokens, that
// variance, and what the gradient needs. The kernel is kept in float32: the whitening divides by the deviations of its
// columns, of which 16 bits would leave little.
std::tuple<Tensor, Tensor, std::vector<Tensor>> attention_forward(
    Tensor given_q, Tensor given_k, Tensor given_v, std::optional<Tensor> mask, std::optional<Tensor> gains,
    std::vector<Tensor> rotations, std::vector<int64_t> sizes, std::vector<double> numbers, int64_t level) {
  const AttentionSettings settings(given_q, mask, gains, rotations, sizes, numbers, level);
  const PackedTokens tokens(settings, dense(given_q), dense(given_k), dense(given_v));
  const Tensor& q = tokens.q;
  const int64_t batch = q.size(0), heads = q.size(1), m = settings.landmarks(), d = q.size(3);
  Solution solution = solve(settings, tokens.given_k, tokens.given_v, tokens.k, tokens.v);
  const Tensor kernel = empty_floats(q, {batch, heads, settings.tokens(), m});
  const RowPairs pairs = settings.with_landmarks(q, solution.landmarks);
  write_kernel(pairs, kernel, settings.level);
  const Tensor mean = empty_floats(q, {heads, m}), variance = empty_floats(q, {heads, m}), none = empty_floats(q, {0});
  write_variance(kernel, mean, variance, settings.level, settings.layout().mask);
  const std::vector<float> factors = whitening_factors(variance, settings.variance_eps);
  const Tensor values = settings.solves() ? empty_floats(q, {batch, heads, m, d}) : none;
  const Folded folded = fold(settings, solution, factors, settings.solves() ? floats(values) : nullptr);
  const Tensor out = settings.mask ? empty_as(q) : empty_result(q);
  multiply_stored(settings, pairs, kernel, folded, out);
  if (!settings.solves() && !settings.mask) {  // They are inputs.
    solution.summed = none;
    if (!settings.token_rotation) solution.landmarks = none;
  }
  return {settings.mask ? to(settings.mask->unpack(out, {}, true, settings.level), given_q.scalar_type()) : out,
          variance, SavedAttention{mean, kernel, solution, values, folded.folded}.list()};
}

}  // namespace
}  // namespace laplacianformer

STABLE_TORCH_LIBRARY_FRAGMENT(laplacianformer_cpu, m) {
  m.def(
      "attention_evaluate(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? variance, Tensor? gains, "
      "Tensor[] rotations, int[] sizes, float[] numbers, int level) -> Tensor");
  m.def(
      "attention_forward(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? gains, Tensor[] rotations, int[] sizes, "
      "float[] numbers, int level) -> (Tensor, Tensor, Tensor[])");
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CPU, m) {
  m.impl("attention_evaluate", TORCH_BOX(&laplacianformer::attention_evaluate));
  m.impl("attention_forward", TORCH_BOX(&laplacianformer::attention_forward));
}
