// How long a wave's SIMD is taken by an instruction: issue clocks by class, nothing about latency.
// What counters report and what a cycle model would start from. docs/simulator.md has the rates.
#pragma once

#include <string_view>

#include "core/op.h"
#include "core/target.h"

namespace rocflash::sim {

// Clocks of one instruction of a wave of this size. Matrix instructions are not asked here: their
// cycles depend on the shape (isa/matrix.h).
u32 issue_clocks(const Target& target, int wave_size, Class kind, std::string_view mnemonic);

// What a memory or LDS instruction is, for counting by width: "load_b128", "store_b16",
// "load_to_lds_b32", "load_tr_b128", "scratch_load_b32", "atomic"; "read_b128", "write_b64",
// "read_tr_b64", "permute". Empty for cache control and waits.
std::string access_name(const Op& op, std::string_view mnemonic);

}  // namespace rocflash::sim
