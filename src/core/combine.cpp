#include "core/combine.hpp"

#include <cmath>
#include <limits>

namespace rocflash::core {

// Splits are weighted by their share of the softmax denominator and added in order.
void combine_row(const CombineCall& c, std::int64_t row) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::int64_t b = row / c.heads / c.queries, i = row / c.heads % c.queries,
                     h = row % c.heads;
  const auto lse_at = [&](std::int64_t part) {
    const auto& s = c.lse_partial_stride;
    return static_cast<double>(c.lse_partial[part * s[0] + b * s[1] + h * s[2] + i * s[3]]);
  };
  double highest = -infinity, sum = 0;
  for (std::int64_t n = 0; n < c.splits; ++n) {
    const double lse = lse_at(n);
    if (!std::isinf(lse) && !(lse <= highest)) highest = lse;  // true for NaN
  }
  for (std::int64_t n = 0; n < c.splits; ++n) {
    if (!std::isinf(lse_at(n))) sum += std::exp(lse_at(n) - highest);
  }
  constexpr int block = 64;
  const auto& s = c.out_partial_stride;
  const auto& to = c.out_stride;
  for (std::int64_t begin = 0; begin < c.columns; begin += block) {
    const auto columns = static_cast<int>(smaller(block, c.columns - begin));
    double value[block] = {};
    for (std::int64_t n = 0; n < c.splits; ++n) {
      if (std::isinf(lse_at(n))) continue;
      const double share = std::exp(lse_at(n) - highest) / sum;
      const float* part = c.out_partial + n * s[0] + b * s[1] + i * s[2] + h * s[3] + begin * s[4];
      for (int x = 0; x < columns; ++x) value[x] += share * static_cast<double>(part[x * s[4]]);
    }
    for (int x = 0; x < columns; ++x)
      store_double(c.out, c.out_dtype, b * to[0] + i * to[1] + h * to[2] + (begin + x) * to[3],
                   value[x]);
  }
  if (c.lse) {
    c.lse[b * c.lse_stride[0] + h * c.lse_stride[1] + i * c.lse_stride[2]] =
        static_cast<float>(highest == -infinity ? infinity : highest + std::log(sum));
  }
}

}  // namespace rocflash::core
