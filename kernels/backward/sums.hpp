// Sums of dq in f32, in the call's scratch memory: rows of whole chunks of 16 bytes, side by side.
#pragma once

#include "arch/arch.hpp"
#include "attention/sequence.hpp"

namespace rocflash::kernel {

// Sets the sums of up to `count` queries from `first` on to 0, by one wave. Kernels that compute delta
// call it for the queries that they have: they run before anything is added, and once for each query.
// Does nothing where the plan has no sums.
inline void clear_sums(const Rows& sums, const SequenceView& sequence, std::int64_t head,
                       std::int32_t first, std::int32_t count) {
  if (!sums) return;
  const std::int32_t rows = sequence.sq - first < count ? sequence.sq - first : count;
  auto* to = reinterpret_cast<Float4*>(
      row_address<DType::f32>(sums, sequence.batch, sequence.q_row + first, head));
  for (std::int32_t n = arch::lane(); n < rows * (sums.columns / 4); n += arch::wave_size)
    arch::store(to + n, Float4{});
}

}  // namespace rocflash::kernel
