#include "api/combine.hpp"

#include <cmath>
#include <limits>

#include "api/check.hpp"
#include "api/checker.hpp"
#include "core/error.hpp"
#include "cpu/thread_pool.hpp"

namespace rocflash {
namespace {

struct Parts {
  Tensor out_partial, lse_partial, out;
  std::optional<Tensor> lse;

  std::int64_t count() const { return lse_partial.shape[0]; }
  float lse_of(std::int64_t part, std::int64_t b, std::int64_t i, std::int64_t h) const {
    const auto& s = lse_partial.stride;
    return reinterpret_cast<const float*>(
        lse_partial.data)[part * s[0] + b * s[1] + h * s[2] + i * s[3]];
  }
  const float* row_of(std::int64_t part, std::int64_t b, std::int64_t i, std::int64_t h) const {
    const auto& s = out_partial.stride;
    return reinterpret_cast<const float*>(out_partial.data) + part * s[0] + b * s[1] + i * s[2] +
           h * s[3];
  }
};

// One row: parts weighted by their share of the whole sum, added in order.
void combine_row(const Parts& p, std::int64_t b, std::int64_t i, std::int64_t h) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double highest = -infinity, sum = 0;
  const auto lse_at = [&](std::int64_t part) {
    return static_cast<double>(p.lse_of(part, b, i, h));
  };
  for (std::int64_t n = 0; n < p.count(); ++n) {
    const double lse = lse_at(n);
    if (!std::isinf(lse) && !(lse <= highest)) highest = lse;  // also takes a NaN
  }
  for (std::int64_t n = 0; n < p.count(); ++n) {
    if (!std::isinf(lse_at(n))) sum += std::exp(lse_at(n) - highest);
  }
  constexpr int block = 64;
  const auto& s = p.out.stride;
  for (std::int64_t begin = 0; begin < p.out.shape[3]; begin += block) {
    const auto columns = static_cast<int>(smaller(block, p.out.shape[3] - begin));
    double value[block] = {};
    for (std::int64_t n = 0; n < p.count(); ++n) {
      if (std::isinf(lse_at(n))) continue;
      const double share = std::exp(lse_at(n) - highest) / sum;
      const float* row = p.row_of(n, b, i, h) + begin * p.out_partial.stride[4];
      for (int c = 0; c < columns; ++c)
        value[c] += share * static_cast<double>(row[c * p.out_partial.stride[4]]);
    }
    for (int c = 0; c < columns; ++c)
      store_double(p.out.data, p.out.dtype, b * s[0] + i * s[1] + h * s[2] + (begin + c) * s[3],
                   value[c]);
  }
  if (p.lse) {
    const auto& t = p.lse->stride;
    store_double(p.lse->data, DType::f32, b * t[0] + h * t[1] + i * t[2],
                 highest == -infinity ? infinity : highest + std::log(sum));
  }
}

}  // namespace

void combine(const DLTensor* out_partial, const DLTensor* lse_partial, const DLTensor* out,
             const DLTensor* lse, const rocflash_execution* execution_in) {
  const rocflash_execution execution = read_execution(execution_in);
  if (!out_partial) refuse("out_partial: is null, but it is needed");
  Checker check(read_tensor("out_partial", out_partial, Access::read, Data::required)->device,
                Data::required);
  Parts p{check.required("out_partial", out_partial, Access::read),
          check.required("lse_partial", lse_partial, Access::read),
          check.required("out", out, Access::write), check.optional("lse", lse, Access::write)};
  check_dtype(p.out_partial, {DType::f32});
  check_dtype(p.lse_partial, {DType::f32});
  check_dtype(p.out, {DType::f32, DType::f16, DType::bf16});
  check_ndim(p.out_partial, 5, "(parts, b, sq, h, dv)");
  const auto& shape = p.out_partial.shape;
  check_shape(p.lse_partial, {shape[0], shape[1], shape[3], shape[2]}, "(parts, b, h, sq)");
  check_shape(p.out, {shape[1], shape[2], shape[3], shape[4]}, "(b, sq, h, dv)");
  if (p.lse) {
    check_dtype(*p.lse, {DType::f32});
    check_shape(*p.lse, {shape[1], shape[3], shape[2]}, "(b, h, sq)");
  }
  if (p.out_partial.device.type != kDLCPU)
    refuse_unsupported("out_partial: is on ", device_text(p.out_partial.device),
                       "; parts are merged on the CPU only");
  const std::int64_t queries = shape[2], heads = shape[3];
  parallel_for(p.out.empty() ? 0 : shape[1] * queries * heads,
               check_execution(execution, p.out.device).threads, [&](std::int64_t row, int) {
                 combine_row(p, row / heads / queries, row / heads % queries, row % heads);
               });
}

}  // namespace rocflash
