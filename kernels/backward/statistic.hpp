// Numbers per query, and sums over a workgroup, that several kernels of backward need.
#pragma once

#include "arch/arch.hpp"
#include "table/kernels.hpp"

namespace rocflash::kernel {

// lse in powers of two. A NaN loses its payload, with which rounding to bf16 could make a number of it.
inline float statistic(float x, float factor) { return x == x ? x * factor : __builtin_nanf(""); }

// The sum over all lanes of a workgroup, in all of them, added in one order. Each kernel has shared memory
// of its own for it, under a name of its own.
template <KernelSpec spec, int threads>
float sum_of_group(float x) {
  constexpr int waves = threads / arch::wave_size;
  ROCFLASH_SHARED_ARRAY float sums[waves];
  float sum = 0;
  for (int lane = 0; lane < arch::wave_size; ++lane) sum += arch::from_lane(x, lane);
  arch::barrier();  // an earlier sum may still be read
  if (arch::lane() == 0) sums[arch::thread() / arch::wave_size] = sum;
  arch::barrier();
  float total = 0;
  ROCFLASH_UNROLL
  for (int wave = 0; wave < waves; ++wave) total += sums[wave];
  return total;
}

}  // namespace rocflash::kernel
