// The global branch of the attention in evaluation, in one call. For one small image the calls of its parts take as long
// as their work. float32; the parts are those of extension.cpp.
#pragma once

namespace laplacianformer {
namespace {

struct Grid {
  int64_t rows, columns;
  int64_t count() const { return rows * columns; }
};

// The first place of a cell, and one past its last: cells overlap by one place where lengths don't divide.
struct Range {
  int64_t begin, end;
  Range(int64_t cell, int64_t cells, int64_t length)
      : begin(cell * length / cells), end(((cell + 1) * length + cells - 1) / cells) {}
  int64_t length() const { return end - begin; }
};

// The mean of the tokens of each cell, summed row by row.
void pool_cell(const float* tokens, int64_t stride, int64_t columns, Range y, Range x, int64_t width, float* out) {
  std::vector<float> row(width);
  for (int64_t k = 0; k < width; ++k) out[k] = 0;
  for (int64_t i = y.begin; i < y.end; ++i) {
    for (int64_t k = 0; k < width; ++k) row[k] = 0;
    for (int64_t j = x.begin; j < x.end; ++j) {
      const float* token = tokens + (i * columns + j) * stride;
      for (int64_t k = 0; k < width; ++k) row[k] += token[k];
    }
    for (int64_t k = 0; k < width; ++k) out[k] += row[k];
  }
  const float share = 1.0f / static_cast<float>(y.length() * x.length());
  for (int64_t k = 0; k < width; ++k) out[k] *= share;
}

void pool(const Tensor& x, Grid size, Grid cells, const Tensor& out) {
  Views views;
  const Rows from = views(x);
  const int64_t width = x.size(x.dim() - 1), matrices = out.numel() / (cells.count() * width);
  const int64_t work = 1 + size.count() / cells.count() * width;
  float* to = static_cast<float*>(out.data_ptr());
  torch::stable::parallel_for(0, matrices * cells.count(), 1 + kGrain / work, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t matrix = item / cells.count(), cell = item % cells.count();
      const float* tokens = static_cast<const float*>(from.data) + from.offsets[matrix];
      pool_cell(tokens, from.stride, size.columns, Range(cell / cells.columns, cells.rows, size.rows),
                Range(cell % cells.columns, cells.columns, size.columns), width, to + item * width);
    }
  });
}

// What the landmarks stand for, L = share inv(W) (B V), its mean, and gain / m (D L - mean(D L)), for one head.
// `summed` is B V and becomes the last of these.
void solve_and_fold(const float* inverse, const float* factor, float share, float gain, int64_t m, int64_t width,
                    float* summed, float* mean) {
  std::vector<float> values(m * width), centre(width);
  for (int64_t k = 0; k < width; ++k) mean[k] = 0;
  for (int64_t i = 0; i < m; ++i) {
    float* value = values.data() + i * width;
    for (int64_t j = 0; j < m; ++j)
      for (int64_t k = 0; k < width; ++k) value[k] += inverse[i * m + j] * summed[j * width + k];
    for (int64_t k = 0; k < width; ++k) {
      value[k] *= share;
      mean[k] += value[k];
      if (factor) value[k] *= factor[i];
      centre[k] += value[k];
    }
  }
  for (int64_t k = 0; k < width; ++k) {
    mean[k] /= static_cast<float>(m);
    centre[k] /= static_cast<float>(m);
    for (int64_t i = 0; i < m; ++i)
      summed[i * width + k] = gain / static_cast<float>(m) * (values[i * width + k] - centre[k]);
  }
}

// q, k, v: (batch, heads, tokens, width). cosines and sines: of the tokens, and of the cells. factor: (heads, cells), gain:
// (heads). out is dense in its last dimension.
void branch(Tensor q, Tensor k, Tensor v, Angles cosines, Angles sines, Angles cell_cosines, Angles cell_sines,
            std::optional<Tensor> factor, Tensor gain, Tensor out, int64_t height, int64_t width, int64_t rows,
            int64_t columns, double scale, double eps, int64_t iterations, int64_t which) {
  const Grid size{height, width}, cells{rows, columns};
  const int64_t batch = q.size(0), heads = q.size(1), d = q.size(3), m = cells.count();
  const Tensor landmarks = new_empty(q, {batch, heads, m, d}), w = new_empty(q, {batch, heads, m, m});
  const Tensor inverse = new_empty(q, {batch, heads, m, m}), folded = new_empty(q, {batch, heads, m, d});
  const Tensor mean = new_empty(q, {batch, heads, d});
  pool(k, size, cells, landmarks);
  if (cell_cosines) rotate(landmarks, *cell_cosines, *cell_sines, landmarks, which);
  write_kernel(landmarks, landmarks, std::nullopt, std::nullopt, w, scale, which);
  inverse_forward(w, inverse, iterations, eps, true, which);
  product(landmarks, k, v, cosines, sines, folded, nullptr, scale, which);
  const auto data = [](const Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); };
  torch::stable::parallel_for(0, batch * heads, 1 + kGrain / (m * m * d), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      solve_and_fold(data(inverse) + i * m * m, factor ? data(*factor) + i % heads * m : nullptr,
                     static_cast<float>(m) / static_cast<float>(size.count()), data(gain)[i % heads], m, d,
                     data(folded) + i * m * d, data(mean) + i * d);
  });
  product(q, landmarks, folded, cosines, sines, out, mean.data_ptr(), scale, which);
}

}  // namespace
}  // namespace laplacianformer
