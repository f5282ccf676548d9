// AVX-512 with AVX512-BF16 (VDPBF16PS).
#pragma once

#include "cpu/simd/traits.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Half of the accumulators hold the sums of earlier blocks.
inline constexpr Traits traits{
    .width = 16, .summation_block = 16, .blocks_in_registers = true, .registers = 32};

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/bf16_dot.hpp"
