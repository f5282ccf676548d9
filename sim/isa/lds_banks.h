// LDS bank conflicts of one access: lanes are served in phases, each bank one dword per clock.
#pragma once

#include <array>

#include "core/target.h"
#include "core/types.h"

namespace rocflash::sim {

struct LdsPhases {
  int banks = 32;
  int lanes = 32;  // that are served together
  // Lanes in the order of service: the first `lanes` entries are the first phase, and so on.
  std::array<u8, kMaxLanes> order{};
};

// The phases of an access of `bytes` per lane. Sources: docs/design/cycle-model.md, "LDS cycles".
const LdsPhases& lds_phases(const Target& target, u32 bytes, bool write);

struct LdsCost {
  u32 cycles = 0;     // clocks the LDS is busy, conflicts included
  u32 conflicts = 0;  // of these, clocks beyond the first of each phase
};

// `addresses` holds a byte address for each lane; lanes that read the same dword share it.
LdsCost lds_cost(const LdsPhases& phases, const u32* addresses, u64 active, int wave_size,
                 u32 bytes);

}  // namespace rocflash::sim
