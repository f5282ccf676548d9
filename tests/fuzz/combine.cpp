#include "fuzz/combine.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fuzz/corrupt.hpp"

namespace rocflash::fuzz {
namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
}

CombineCall::CombineCall(Bytes& bytes, bool exact) {
  constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
  Bytes* strides = exact ? &bytes : nullptr;
  splits = bytes.range(1, 5);
  b = bytes.range(0, 3);
  h = bytes.range(1, 3);
  sq = bytes.range(0, 4);
  dv = bytes.range(1, 40);
  out_partial = Tensor(DType::f32, {splits, b, sq, h, dv}, strides, true);
  lse_partial = Tensor(DType::f32, {splits, b, h, sq}, strides, true);
  out = Tensor(bytes.pick(dtypes), {b, sq, h, dv}, strides);
  lse = Tensor(DType::f32, {b, h, sq}, strides);
  Random random{bytes.raw<std::uint32_t>()};
  for (std::int64_t n = 0; n < out_partial.size(); ++n) out_partial.set(n, random.value());
  for (std::int64_t n = 0; n < lse_partial.size(); ++n) {
    const bool fully_masked = random.bits() % 4 == 0;
    lse_partial.set(n, !fully_masked       ? 10 * random.value()
                       : random.bits() % 2 ? infinity
                                           : -infinity);
  }
  arguments[0] = &out_partial.dl;
  arguments[1] = &lse_partial.dl;
  arguments[2] = &out.dl;
  arguments[3] = bytes.chance(64) ? nullptr : &lse.dl;
}

void CombineCall::corrupt(Bytes& bytes) {
  Tensor* const all[] = {&out_partial, &lse_partial, &out, &lse};
  if (bytes.chance(160))
    corrupt_tensor(bytes, *bytes.pick(all));
  else
    arguments[bytes.range(0, 3)] = bytes.chance(128) ? nullptr : arguments[bytes.range(0, 2)];
}

rocflash_status CombineCall::run() {
  return rocflash_combine(arguments[0], arguments[1], arguments[2], arguments[3], nullptr);
}

const char* CombineCall::difference() {
  const auto at = [&](int split, int n, int i, int head) {
    return lse_partial.get(((std::int64_t{split} * b + n) * h + head) * sq + i);
  };
  for (int n = 0; n < b; ++n) {
    for (int i = 0; i < sq; ++i) {
      for (int head = 0; head < h; ++head) {
        double highest = -infinity, total = 0;
        for (int split = 0; split < splits; ++split)
          if (std::isfinite(at(split, n, i, head)))
            highest = std::max(highest, at(split, n, i, head));
        for (int split = 0; split < splits; ++split)
          if (std::isfinite(at(split, n, i, head)))
            total += std::exp(at(split, n, i, head) - highest);
        const double whole = total > 0 ? highest + std::log(total) : infinity;
        if (arguments[3]) {
          const double got = lse.get((std::int64_t{n} * h + head) * sq + i);
          if (total > 0 ? std::abs(got - whole) > 1e-5 : got != infinity) return "lse is wrong";
        }
        for (int c = 0; c < dv; ++c) {
          double sum = 0;
          for (int split = 0; split < splits; ++split) {
            const double partial = at(split, n, i, head);
            const std::int64_t row = ((std::int64_t{split} * b + n) * sq + i) * h + head;
            if (std::isfinite(partial))
              sum += std::exp(partial - whole) * out_partial.get(row * dv + c);
          }
          const double got = out.get(((std::int64_t{n} * sq + i) * h + head) * dv + c);
          if (std::abs(got - sum) > 4 * unit(out.dtype()) + 1e-5) return "out is wrong";
        }
      }
    }
  }
  return out.stray_writes() || lse.stray_writes() ? "wrote outside its outputs" : nullptr;
}

}  // namespace rocflash::fuzz
