// Gradients of the bias and of the ALiBi slopes from a tile of score gradients: accumulated in the
// workspace, or stored directly if the bias is not broadcast.
#pragma once

#include "cpu/kernels.hpp"
#include "cpu/kernels/score.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Stores a row of floats to strided elements.
ROCFLASH_INLINE void store_elements(std::byte* to, DType dtype, std::int64_t stride,
                                    const float* from, int count) {
  if (stride == 1) return store_row(to, dtype, from, count);
  with_elements(dtype, to, [&](auto* row) {
    for (int n = 0; n < count; ++n) store_scalar(row + n * stride, from[n]);
  });
}

// `gradients` is [query][lane] in whole vectors of keys; lanes past the last key are 0.
ROCFLASH_INLINE void add_bias_gradient(const Head& head, const BackwardTensors& t,
                                       const BiasAccumulators& sums, const Tile& tile,
                                       Panel<const float> gradients, int panel) {
  const std::int64_t rows = tile.queries.size();
  if (!sums.data) {
    const float scale = head.problem.dropout.scale();
    const auto keys = static_cast<int>(tile.keys.size());
    float row[lane_rows];
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int m = 0; m < panel; m += width) store(row + m, load(gradients.at(r, m).data) * scale);
      std::byte* const to =
          t.dbias.row(head.b, head.h, tile.queries.begin + r) +
          tile.keys.begin * t.dbias.key_stride * static_cast<std::int64_t>(size_of(t.dbias.dtype));
      store_elements(to, t.dbias.dtype, t.dbias.key_stride, row, keys);
    }
    return;
  }
  float* const first = sums.row(head.b, head.h, tile.queries.begin);
  if (sums.key_step == 0) {
    for (std::int64_t r = 0; r < rows; ++r) {
      Float total{};
      for (int m = 0; m < panel; m += width) total += load(gradients.at(r, m).data);
      first[r * sums.query_stride] += sum_of(total);
    }
    return;
  }
  for (int m = 0; m < panel; m += width) {
    float* const lanes = first + tile.keys.begin + m;
    if (sums.query_stride == 0) {
      Float total{};
      for (std::int64_t r = 0; r < rows; ++r) total += load(gradients.at(r, m).data);
      store(lanes, load(lanes) + total);
      continue;
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      float* const to = lanes + r * sums.query_stride;
      store(to, load(to) + load(gradients.at(r, m).data));
    }
  }
}

// The tile's contribution to the slope gradient of its head, without the dropout scale.
ROCFLASH_INLINE double slope_gradient(const Head& head, const Tile& tile,
                                      Panel<const float> gradients, int panel) {
  double sum = 0;
  for (std::int64_t r = 0; r < tile.queries.size(); ++r) {
    const std::int64_t position = tile.queries.begin + r + head.sequence.sk - head.sequence.sq;
    const auto first = static_cast<float>(tile.keys.begin - position);
    Float total{};
    for (int m = 0; m < panel; m += width) {
      const Float distance = first + to_float(lane_index() + m);
      total += load(gradients.at(r, m).data) * (distance < 0.0f ? -distance : distance);
    }
    sum -= static_cast<double>(sum_of(total));
  }
  return sum;
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
