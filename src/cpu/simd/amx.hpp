// Vectors of CPUs with AMX. Two FMAs per cycle make loads the bottleneck, so the microkernel uses
// all accumulators and summation blocks go through memory.
#pragma once

#include "cpu/simd/traits.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

inline constexpr Traits traits{
    .width = 16, .summation_block = 32, .blocks_in_registers = false, .registers = 32};

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/bf16_dot.hpp"
