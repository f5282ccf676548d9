// Parameters of an ISA, which its file defines first.
#pragma once

#include <cstdint>

namespace rocflash::cpu::ROCFLASH_ISA {

struct Traits {
  int width;  // lanes of a float vector
  // Terms that a float dot product adds before it starts a new partial sum, and whether registers
  // hold the sum of earlier blocks.
  std::int64_t summation_block;
  bool blocks_in_registers;
  int registers = 16;  // vector registers
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
