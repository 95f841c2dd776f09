// The global branch of the attention, in one call for evaluation and in one a direction for training: for small images
// the calls of its parts take as long as their work. Everything but the tokens is float32, in training they are too; the
// parts are those of extension.cpp.
#pragma once

namespace laplacianformer {
namespace {

float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

// What all of them are given beside tensors. Tokens and landmarks are on grids of rows by columns; where these are the
// same, every token is a landmark and nothing is solved.
struct Branch {
  int64_t height, width, rows, columns;
  double scale, eps;  // Of the kernel; of the solved matrix.
  int64_t iterations, which;

  int64_t tokens() const { return height * width; }
  int64_t landmarks() const { return rows * columns; }
  bool solves() const { return tokens() != landmarks(); }
  float share() const { return static_cast<float>(landmarks()) / static_cast<float>(tokens()); }
  const Level& level() const { return level_of(which); }
};

// Rotations of the tokens and of the landmarks, or none.
struct Turns {
  Angles cosines, sines, cell_cosines, cell_sines;
};

// The gain of each head: one number, or a tensor.
struct Gain {
  double number;
  const std::optional<Tensor>& of_heads;
  float operator()(int64_t head) const { return of_heads ? floats(*of_heads)[head] : static_cast<float>(number); }
};

constexpr auto kFloat = torch::headeronly::ScalarType::Float;

Tensor new_floats(const Tensor& like, std::initializer_list<int64_t> shape) {
  return new_empty(like, std::vector<int64_t>(shape), kFloat);
}

// The keys averaged over each cell, turned to their places.
Tensor place_landmarks(const Branch& b, const Tensor& k, const Turns& turns) {
  const int64_t m = b.landmarks(), d = k.size(3);
  if (!b.solves() && !turns.cosines) return k;
  const Tensor landmarks = new_floats(k, {k.size(0), k.size(1), m, d});
  if (!b.solves()) {
    turn(k, *turns.cosines, *turns.sines, 1, landmarks, b.which);
    return landmarks;
  }
  Views views;
  const Rows from = views(k);
  const Type type = type_of(k);
  const int64_t work = 1 + b.tokens() / m * d, bytes = stored_bytes(type);
  torch::stable::parallel_for(0, k.size(0) * k.size(1) * m, 1 + kGrain / work, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t cell = i % m;
      b.level().pool(type, static_cast<const char*>(from.data) + from.offsets[i / m] * bytes, from.stride, b.width,
                     Range(cell / b.columns, b.rows, b.height), Range(cell % b.columns, b.columns, b.width), d,
                     floats(landmarks) + i * d);
    }
  });
  if (turns.cell_cosines) turn(landmarks, *turns.cell_cosines, *turns.cell_sines, 1, landmarks, b.which);
  return landmarks;
}

// 1 / sqrt(variance + eps), the factors of the whitening.
std::vector<float> factors_of(const Tensor& variance, double eps) {
  std::vector<float> factors(variance.numel());
  for (int64_t i = 0; i < variance.numel(); ++i)
    factors[i] = static_cast<float>(1 / std::sqrt(floats(variance)[i] + eps));
  return factors;
}

// The landmarks, and what each stands for; `summed` is V itself where nothing is solved.
struct Solved {
  Tensor landmarks, w, inverse, summed;
};

Solved solve(const Branch& b, const Tensor& k, const Tensor& v, const Turns& turns) {
  if (!b.solves()) {
    const Tensor none = new_floats(k, {0});
    return {place_landmarks(b, to(k, kFloat), turns), none, none, to(v, kFloat)};
  }
  const Tensor landmarks = place_landmarks(b, k, turns);
  const int64_t batch = k.size(0), heads = k.size(1), m = b.landmarks();
  const Tensor w = new_floats(k, {batch, heads, m, m}), inverse = new_floats(k, {batch, heads, m, m});
  const Tensor summed = new_floats(k, {batch, heads, m, v.size(3)});
  write_kernel(landmarks, landmarks, std::nullopt, std::nullopt, w, b.scale, b.which);
  inverse_forward(w, inverse, b.iterations, b.eps, true, b.which);
  product(landmarks, k, v, turns.cosines, turns.sines, summed, nullptr, b.scale, b.which);
  return {landmarks, w, inverse, summed};
}

// Calls f(head of all images, its folding, scratch) for each, on torch's threads.
template <class F>
void each_folding(const Branch& b, const Tensor& inverse, const Tensor& summed, const float* factors, const Gain& gain,
                  F f) {
  Views views;
  const Rows rows = views(summed);
  const int64_t heads = summed.size(1), m = b.landmarks(), d = summed.size(3);
  Folding folding{m, d, b.share(), 0, nullptr, nullptr, nullptr, rows.stride, nullptr, nullptr, nullptr};
  const size_t bytes = b.level().folding_bytes(folding);
  const int64_t grain = 1 + kGrain / (1 + m * m * d);
  share_items(summed.size(0) * heads, grain, bytes, [&](int64_t first, int64_t last, void* scratch) {
    for (int64_t i = first; i < last; ++i) {
      Folding one = folding;
      one.gain = gain(i % heads);
      one.inverse = b.solves() ? floats(inverse) + i * m * m : nullptr;
      one.factor = factors ? factors + i % heads * m : nullptr;
      one.summed = static_cast<const float*>(rows.data) + rows.offsets[i];
      f(i, one, scratch);
    }
  });
}

// q, k, v: (batch, heads, tokens, width). variance: (heads, cells) of the whitening, or none. Returns the same shape,
// with the layout of (batch, tokens, heads, width).
//
// Tokens may be bfloat16 or float16, as under autocast: they are widened as they are read.
Tensor branch(Tensor given_q, Tensor given_k, Tensor given_v, Angles cosines, Angles sines, Angles cell_cosines,
              Angles cell_sines, std::optional<Tensor> variance, std::optional<Tensor> gains, double gain, int64_t height,
              int64_t width, int64_t rows, int64_t columns, double scale, double eps, double variance_eps,
              int64_t iterations, int64_t which) {
  const Branch b{height, width, rows, columns, scale, eps, iterations, which};
  const Tensor q = dense(given_q), k = dense(given_k), v = dense(given_v);
  const int64_t batch = q.size(0), heads = q.size(1), m = b.landmarks(), d = q.size(3);
  const Solved solved = solve(b, k, v, {cosines, sines, cell_cosines, cell_sines});
  const Tensor folded = new_floats(q, {batch, heads, m, d}), mean = new_floats(q, {batch, heads, d});
  const std::vector<float> factors = variance ? factors_of(*variance, variance_eps) : std::vector<float>();
  each_folding(b, solved.inverse, solved.summed, variance ? factors.data() : nullptr, {gain, gains},
               [&](int64_t i, Folding& folding, void* scratch) {
                 folding.folded = floats(folded) + i * m * d;
                 folding.mean = floats(mean) + i * d;
                 b.level().fold(folding, scratch);
               });
  const Tensor out = transpose(new_empty(q, {batch, b.tokens(), heads, d}), 1, 2);
  product(q, solved.landmarks, folded, cosines, sines, out, mean.data_ptr(), scale, which);
  return out;
}

// The same in training, whitened by the variance of the kernel itself. Returns the result, the mean and the variance of
// the kernel's columns, (heads, cells), and what the gradient needs: the kernel, landmarks, w, inverse, summed, values,
// folded. Those that are not needed, or are an input, are empty.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> branch_forward(
    Tensor given_q, Tensor given_k, Tensor given_v, Angles cosines, Angles sines, Angles cell_cosines, Angles cell_sines,
    std::optional<Tensor> gains, double gain, int64_t height, int64_t width, int64_t rows, int64_t columns, double scale,
    double eps, double variance_eps, int64_t iterations, int64_t which) {
  const Branch b{height, width, rows, columns, scale, eps, iterations, which};
  const Tensor q = dense(given_q), k = dense(given_k), v = dense(given_v);
  const int64_t batch = q.size(0), heads = q.size(1), m = b.landmarks(), d = q.size(3);
  const Solved solved = solve(b, k, v, {cosines, sines, cell_cosines, cell_sines});
  const Tensor kernel = new_empty(q, {batch, heads, b.tokens(), m});
  write_kernel(q, solved.landmarks, cosines, sines, kernel, scale, which);
  const Tensor mean = new_empty(q, {heads, m}), variance = new_empty(q, {heads, m});
  variance_forward(kernel, mean, variance, which);
  const std::vector<float> factors = factors_of(variance, variance_eps);
  const Tensor folded = new_empty(q, {batch, heads, m, d}), none = new_empty(q, {0});
  const Tensor values = b.solves() ? new_empty(q, {batch, heads, m, d}) : none;
  const Tensor start = new_empty(q, {batch, heads, d});
  each_folding(b, solved.inverse, solved.summed, factors.data(), {gain, gains},
               [&](int64_t i, Folding& folding, void* scratch) {
                 folding.values = b.solves() ? floats(values) + i * m * d : nullptr;
                 folding.folded = floats(folded) + i * m * d;
                 folding.mean = floats(start) + i * d;
                 b.level().fold(folding, scratch);
               });
  const Tensor out = transpose(new_empty(q, {batch, b.tokens(), heads, d}), 1, 2);
  Views views;
  Task task = make_task(b.level(), q, solved.landmarks, d, std::nullopt, std::nullopt, scale, views);
  task.kernel = views(kernel);
  task.short_values = views(folded);
  task.long_value_out = views(out);
  task.start = start.data_ptr();
  run(b.level(), b.level().stored_forward, task);
  const bool own = b.solves() || cosines;  // Or the landmarks are the keys themselves.
  const Tensor landmarks = own ? solved.landmarks : none, summed = b.solves() ? solved.summed : none;
  return {out, mean, variance, kernel, landmarks, solved.w, solved.inverse, summed, values, folded};
}

// The gradient of the keys from that of their landmarks, added to what is there: turned back, spread over the cells.
void unplace_landmarks(const Branch& b, const Tensor& d_landmarks, const Turns& turns, const Tensor& dk) {
  const int64_t m = b.landmarks(), d = dk.size(3), matrices = dk.size(0) * dk.size(1);
  const Angles& cosines = b.solves() ? turns.cell_cosines : turns.cosines;
  const Angles& sines = b.solves() ? turns.cell_sines : turns.sines;
  if (cosines) turn(d_landmarks, *cosines, *sines, -1, d_landmarks, b.which);
  const int64_t work = 1 + b.width * d;
  torch::stable::parallel_for(0, matrices * b.height, 1 + kGrain / work, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      b.level().spread(floats(d_landmarks) + i / b.height * m * d, i % b.height, b.height, b.width, b.rows, b.columns, d,
                       floats(dk) + i * b.width * d);
  });
}

// sum += term, both dense and small.
void accumulate(const Tensor& term, const Tensor& sum) {
  for (int64_t i = 0; i < sum.numel(); ++i) floats(sum)[i] += floats(term)[i];
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

// What was kept for the gradient, as it was: whoever stored it meanwhile may have changed it.
const Tensor& float32(const Tensor& tensor) {
  if (type_of(tensor) != Type::float32) throw std::invalid_argument("what is kept for the gradient must stay float32");
  return tensor;
}

Tensor kept(const Tensor& tensor) { return float32(tensor).is_contiguous() ? tensor : contiguous(tensor); }

// The gradients of q, k, v and of the gain of each head.
std::tuple<Tensor, Tensor, Tensor, Tensor> branch_backward(
    Tensor given_grad, Tensor given_q, Tensor given_k, Tensor given_v, Tensor kept_mean, Tensor kept_variance,
    Tensor kept_kernel, Tensor kept_landmarks, Tensor kept_w, Tensor kept_inverse, Tensor kept_summed, Tensor kept_values,
    Tensor kept_folded, Angles kept_cosines, Angles kept_sines, Angles kept_cell_cosines, Angles kept_cell_sines,
    std::optional<Tensor> kept_gains, double gain, int64_t height, int64_t width, int64_t rows, int64_t columns, double scale,
    double eps, double variance_eps, int64_t iterations, int64_t which) {
  const Branch b{height, width, rows, columns, scale, eps, iterations, which};
  const Level& level = b.level();
  const Tensor grad = dense(given_grad), q = dense(float32(given_q));
  const Tensor k = dense(float32(given_k)), v = dense(float32(given_v));
  const Tensor mean = kept(kept_mean), variance = kept(kept_variance), kernel = kept(kept_kernel), w = kept(kept_w);
  const Tensor landmarks = kept_landmarks.numel() > 0 ? kept(kept_landmarks) : k, inverse = kept(kept_inverse);
  const Tensor summed = b.solves() ? kept(kept_summed) : v, values = kept(kept_values), folded = kept(kept_folded);
  const auto table = [](const Angles& angles) { return angles ? Angles(kept(*angles)) : std::nullopt; };
  const Angles cosines = table(kept_cosines), sines = table(kept_sines), gains = table(kept_gains);
  const Angles cell_cosines = table(kept_cell_cosines), cell_sines = table(kept_cell_sines);
  const int64_t batch = q.size(0), heads = q.size(1), m = b.landmarks(), d = q.size(3), matrices = batch * heads;

  // Of what the kernel is multiplied with, and of the mean that is added to each row.
  Views views;
  Task task = make_task(level, q, landmarks, d, cosines, sines, scale, views);
  task.kernel = views(kernel);
  task.long_values = views(grad);
  const int64_t value_stride = level.pad(task.type, d), stride = level.pad(task.type, task.width);
  const Scratch value_sums(shares_bytes(task, value_stride)), totals(task.items() * value_stride * sizeof(float));
  task.short_value_sums = value_sums.get();
  task.value_totals = totals.get();
  run(level, level.stored_transposed, task);
  const Tensor d_folded = new_empty(q, {batch, heads, m, d});
  add_shares(level, task, value_sums.get(), d, value_stride, d_folded);
  std::vector<float> d_mean(matrices * value_stride);
  for (int64_t i = 0; i < matrices; ++i)
    level.add_shares(task.type, static_cast<float*>(totals.get()) + i * task.splits * value_stride, value_stride,
                     task.splits, value_stride, d_mean.data() + i * value_stride);

  // Through the folding and the solution, and to the variance.
  const Tensor d_summed = new_empty(q, {batch, heads, m, d});
  const Tensor d_inverse = b.solves() ? new_empty(q, {batch, heads, m, m}) : inverse;
  const std::vector<float> factors = factors_of(variance, variance_eps);
  std::vector<float> d_factor(matrices * m), d_gain(matrices);
  each_folding(b, inverse, summed, factors.data(), {gain, gains}, [&](int64_t i, Folding& folding, void* scratch) {
    folding.values = b.solves() ? floats(values) + i * m * d : nullptr;
    const Unfolding grads{floats(d_folded) + i * m * d,
                          d_mean.data() + i * value_stride,
                          floats(d_summed) + i * m * d,
                          b.solves() ? floats(d_inverse) + i * m * m : nullptr,
                          d_factor.data() + i * m,
                          d_gain.data() + i};
    level.unfold(folding, grads, scratch);
  });
  const std::vector<float> of_factors = sum_over_images(d_factor, batch);
  std::vector<float> slopes(matrices * m), means(matrices * m);
  for (int64_t i = 0; i < matrices * m; ++i) {
    const float factor = factors[i % (heads * m)];
    slopes[i] = -factor * factor * factor * of_factors[i % (heads * m)] / static_cast<float>(batch * b.tokens());
    means[i] = floats(mean)[i % (heads * m)];
  }

  // Of the queries, and of the landmarks as their partners.
  const Tensor dq = new_empty(q, {batch, heads, b.tokens(), d}), d_landmarks = new_empty(q, {batch, heads, m, d});
  const Scratch sums(shares_bytes(task, stride));
  task.short_values = views(folded);
  task.long_out = views(dq);
  task.short_sums = sums.get();
  task.slopes = slopes.data();
  task.means = means.data();
  run(level, level.stored_backward, task);
  add_shares(level, task, sums.get(), d, stride, d_landmarks);

  const std::vector<float> of_gains = sum_over_images(d_gain, batch);
  const Tensor of_heads = new_empty(q, {heads});
  std::copy(of_gains.begin(), of_gains.end(), floats(of_heads));
  const Turns turns{cosines, sines, cell_cosines, cell_sines};
  if (!b.solves()) {
    const Tensor dk = new_zeros(q, {batch, heads, m, d});
    unplace_landmarks(b, d_landmarks, turns, dk);
    return {dq, dk, d_summed, of_heads};
  }
  const Tensor dw = new_empty(q, {batch, heads, m, m});
  invert_back(d_inverse, w, dw, iterations, eps, true, true, which);
  const auto [dx, dy] = kernel_backward(dw, landmarks, landmarks, w, std::nullopt, std::nullopt, scale, which);
  const auto [dm, dk, dv] = matmul_backward(d_summed, landmarks, k, v, cosines, sines, scale, which);
  for (const Tensor& part : {dx, dy, dm}) accumulate(part, d_landmarks);
  unplace_landmarks(b, d_landmarks, turns, dk);
  return {dq, dk, dv, of_heads};
}

}  // namespace
}  // namespace laplacianformer
