// The vectors of CPUs with AMX. These do two multiply-adds per cycle and are short of loads then,
// so all accumulators are at work, and longer runs pass through memory.
#pragma once

#include "cpu/simd/traits.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

inline constexpr Traits traits{.width = 16, .run_of_terms = 32, .runs_in_registers = false};

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/bf16_pairs.hpp"
