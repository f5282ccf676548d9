// The aarch64 baseline: NEON, with FMA and 32 registers.
#pragma once

#include "cpu/simd/traits.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Half of the accumulators hold the sums of earlier blocks.
inline constexpr Traits traits{
    .width = 4, .summation_block = 16, .blocks_in_registers = true, .registers = 32};

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/neon_vectors.hpp"
