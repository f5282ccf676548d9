// AVX-512 with dot products of bf16 pairs.
#pragma once

#include "cpu/simd/traits.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Half of the accumulators hold what the runs before have come to.
inline constexpr Traits traits{.width = 16, .run_of_terms = 16, .runs_in_registers = true};

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/bf16_pairs.hpp"
