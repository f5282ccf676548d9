// Wait counters, and the faults that a wave reports.
#include "core/wave.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/launch.h"

namespace rocflash::sim {
namespace {

void retire_oldest(Wave& w, WaitCounter queue) {
  InFlightQueue& q = w.queues[static_cast<int>(queue)];
  const InFlightAccess p = q.oldest();
  const u32 slot = q.slot(0);
  q.pop();
  --w.outstanding;
  for (int i = 0; i < p.count; ++i) {
    if (p.file == File::Vgpr)
      w.vgpr_pending[p.first + i] = u16(w.vgpr_pending[p.first + i] - p.halves);
    if (p.file == File::Sgpr) --w.sgpr_pending[p.first + i];
  }
  if (p.lds_high == 0) return;
  if (queue == WaitCounter::Load || p.passed_barrier) --w.group->lds_in_flight;
  if (p.epoch != w.epoch) publish_after_barrier(w, w.lds_writes[static_cast<int>(queue)][slot]);
}

std::string register_name(File file, int index) {
  if (file == File::Vgpr) {
    return index >= kAgprBase ? fmt::format("a{}", index - kAgprBase) : fmt::format("v{}", index);
  }
  if (index < sreg::kVcc) return fmt::format("s{}", index);
  if (index < sreg::kTtmp0) return index == sreg::kVcc ? "vcc_lo" : "vcc_hi";
  return fmt::format("scalar register {}", index);
}

}  // namespace

void missing_wait(const Wave&, File file, int index) {
  raise(Fault::MissingWait, fmt::format("{} is used before the load into it has been waited for",
                                        register_name(file, index)));
}

void issue_load(Wave& w, WaitCounter queue, const InFlightAccess& pending, const LdsWrite* write) {
  if (!w.checks->wait) return;
  InFlightQueue& q = w.queues[static_cast<int>(queue)];
  // A saturated counter stalls the wave until the oldest access has returned.
  const u32 limit = queue != WaitCounter::Load && w.gfx9() ? 15 : 63;
  while (q.size() >= limit) retire_oldest(w, queue);
  q.push(pending);
  ++w.outstanding;
  for (int i = 0; i < pending.count; ++i) {
    if (pending.file == File::Vgpr) {
      w.vgpr_pending[pending.first + i] = u16(w.vgpr_pending[pending.first + i] + pending.halves);
    }
    if (pending.file == File::Sgpr) ++w.sgpr_pending[pending.first + i];
  }
  if (write == nullptr || write->lanes == 0) return;
  InFlightAccess& entry = q.at(q.size() - 1);
  entry.epoch = w.epoch;
  entry.lds_low = ~0u;
  for (u64 m = write->lanes; m != 0; m &= m - 1) {
    for (u32 piece = 0; piece < write->pieces; ++piece) {
      const u32 at = write->address.lane[std::countr_zero(m)] + write->offsets[piece];
      entry.lds_low = std::min(entry.lds_low, at);
      entry.lds_high = std::max(entry.lds_high, at + write->bytes);
    }
  }
  auto& writes = w.lds_writes[static_cast<int>(queue)];
  if (writes.empty()) writes.resize(InFlightQueue::kCapacity);
  writes[q.slot(q.size() - 1)] = *write;
  if (queue == WaitCounter::Load) ++w.group->lds_in_flight;
}

void wait_for(Wave& w, WaitCounter queue, u32 allowed) {
  // SMEM loads return out of order: only a counter of zero is meaningful.
  if (queue == WaitCounter::Km && allowed != 0) return;
  while (w.queues[static_cast<int>(queue)].size() > allowed) retire_oldest(w, queue);
}

void undefined_use(const char* decides, int lane) {
  raise(Fault::Undefined, fmt::format("an undefined value decides {}", decides), lane);
}

std::span<const Wave> waves_of(const Workgroup& group) {
  return {group.first_wave, static_cast<std::size_t>(group.waves)};
}

}  // namespace rocflash::sim
