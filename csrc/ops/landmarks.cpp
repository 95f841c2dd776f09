#include "ops/landmarks.h"

#include <torch/csrc/stable/ops.h>

#include "ops/threads.h"

namespace laplacianformer {

Box Layout::box(int64_t item) const {
  if (mask) return mask->box(item);
  Box whole{};
  for (int axis = 0; axis < 3; ++axis) {
    whole.extent[axis] = grid.length[axis];
    whole.cells[axis] = grid.cells[axis];
  }
  return whole;
}

Tensor pool_tokens(const Layout& layout, const Tensor& x, const Level& level) {
  const Grid& grid = layout.grid;
  const int64_t heads = x.size(1), m = grid.landmarks(), d = x.size(3);
  const Tensor landmarks = empty_floats(x, {x.size(0), heads, m, d});
  Views views;
  const Rows from = views(x);
  const Type type = type_of(x);
  const int64_t work = 1 + grid.tokens() / m * d, bytes = stored_bytes(type);
  torch::stable::parallel_for(0, x.size(0) * heads * m, 1 + kGrain / work, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const void* tokens = static_cast<const char*>(from.data) + from.offsets[i / m] * bytes;
      const Box box = layout.box(i / m / heads);
      level.pool(type, tokens, from.stride, grid, box, i % m, d, floats(landmarks) + i * d);
    }
  });
  return landmarks;
}

void add_pool_gradient(const Layout& layout, const Tensor& d_landmarks, const Tensor& dx, const Level& level) {
  const Grid& grid = layout.grid;
  const int64_t heads = dx.size(1), m = grid.landmarks(), d = dx.size(3), rows = grid.rows();
  const auto landmarks = [&](int64_t matrix) { return floats(d_landmarks) + matrix * m * d; };
  const auto tokens = [&](int64_t matrix) { return floats(dx) + matrix * grid.tokens() * d; };
  const int64_t grain = 1 + kGrain / (1 + grid.length[2] * d);
  torch::stable::parallel_for(0, dx.size(0) * heads * rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t matrix = i / rows, row = i % rows;
      level.pool_backward(landmarks(matrix), grid, layout.box(matrix / heads), row, d,
                          tokens(matrix) + (grid.prefix + row * grid.length[2]) * d);
    }
  });
  for (int64_t matrix = 0; matrix < dx.size(0) * heads; ++matrix) {
    const Box box = layout.box(matrix / heads);
    for (int64_t i = 0; i < grid.prefix; ++i)
      if (!box.mask || box.mask[i])
        for (int64_t k = 0; k < d; ++k) tokens(matrix)[i * d + k] += landmarks(matrix)[i * d + k];
  }
}

}  // namespace laplacianformer
