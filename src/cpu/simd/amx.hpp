// The vectors of CPUs with AMX. These do two multiply-adds per cycle and are short of loads then,
// so all accumulators are at work, and longer runs pass through memory.
#pragma once

#include <cstdint>

namespace rocflash::cpu::ROCFLASH_ISA {

inline constexpr int width = 16, registers = 32;  // lanes of a vector of floats
// How many terms a dot product of floats adds up before it starts a new sum, and whether registers
// hold what the runs before have come to.
inline constexpr std::int64_t run_of_terms = 32;
inline constexpr bool runs_in_registers = false;

}  // namespace rocflash::cpu::ROCFLASH_ISA

#include "cpu/simd/bf16_pairs.hpp"
