// AVX-512 with dot products of bf16 pairs.
#pragma once

#include <cstdint>

namespace rocflash::cpu::ROCFLASH_ISA {

inline constexpr int width = 16, registers = 32;  // lanes of a vector of floats
// How many terms a dot product of floats adds up before it starts a new sum, and whether registers
// hold what the runs before have come to.
// Half of the accumulators hold what the runs before have come to.
inline constexpr std::int64_t run_of_terms = 16;
inline constexpr bool runs_in_registers = true;

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/bf16_pairs.hpp"
