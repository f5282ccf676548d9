// Narrow interface to LLVM's MC layer: machine code to assembly text, and its list of mnemonics.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/instruction.h"
#include "core/types.h"

namespace rocflash::sim {

// Disassembles everything in `code`, which is loaded at `address`. Words that do not decode come
// back with valid = false. `wave_size` matters on RDNA, where it decides the width of lane masks.
std::vector<Instruction> disassemble(std::span<const u8> code, u64 address, std::string_view cpu,
                                     int wave_size);

// Every mnemonic in LLVM's opcode table whose encoding belongs to the family of `cpu`.
std::vector<std::string> known_mnemonics(std::string_view cpu);

}  // namespace rocflash::sim
