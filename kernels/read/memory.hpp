// Reads memory without further work: the achievable read bandwidth, the baseline of decode in
// `rocflash bench`.
#pragma once

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "table/read.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void read_memory(const ReadArguments& a) {
  constexpr int at_once = 8, threads = read_tile.threads;  // loads in flight
  const auto* from = reinterpret_cast<const Words4*>(a.data) + arch::thread();
  const std::int64_t blocks = a.chunks / (threads * at_once);
  Words4 folded = {};
#pragma unroll 1
  for (std::int64_t n = arch::workgroup_id(); n < blocks; n += a.workgroups) {
    Words4 x[at_once];
    ROCFLASH_UNROLL
    for (int i = 0; i < at_once; ++i) x[i] = arch::load(from + (n * at_once + i) * threads);
    ROCFLASH_UNROLL
    for (int i = 0; i < at_once; ++i) folded ^= x[i];
  }
  // The remainder: less than a block.
  const std::int64_t step = std::int64_t{a.workgroups} * threads;
  std::int64_t n = (blocks * at_once + arch::workgroup_id()) * threads;
#pragma unroll 1
  for (; n + arch::thread() < a.chunks; n += step) folded ^= arch::load(from + n);
  const std::uint32_t word = folded.x ^ folded.y ^ folded.z ^ folded.w;
  // Practically never true; keeps the compiler from removing the loads.
  if (word == a.wanted) arch::store(a.found, word);
}

}  // namespace rocflash::kernel
