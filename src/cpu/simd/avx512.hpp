// AVX-512.
#pragma once

#include "cpu/simd/traits.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Half of the accumulators hold the sums of earlier blocks.
inline constexpr Traits traits{
    .width = 16, .summation_block = 16, .blocks_in_registers = true, .registers = 32};

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/avx512_vectors.hpp"
