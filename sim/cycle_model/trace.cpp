// Recording accesses: distinct lines of each instruction.
#include "cycle_model/trace.h"

#include <algorithm>
#include <bit>

namespace rocflash::sim {

TracedAccess& WaveTrace::access() {
  const u32 event = static_cast<u32>(ops.size()) - 1;
  if (accesses.empty() || accesses.back().event != event) {
    accesses.push_back({event, static_cast<u32>(lines.size()), 0, 0, 0, 0});
  }
  return accesses.back();
}

void WaveTrace::note_device(const u64* addresses, u64 active, u32 bytes) {
  if (!detailed && lines.size() >= kMostTracedLines) return;
  u64 touched[2 * kMaxLanes];
  int count = 0;
  for (u64 m = active; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const u64 first = addresses[lane] / kLineBytes;
    const u64 last = (addresses[lane] + bytes - 1) / kLineBytes;
    if (count == 0 || touched[count - 1] != first) touched[count++] = first;
    if (last != first) touched[count++] = last;
  }
  std::sort(touched, touched + count);
  const auto distinct = static_cast<std::size_t>(std::unique(touched, touched + count) - touched);
  if (!detailed) {
    lines.insert(lines.end(), touched, touched + distinct);
    return;
  }
  TracedAccess& a = access();
  lines.insert(lines.end(), touched, touched + distinct);
  a.lines = static_cast<u16>(a.lines + distinct);
  a.bytes += bytes * static_cast<u32>(std::popcount(active));
}

void WaveTrace::note_lds(u32 bank_clocks, u32 bytes) {
  if (!detailed) return;
  TracedAccess& a = access();
  a.bank_clocks = static_cast<u16>(a.bank_clocks + bank_clocks);
  a.lds_bytes += bytes;
}

}  // namespace rocflash::sim
