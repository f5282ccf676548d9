// Row statistics (lse, delta, row softmax) and workgroup reductions that several backward kernels
// share.
#pragma once

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "attention/online_softmax.hpp"
#include "core/lse.hpp"
#include "table/kernels.hpp"

namespace rocflash::kernel {

// Whether f32 rounds log(sum) out of the row's lse = row_max + log(sum).
inline bool is_unresolved(float lse) {
  return __builtin_fabsf(lse) >= core::unresolved_lse && __builtin_fabsf(lse) != infinity;
}

// lse times `factor` for specialized kernels with matrix instructions. An unresolved lse becomes
// NaN: without score modifiers it is rare, and the recomputation of non-finite rows is right for
// it.
inline float resolved_lse(float lse, float factor) {
  return statistic(is_unresolved(lse) ? __builtin_nanf("") : lse, factor);
}

// The softmax of one row: P = exp(S − base) · share. base is the lse and share 1, or for an
// unresolved lse what preprocess computed from the row's scores: base is their max and share 1 /
// sum.
struct RowSoftmax {
  float base, share;

  // For scores without matrix instructions. `row` is the row of the tensors.
  RowSoftmax(const BackwardArguments& a, std::int64_t batch, std::int64_t head, std::int64_t row)
      : base(statistic(arch::load(&a.tensors.lse.at(batch, head, row)), 1)), share(1) {
    if (!is_unresolved(base)) return;
    base = arch::load(&a.row_max.at(batch, head, row));
    share = __builtin_fabsf(arch::load(&a.row_share.at(batch, head, row)));
  }

  // For scores from matrix instructions in generic kernels. `lse` has been loaded already. Where
  // products q·k are large themselves, their rounding depends on the order of the sum: base becomes
  // NaN, and the recomputation of non-finite rows takes over.
  static RowSoftmax of_products(const BackwardArguments& a, std::int64_t batch, std::int64_t head,
                                std::int64_t row, float lse) {
    RowSoftmax softmax(statistic(lse, 1), 1);
    if (__builtin_expect(is_unresolved(lse), false)) {
      softmax.base = arch::load(&a.row_max.at(batch, head, row));
      softmax.share = arch::load(&a.row_share.at(batch, head, row));
      if (!(softmax.share > 0)) softmax = RowSoftmax(__builtin_nanf(""), 1);
    }
    return softmax;
  }

  // Stores what preprocess computed from a row's scores. The sign of the stored share says whether
  // kernels with matrix instructions may use it.
  static void store(const BackwardArguments& a, std::int64_t batch, std::int64_t head,
                    std::int64_t row, float row_max, const Normalizer& normalizer,
                    bool valid_for_products) {
    // Where the scores do not give the lse, the row attends to keys of other calls (core/lse.hpp).
    const float lse = arch::load(&a.tensors.lse.at(batch, head, row));
    const bool complete = core::covers_lse(normalizer.lse, lse);
    const float share = complete ? normalizer.factor : 1.0f;
    arch::store(&a.row_max.at(batch, head, row), complete ? row_max : lse);
    arch::store(&a.row_share.at(batch, head, row), valid_for_products ? share : -share);
  }

 private:
  RowSoftmax(float base_, float share_) : base(base_), share(share_) {}
};

// What kernels subtract from dP: lse grows with each score by its weight, so dS = P (dP − (delta −
// dlse)). `delta` is without the dropout scale. The lse of a fully masked row is constant.
inline float subtract_dlse(const BackwardArguments& a, std::int64_t batch, std::int64_t head,
                           std::int64_t row, float delta) {
  if (!a.dlse || arch::load(&a.tensors.lse.at(batch, head, row)) == infinity) return delta;
  const float dlse = arch::load(&a.dlse.at(batch, head, row));
  return delta - (a.problem.dropout.on() ? dlse * (1 - a.problem.dropout.p) : dlse);
}

// Sum over all threads of a workgroup, in a fixed order; every thread has the result. Each kernel
// instantiates its own LDS array.
template <KernelSpec spec, int threads>
float workgroup_sum(float x) {
  constexpr int waves = threads / arch::wave_size;
  ROCFLASH_SHARED_ARRAY float sums[waves];
  float sum = 0;
  for (int lane = 0; lane < arch::wave_size; ++lane) sum += arch::readlane(x, lane);
  arch::barrier();  // an earlier sum may still be read
  if (arch::lane() == 0) sums[arch::thread() / arch::wave_size] = sum;
  arch::barrier();
  float total = 0;
  ROCFLASH_UNROLL
  for (int wave = 0; wave < waves; ++wave) total += sums[wave];
  return total;
}

}  // namespace rocflash::kernel
