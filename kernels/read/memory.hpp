// Reads memory and does nothing with it: what kernels that must read as much cannot beat by much. `rocflash bench` sets
// decode beside it.
#pragma once

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "table/read.hpp"
#include "tile/vector.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
void read_memory(const ReadArguments& a) {
  constexpr int at_once = 8;  // loads of a lane that do not wait for each other
  constexpr std::int64_t block = std::int64_t{read_tile.threads} * at_once;
  const auto* from = reinterpret_cast<const Words4*>(a.data) + arch::thread();
  Words4 folded[at_once] = {};
  for (std::int64_t first = arch::group() * block; first < a.chunks; first += a.groups * block) {
    const std::int64_t left = a.chunks - first - arch::thread();
    if (first + block <= a.chunks) {
      ROCFLASH_UNROLL
      for (int n = 0; n < at_once; ++n)
        folded[n] ^= arch::load(from + first + n * read_tile.threads);
    } else {
      ROCFLASH_UNROLL
      for (int n = 0; n < at_once; ++n)
        if (n * read_tile.threads < left)
          folded[n] ^= arch::load(from + first + n * read_tile.threads);
    }
  }
  Words4 all = {};
  ROCFLASH_UNROLL
  for (int n = 0; n < at_once; ++n) all ^= folded[n];
  const std::uint32_t word = all.x ^ all.y ^ all.z ^ all.w;
  // Never in practice: it is there so that the loads are.
  if (word == a.wanted) arch::store(a.found, word);
}

}  // namespace rocflash::kernel
