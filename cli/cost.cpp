#include "cost.hpp"

#include <algorithm>
#include <iterator>

#include "core/visibility.hpp"
#include "gpu/family.hpp"
#include "table/backward.hpp"
#include "table/forward.hpp"

namespace rocflash::cli {
namespace {

Visibility visibility_of(const CostShape& s) {
  return {.left = s.left, .right = s.causal ? 0 : s.right, .chunk = 0};
}

double product(std::initializer_list<std::int64_t> sizes) {
  double p = 1;
  for (const std::int64_t n : sizes) p *= static_cast<double>(n);
  return p;
}

}  // namespace

double forward_flops(const CostShape& s) {
  double pairs = product({s.sq, s.sk});
  if (s.left >= 0 || s.right >= 0) {
    pairs = 0;
    for (std::int64_t i = 0; i < s.sq; ++i) {
      const Range keys = visible_keys(visibility_of(s), i, s.sq, s.sk);
      if (!keys.empty()) pairs += static_cast<double>(keys.end - keys.begin);
    }
  } else if (s.causal) {
    pairs /= 2;
  }
  return 4.0 * product({s.b, s.h, s.d}) * pairs;
}

Traffic forward_traffic(const CostShape& s, const std::string& family) {
  constexpr double element = 2, f32 = 4;
  const double queries = product({s.b, s.h, s.sq, 2 * s.d}) * element +  // q and out
                         product({s.b, s.h, s.sq}) * f32;
  Traffic t;
  t.least = queries + product({s.b, s.hk, s.sk, 2 * s.d}) * element;
  const auto which = gpu::family_of(family);
  constexpr DType dtype = DType::f16;  // tiles depend only on the element size
  const int bucket =
      kernel::bucket_of(kernel::Op::forward, kernel::Schedule::tiled, dtype, static_cast<int>(s.d));
  if (!which || bucket == 0) return t;
  const auto tile = kernel::forward_tile(
      *which, kernel::forward_spec(dtype, bucket, kernel::Variant::specialized));
  if (tile.keys == 0) return t;
  double rows = 0;  // of keys, for one head
  for (std::int64_t begin = 0; begin < s.sq; begin += tile.queries) {
    const Range block{begin, smaller(begin + tile.queries, s.sq)};
    const Range keys = visible_keys(visibility_of(s), block, s.sq, s.sk);
    if (keys.empty()) continue;
    const std::int64_t first = keys.begin / 8 * 8;
    const std::int64_t tiles = (keys.end - first + tile.keys - 1) / tile.keys;
    rows += static_cast<double>(smaller(first + tiles * tile.keys, s.sk) - first);
  }
  t.requested = queries + product({s.b, s.h, 2 * s.d}) * rows * element;
  return t;
}

Traffic backward_traffic(const CostShape& s, const std::string& family) {
  using kernel::Op;
  using kernel::Schedule;
  constexpr double element = 2, f32 = 4;
  const double q = product({s.b, s.h, s.sq, s.d}) * element,
               k = product({s.b, s.hk, s.sk, s.d}) * element, lse = product({s.b, s.h, s.sq}) * f32;
  Traffic t;
  t.least = 4 * q + 4 * k + lse;  // q, dout, out and dq; k, v, dk and dv
  const auto which = gpu::family_of(family);
  if (!which) return t;
  constexpr DType dtype = DType::f16;  // as forward's
  // The kernel of an operation; bucket 0: none. `backward` is all gradients in one.
  const auto spec_of = [&](Op op) -> kernel::KernelSpec {
    const Schedule schedule = op == Op::backward ? Schedule::fused : Schedule::tiled;
    const int bucket =
        kernel::bucket_of(op, schedule, dtype, static_cast<int>(s.d), kernel::set_of(*which));
    return {op, schedule, dtype, bucket, kernel::Variant::specialized};
  };
  // Bytes that the blocks of one operation stream: rows(block) per head, each of `bytes` bytes.
  const auto streamed = [&](Op op, std::int64_t owned_rows, double bytes, auto rows) {
    const auto tile = kernel::backward_tile(*which, spec_of(op));
    double sum = 0;
    for (std::int64_t begin = 0; begin < owned_rows; begin += tile.owned)
      sum +=
          static_cast<double>(rows(Range{begin, smaller(begin + tile.owned, owned_rows)}).size());
    return product({s.b, s.h}) * sum * bytes;
  };
  const double row = static_cast<double>(s.d) * element;
  const auto keys = [&](Range block) { return visible_keys(visibility_of(s), block, s.sq, s.sk); };
  const auto queries = [&](Range block) {
    return attending_queries(visibility_of(s), block, s.sq, s.sk);
  };
  if (const int columns = spec_of(Op::backward).bucket; columns > 0) {
    // The dQ accumulator is zeroed, accumulated by every key block, and read.
    const double sums = product({s.b, s.h, s.sq, columns}) * f32;
    t.requested = 2 * q + lse + sums;                             // dout·out
    t.requested += 5 * k;                                         // k is also read transposed
    const int accesses = kernel::has_ordered_dq(*which) ? 2 : 1;  // load and store, or one atomic
    t.requested += streamed(Op::backward, s.sk, 2 * row + (2 + accesses * columns) * f32, queries);
    if (!kernel::fused_gives_dv(*which, columns))  // a dv kernel reads k again
      t.requested += k + streamed(Op::backward_dv, s.sk, 2 * row + f32, queries);
    t.requested += sums + q;
    return t;
  }
  if (spec_of(Op::backward_dq).bucket == 0) return t;
  t.requested = 2 * q + lse;  // dout·out
  t.requested += 3 * q + 2 * lse + streamed(Op::backward_dq, s.sq, 2 * row, keys);
  if (spec_of(Op::backward_dkdv).bucket > 0) {
    t.requested += 4 * k + streamed(Op::backward_dkdv, s.sk, 2 * row + 2 * f32, queries);
  } else {
    t.requested += 3 * k + streamed(Op::backward_dk, s.sk, 2 * row + 2 * f32, queries);
    t.requested += 2 * k + streamed(Op::backward_dv, s.sk, 2 * row + f32, queries);
  }
  return t;
}

std::optional<double> peak_tflops(const std::string& arch, int units) {
  struct Rate {
    const char* arch;
    double flops_per_clock;  // of one multiprocessor as counted by the driver: CU, WGP, SM
    double megahertz;
  };
  constexpr Rate rates[] = {
#define ROCFLASH_DEVICE(arch, name, cus, mhz, xcds, per, math, flops) {#arch, per * flops, mhz},
#include "table/devices.inc"
  };
  const auto* rate = std::find_if(std::begin(rates), std::end(rates),
                                  [&](const Rate& r) { return arch == r.arch; });
  if (rate == std::end(rates) || rate->flops_per_clock == 0 || units <= 0) return std::nullopt;
  return rate->flops_per_clock * units * rate->megahertz * 1e-6;
}

}  // namespace rocflash::cli
