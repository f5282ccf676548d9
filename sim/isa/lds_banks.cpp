// Phases of LDS accesses. AMD publishes the groups of the 128-bit forms of CDNA3 only; those of
// gfx950 are two published measurements, and the rest follows from the LDS bandwidth.
#include "isa/lds_banks.h"

#include <algorithm>
#include <bit>

namespace rocflash::sim {
namespace {

constexpr LdsPhases in_order(int banks, int lanes) {
  LdsPhases p{banks, lanes, {}};
  for (int i = 0; i < kMaxLanes; ++i) p.order[static_cast<std::size_t>(i)] = u8(i);
  return p;
}

// Groups of four lanes in the order given, the same in each half of the wave.
constexpr LdsPhases by_fours(int banks, int lanes, const std::array<u8, 8>& fours) {
  LdsPhases p{banks, lanes, {}};
  for (int i = 0; i < kMaxLanes; ++i) {
    const auto four = fours[static_cast<std::size_t>(i % 32 / 4)];
    p.order[static_cast<std::size_t>(i)] = u8(i / 32 * 32 + four * 4 + i % 4);
  }
  return p;
}

// 0-3 with 20-23, 4-7 with 16-19, 8-11 with 28-31, 12-15 with 24-27.
constexpr LdsPhases kPaired = by_fours(32, 8, {0, 5, 1, 4, 2, 7, 3, 6});
// 0-3, 12-15, 20-27, then the others of the half.
constexpr LdsPhases kWide = by_fours(64, 16, {0, 3, 5, 6, 1, 2, 4, 7});
constexpr LdsPhases k32x32 = in_order(32, 32);
constexpr LdsPhases k32x16 = in_order(32, 16);
constexpr LdsPhases k32x8 = in_order(32, 8);
constexpr LdsPhases k64x64 = in_order(64, 64);
constexpr LdsPhases k64x32 = in_order(64, 32);

}  // namespace

const LdsPhases& lds_phases(const Target& target, u32 bytes, bool write) {
  if (target.name == "gfx950" && !write) {
    if (bytes <= 4) return k64x64;
    if (bytes <= 8) return k64x32;
    return bytes == 12 ? kPaired : kWide;
  }
  if (bytes <= 4) return k32x32;
  if (bytes <= 8) return k32x16;
  const bool sequential = write || target.generation == Generation::Gfx12;
  return sequential ? k32x8 : kPaired;
}

LdsCost lds_cost(const LdsPhases& phases, const u32* addresses, u64 active, int wave_size,
                 u32 bytes) {
  LdsCost cost;
  const u32 dwords = std::max(1u, bytes / 4);
  const u32 mask = static_cast<u32>(phases.banks - 1);
  for (int base = 0; base < wave_size; base += phases.lanes) {
    // Distinct dwords of each bank; at most one per lane.
    u32 requested[64] = {};
    u32 dword[64][kMaxLanes];
    u32 worst = 0;
    for (int i = base; i < std::min(base + phases.lanes, wave_size); ++i) {
      const int lane = phases.order[static_cast<std::size_t>(i)];
      if (lane >= wave_size || (active >> lane & 1) == 0) continue;
      for (u32 d = 0; d < dwords; ++d) {
        const u32 word = addresses[lane] / 4 + d;
        const u32 bank = word & mask;
        const u32* end = dword[bank] + requested[bank];
        if (std::find(dword[bank], const_cast<u32*>(end), word) != end) continue;
        dword[bank][requested[bank]++] = word;
        worst = std::max(worst, requested[bank]);
      }
    }
    cost.cycles += worst;
    cost.conflicts += worst > 1 ? worst - 1 : 0;
  }
  return cost;
}

}  // namespace rocflash::sim
