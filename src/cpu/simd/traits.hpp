// What differs between instruction sets in numbers: the file of each says it before all else.
#pragma once

#include <cstdint>

namespace rocflash::cpu::ROCFLASH_ISA {

struct Traits {
  int width;  // lanes of a vector of floats
  // How many terms a dot product of floats adds up before it starts a new sum, and whether
  // registers hold what the runs before have come to.
  std::int64_t run_of_terms;
  bool runs_in_registers;
};

}  // namespace rocflash::cpu::ROCFLASH_ISA
