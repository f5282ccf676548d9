// Wait counters and the complaints of a wave.
#include "core/wave.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/launch.h"

namespace rocflash::sim {
namespace {

void retire_oldest(Wave& w, Queue queue) {
  PendingQueue& q = w.queues[static_cast<int>(queue)];
  const Pending p = q.oldest();
  const u32 slot = q.slot(0);
  q.pop();
  --w.outstanding;
  for (int i = 0; i < p.count; ++i) {
    if (p.file == File::Vgpr) w.v_pending[p.first + i] = u16(w.v_pending[p.first + i] - p.halves);
    if (p.file == File::Sgpr) --w.s_pending[p.first + i];
  }
  if (p.lds_high == 0) return;
  if (queue == Queue::Load || p.carried) --w.group->lds_in_flight;
  if (p.epoch != w.epoch) publish_late(w, w.lds_writes[static_cast<int>(queue)][slot]);
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

void issue_load(Wave& w, Queue queue, const Pending& pending, const LdsWrite* write) {
  if (!w.checks->wait) return;
  PendingQueue& q = w.queues[static_cast<int>(queue)];
  // A full counter stalls the hardware until the oldest has returned.
  const u32 limit = queue != Queue::Load && w.gfx9() ? 15 : 63;
  while (q.size() >= limit) retire_oldest(w, queue);
  q.push(pending);
  ++w.outstanding;
  for (int i = 0; i < pending.count; ++i) {
    if (pending.file == File::Vgpr) {
      w.v_pending[pending.first + i] = u16(w.v_pending[pending.first + i] + pending.halves);
    }
    if (pending.file == File::Sgpr) ++w.s_pending[pending.first + i];
  }
  if (write == nullptr || write->lanes == 0) return;
  Pending& entry = q.at(q.size() - 1);
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
  if (writes.empty()) writes.resize(PendingQueue::kCapacity);
  writes[q.slot(q.size() - 1)] = *write;
  if (queue == Queue::Load) ++w.group->lds_in_flight;
}

void wait_for(Wave& w, Queue queue, u32 allowed) {
  // Scalar loads return in any order: only an empty counter says anything.
  if (queue == Queue::Scalar && allowed != 0) return;
  while (w.queues[static_cast<int>(queue)].size() > allowed) retire_oldest(w, queue);
}

void undefined_use(const char* decides, int lane) {
  raise(Fault::Undefined, fmt::format("an undefined value decides {}", decides), lane);
}

std::span<const Wave> waves_of(const Workgroup& group) {
  return {group.first_wave, static_cast<std::size_t>(group.waves)};
}

}  // namespace rocflash::sim
