// Issue cycles of an instruction on its SIMD by class; throughput only, no latency.
// Used by the performance counters. docs/design/cycle-model.md lists the rates.
#pragma once

#include <string_view>

#include "core/op.h"
#include "core/target.h"

namespace rocflash::sim {

// Issue cycles of one instruction at this wave size. Not for matrix instructions: their
// cycles depend on the shape (isa/matrix.h).
u32 issue_clocks(const Target& target, int wave_size, InstructionClass kind,
                 std::string_view mnemonic);

// Counter name of a memory or LDS instruction by width: "load_b128", "store_b16",
// "load_to_lds_b32", "load_tr_b128", "scratch_load_b32", "atomic"; "read_b128", "write_b64",
// "read_tr_b64", "permute". Empty for cache control and waits.
std::string access_name(const Op& op, std::string_view mnemonic);

}  // namespace rocflash::sim
