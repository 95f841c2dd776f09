#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "ops/landmarks.h"
#include "ops/laplacian_attention.h"
#include "ops/laplacian_kernel.h"
#include "ops/laplacian_matmul.h"
#include "ops/newton_schulz.h"
#include "ops/pair_task.h"
#include "ops/rotate.h"

namespace laplacianformer {
namespace {

// sum += term, both dense and small.
void accumulate(const Tensor& term, const Tensor& sum) {
  for (int64_t i = 0; i < sum.numel(); ++i) floats(sum)[i] += floats(term)[i];
}

// Whatever stored the tokens between the passes may have changed them.
const Tensor& saved_tokens(const Tensor& tokens, const Tensor& grad) {
  if (type_of(tokens) != type_of(grad) || type_of(grad) == Type::float64)
    throw std::invalid_argument(
        "what is kept for the gradient must stay as it was: tokens in the dtype of the result, all else float32");
  return tokens;
}

// The numbers of each image, one image after the other -> their sums.
std::vector<float> sum_over_images(const std::vector<float>& numbers, int64_t images) {
  const int64_t count = numbers.size() / images;
  std::vector<float> sums(count);
  for (int64_t j = 0; j < count; ++j) {
    double sum = 0;
    for (int64_t image = 0; image < images; ++image) sum += numbers[image * count + j];
    sums[j] = static_cast<float>(sum);
  }
  return sums;
}

// Everything that the forward pass had, as it was.
struct Forward {
  const AttentionSettings& settings;
  Tensor q, k, v, variance;
  SavedAttention saved;
  std::vector<float> factors;

  int64_t batch() const { return q.size(0); }
  int64_t heads() const { return q.size(1); }
  int64_t matrices() const { return batch() * heads(); }
  int64_t width() const { return q.size(3); }
  Tensor zeros(int64_t rows) const {
    return new_zeros(q, {batch(), heads(), rows, width()}, torch::headeronly::ScalarType::Float);
  }
  Tensor empty(int64_t rows, int64_t columns) const { return empty_floats(q, {batch(), heads(), rows, columns}); }
};

// The gradients of F, and of the mean that is added to each row: (batch * heads, mean_stride).
struct ProductGradients {
  Tensor d_folded;
  std::vector<float> d_mean;
  int64_t mean_stride;
};

ProductGradients product_backward(const Forward& f, const Level& level, PairTask task) {
  const int64_t d = f.width(), stride = level.pad(task.type, d);
  const PartialSums sums(level, task, d);
  const Scratch totals(task.items() * stride * sizeof(float));
  task.short_value_sums = sums.get();
  task.value_totals = totals.get();
  run(level, level.stored_transposed, task);
  ProductGradients out{f.empty(f.settings.landmarks(), d), std::vector<float>(f.matrices() * stride), stride};
  sums.add_up(out.d_folded);
  for (int64_t i = 0; i < f.matrices(); ++i)
    level.add_rows(Type::float32, static_cast<float*>(totals.get()) + i * task.splits * stride, stride, task.splits,
                   stride, out.d_mean.data() + i * stride);
  return out;
}

// The gradients of what was folded: of k(Km, K) V and the inverse, of the factors (batch, heads, m) and of the gains
// (batch, heads).
struct FoldGradients {
  Tensor d_summed, d_inverse;
  std::vector<float> d_factor, d_gain;
};

FoldGradients fold_backward(const Forward& f, const ProductGradients& grads) {
  const int64_t m = f.settings.landmarks(), d = f.width();
  const bool solves = f.settings.solves();
  const Tensor d_inverse = solves ? f.empty(m, m) : f.saved.solution.inverse;
  FoldGradients out{f.empty(m, d), d_inverse, std::vector<float>(f.matrices() * m), std::vector<float>(f.matrices())};
  each_folding(f.settings, f.saved.solution, f.factors, [&](int64_t i, Folding& folding, void* scratch) {
    const bool solved = folding.inverse != nullptr;
    folding.values = solved ? floats(f.saved.values) + i * m * d : nullptr;
    FoldingGradients of_head{};
    of_head.d_folded = floats(grads.d_folded) + i * m * d;
    of_head.d_mean = grads.d_mean.data() + i * grads.mean_stride;
    of_head.d_summed = floats(out.d_summed) + i * m * d;
    of_head.d_inverse = solved ? floats(out.d_inverse) + i * m * m : nullptr;
    if (solves && !solved) std::fill_n(floats(out.d_inverse) + i * m * m, m * m, 0.0f);
    of_head.d_factor = out.d_factor.data() + i * m;
    of_head.d_gain = out.d_gain.data() + i;
    f.settings.level.fold_backward(folding, of_head, scratch);
  });
  return out;
}

// Over how many rows the variance of each column was taken.
std::vector<float> rows_of_columns(const AttentionSettings& settings, int64_t batch) {
  const int64_t m = settings.landmarks();
  if (!settings.mask) return std::vector<float>(m, static_cast<float>(batch * settings.tokens()));
  std::vector<float> rows(m);
  for (int64_t item = 0; item < batch; ++item)
    for (int64_t j = 0; j < m; ++j)
      if (settings.mask->members(item)[j] > 0) rows[j] += static_cast<float>(settings.mask->tokens(item));
  return rows;
}

// The gradients of the queries, and of the landmarks that they were paired with.
std::tuple<Tensor, Tensor> kernel_backward(const Forward& f, const Level& level, PairTask task, Views& views,
                                           const std::vector<float>& d_factor) {
  const int64_t m = f.settings.landmarks(), d = f.width(), columns = f.heads() * m;
  const std::vector<float> d_factors = sum_over_images(d_factor, f.batch());
  const std::vector<float> rows = rows_of_columns(f.settings, f.batch());
  std::vector<float> slopes(f.matrices() * m), means(f.matrices() * m);
  for (int64_t i = 0; i < f.matrices() * m; ++i) {
    if (f.settings.mask && f.settings.mask->members(i / columns)[i % m] == 0) continue;
    const float factor = f.factors[i % columns];
    slopes[i] = -factor * factor * factor * d_factors[i % columns] / rows[i % m];
    means[i] = floats(f.saved.mean)[i % columns];
  }
  const Tensor dq = empty_as(f.q), d_landmarks = f.empty(m, d);
  const PartialSums sums(level, task, task.width);
  task.short_values = views(f.saved.folded);
  task.long_out = views(dq);
  task.short_sums = sums.get();
  task.slopes = slopes.data();
  task.means = means.data();
  run(level, level.stored_backward, task);
  sums.add_up(d_landmarks);
  return {dq, d_landmarks};
}

// Adds to the gradient of the keys that of their landmarks: rotated back, and spread over the cells.
void add_landmark_gradient(const AttentionSettings& settings, const Tensor& d_landmarks, const Tensor& dk) {
  const Rotation& rotation = settings.short_rotation();
  if (rotation) write_rotated(d_landmarks, rotation, -1, d_landmarks, settings.level);
  add_pool_gradient(settings.layout(), d_landmarks, dk, settings.level);
}

// With a mask, splits the gradient of the summed values: of items in which every token is a landmark, they are the
// values themselves. Their part is returned, and left out of `d_summed`.
Tensor take_exact(const Forward& f, const Tensor& d_summed) {
  const int64_t numbers = f.settings.landmarks() * f.width();
  const Tensor exact = f.zeros(f.settings.landmarks());
  for (int64_t i = 0; i < f.matrices(); ++i) {
    if (f.settings.solves(i / f.heads())) continue;
    std::copy_n(floats(d_summed) + i * numbers, numbers, floats(exact) + i * numbers);
    std::fill_n(floats(d_summed) + i * numbers, numbers, 0.0f);
  }
  return exact;
}

// The gradients of keys and values in 16 bits, from those of the summed values and of the landmarks without this part.
std::tuple<Tensor, Tensor> product_backward_in_16_bits(const Forward& f, const Tensor& d_summed, const RowPairs& pairs,
                                                       const Tensor& d_landmarks) {
  const int64_t m = f.settings.landmarks(), d = f.width();
  Tensor of_matrices = view(d_landmarks, {f.matrices(), m, d});
  const auto finish = [&](int64_t first, const Tensor& dm, const Tensor& dk) {
    const int64_t count = dm.size(0);
    const Tensor sum = view(narrow(of_matrices, 0, first, count), {1, count, m, d});
    accumulate(dm, sum);
    add_landmark_gradient(f.settings, sum, view(dk, {1, count, dk.size(1), d}));
  };
  return product_gradients_in_16_bits(d_summed, pairs, f.v, finish, f.settings.level);
}

// The gradients of keys and values, through the solution and the landmarks.
std::tuple<Tensor, Tensor> solve_backward(const Forward& f, const FoldGradients& grads, const Tensor& d_landmarks) {
  const AttentionSettings& settings = f.settings;
  const auto& [landmarks, w, inverse, summed] = f.saved.solution;
  const int64_t m = settings.landmarks();
  if (!settings.solves()) {
    const Tensor dk = f.zeros(settings.tokens());
    add_landmark_gradient(settings, d_landmarks, dk);
    if (!settings.mask) return {dk, grads.d_summed};
    const Tensor dv = f.zeros(settings.tokens());
    add_pool_gradient(settings.layout(), grads.d_summed, dv, settings.level);
    return {dk, dv};
  }
  const Tensor dw = f.empty(m, m);
  write_inverse_gradient(grads.d_inverse, w, {settings.iterations, settings.eps, true, true}, dw, settings.level);
  set_absent(settings, dw, 0.0f);
  const auto [dx, dy] = kernel_gradients(dw, {landmarks, landmarks, {}, settings.scale}, w, settings.level);
  for (const Tensor& part : {dx, dy}) accumulate(part, d_landmarks);
  const Tensor exact = settings.mask ? take_exact(f, grads.d_summed) : grads.d_summed;
  const RowPairs pairs{landmarks, f.k, settings.long_rotation(), settings.scale, settings.counts()};
  if (type_of(f.k) != Type::float32) return product_backward_in_16_bits(f, grads.d_summed, pairs, d_landmarks);
  auto [dm, dk, dv] = product_gradients(grads.d_summed, pairs, f.v, settings.level);
  accumulate(dm, d_landmarks);
  if (settings.mask) {
    dk = settings.mask->unpack(dk, settings.token_rotation, false, settings.level);
    dv = settings.mask->unpack(dv, {}, false, settings.level);
    add_pool_gradient(settings.layout(), exact, dv, settings.level);
  }
  add_landmark_gradient(settings, d_landmarks, dk);
  return {dk, dv};
}

// The gradients of q, k, v and of the gain of each head.
std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(Tensor given_grad, Tensor given_q, Tensor given_k,
                                                              Tensor given_v, std::optional<Tensor> mask,
                                                              Tensor given_variance, std::vector<Tensor> saved,
                                                              std::optional<Tensor> gains,
                                                              std::vector<Tensor> rotations, std::vector<int64_t> sizes,
                                                              std::vector<double> numbers, int64_t level_number) {
  if (gains) gains = restored(*gains);
  for (Tensor& table : rotations) table = restored(table);
  const AttentionSettings settings(given_q, mask, gains, rotations, sizes, numbers, level_number);
  const PackedTokens tokens(settings, dense(saved_tokens(given_q, given_grad)),
                            dense(saved_tokens(given_k, given_grad)), dense(saved_tokens(given_v, given_grad)));
  const Tensor variance = restored(given_variance);
  const Tensor grad = settings.mask ? settings.mask->pack(dense(given_grad), {}, settings.level) : dense(given_grad);
  Forward f{settings,
            tokens.q,
            tokens.k,
            tokens.v,
            variance,
            SavedAttention::from(saved),
            whitening_factors(variance, settings.variance_eps)};
  Solution& solution = f.saved.solution;
  constexpr auto kFloat32 = torch::headeronly::ScalarType::Float;
  if (solution.landmarks.numel() == 0) solution.landmarks = to(tokens.k, kFloat32);
  if (!settings.solves() && !settings.mask) solution.summed = to(tokens.v, kFloat32);

  Views views;
  PairTask task = make_task(settings.level, settings.with_landmarks(f.q, solution.landmarks), f.width(), views);
  task.kernel = views(f.saved.kernel);
  task.long_values = views(grad);
  const ProductGradients products = product_backward(f, settings.level, task);
  const FoldGradients folds = fold_backward(f, products);
  auto [dq, d_landmarks] = kernel_backward(f, settings.level, task, views, folds.d_factor);
  if (settings.mask) dq = settings.mask->unpack(dq, settings.token_rotation, false, settings.level);
  const auto [dk, dv] = solve_backward(f, folds, d_landmarks);

  const std::vector<float> d_gain = sum_over_images(folds.d_gain, f.batch());
  const Tensor d_gains = empty_floats(f.q, {f.heads()});
  std::copy(d_gain.begin(), d_gain.end(), floats(d_gains));
  const auto type = given_q.scalar_type();
  return {to(dq, type), to(dk, type), to(dv, type), d_gains};
}

}  // namespace
}  // namespace laplacianformer

STABLE_TORCH_LIBRARY_FRAGMENT(laplacianformer_cpu, m) {
  m.def(
      "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor variance, Tensor[] saved, "
      "Tensor? gains, Tensor[] rotations, int[] sizes, float[] numbers, int level) -> (Tensor, Tensor, Tensor, "
      "Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(laplacianformer_cpu, CPU, m) {
  m.impl("attention_backward", TORCH_BOX(&laplacianformer::attention_backward));
}
