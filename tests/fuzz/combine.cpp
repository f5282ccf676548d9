#include "fuzz/combine.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fuzz/damage.hpp"

namespace rocflash::fuzz {
namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
}

CombineCall::CombineCall(Bytes& bytes, bool exact) {
  constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
  Bytes* strides = exact ? &bytes : nullptr;
  parts = bytes.range(1, 5);
  b = bytes.range(0, 3);
  h = bytes.range(1, 3);
  sq = bytes.range(0, 4);
  dv = bytes.range(1, 40);
  out_partial = Tensor(DType::f32, {parts, b, sq, h, dv}, strides, true);
  lse_partial = Tensor(DType::f32, {parts, b, h, sq}, strides, true);
  out = Tensor(bytes.pick(dtypes), {b, sq, h, dv}, strides);
  lse = Tensor(DType::f32, {b, h, sq}, strides);
  Random random{bytes.raw<std::uint32_t>()};
  for (std::int64_t n = 0; n < out_partial.size(); ++n) out_partial.set(n, random.value());
  for (std::int64_t n = 0; n < lse_partial.size(); ++n) {
    const bool blind = random.bits() % 4 == 0;  // a part that saw nothing
    lse_partial.set(n, !blind ? 10 * random.value() : random.bits() % 2 ? infinity : -infinity);
  }
  given[0] = &out_partial.dl;
  given[1] = &lse_partial.dl;
  given[2] = &out.dl;
  given[3] = bytes.chance(64) ? nullptr : &lse.dl;
}

void CombineCall::damage(Bytes& bytes) {
  Tensor* const all[] = {&out_partial, &lse_partial, &out, &lse};
  if (bytes.chance(160))
    damage_tensor(bytes, *bytes.pick(all));
  else
    given[bytes.range(0, 3)] = bytes.chance(128) ? nullptr : given[bytes.range(0, 2)];
}

rocflash_status CombineCall::run() {
  return rocflash_combine(given[0], given[1], given[2], given[3], nullptr);
}

const char* CombineCall::mistake() {
  const auto at = [&](int part, int n, int i, int head) {
    return lse_partial.get(((std::int64_t{part} * b + n) * h + head) * sq + i);
  };
  for (int n = 0; n < b; ++n) {
    for (int i = 0; i < sq; ++i) {
      for (int head = 0; head < h; ++head) {
        double highest = -infinity, total = 0;
        for (int part = 0; part < parts; ++part)
          if (std::isfinite(at(part, n, i, head)))
            highest = std::max(highest, at(part, n, i, head));
        for (int part = 0; part < parts; ++part)
          if (std::isfinite(at(part, n, i, head)))
            total += std::exp(at(part, n, i, head) - highest);
        const double whole = total > 0 ? highest + std::log(total) : infinity;
        if (given[3]) {
          const double got = lse.get((std::int64_t{n} * h + head) * sq + i);
          if (total > 0 ? std::abs(got - whole) > 1e-5 : got != infinity) return "lse is wrong";
        }
        for (int c = 0; c < dv; ++c) {
          double sum = 0;
          for (int part = 0; part < parts; ++part) {
            const double seen = at(part, n, i, head);
            const std::int64_t row = ((std::int64_t{part} * b + n) * sq + i) * h + head;
            if (std::isfinite(seen)) sum += std::exp(seen - whole) * out_partial.get(row * dv + c);
          }
          const double got = out.get(((std::int64_t{n} * sq + i) * h + head) * dv + c);
          if (std::abs(got - sum) > 4 * unit(out.dtype()) + 1e-5) return "out is wrong";
        }
      }
    }
  }
  return out.stray_writes() || lse.stray_writes() ? "wrote outside of its outputs" : nullptr;
}

}  // namespace rocflash::fuzz
