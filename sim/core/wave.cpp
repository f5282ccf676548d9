// Wait counters and the complaints of a wave.
#include "core/wave.h"

#include <fmt/format.h>

#include "core/launch.h"

namespace rocflash::sim {
namespace {

void retire(Wave& w, const Pending& p) {
  --w.outstanding;
  for (int i = 0; i < p.count; ++i) {
    if (p.file == File::Vgpr) w.v_pending[p.first + i] = u16(w.v_pending[p.first + i] - p.halves);
    if (p.file == File::Sgpr) --w.s_pending[p.first + i];
  }
  if (p.lds_high != 0) --w.group->pending_lds_loads;
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

void issue_load(Wave& w, Queue queue, const Pending& pending) {
  if (!w.checks->wait) return;
  PendingQueue& q = w.queues[static_cast<int>(queue)];
  // A full counter stalls the hardware until the oldest has returned.
  const u32 limit = queue != Queue::Load && w.gfx9() ? 15 : 63;
  while (q.size() >= limit) {
    const Pending oldest = q.oldest();
    q.pop();
    retire(w, oldest);
  }
  q.push(pending);
  ++w.outstanding;
  for (int i = 0; i < pending.count; ++i) {
    if (pending.file == File::Vgpr) {
      w.v_pending[pending.first + i] = u16(w.v_pending[pending.first + i] + pending.halves);
    }
    if (pending.file == File::Sgpr) ++w.s_pending[pending.first + i];
  }
}

void wait_for(Wave& w, Queue queue, u32 allowed) {
  // Scalar loads return in any order: only an empty counter says anything.
  if (queue == Queue::Scalar && allowed != 0) return;
  PendingQueue& q = w.queues[static_cast<int>(queue)];
  while (q.size() > allowed) {
    const Pending oldest = q.oldest();
    q.pop();
    retire(w, oldest);
  }
}

void undefined_use(const char* decides, int lane) {
  raise(Fault::Undefined, fmt::format("an undefined value decides {}", decides), lane);
}

std::span<const Wave> waves_of(const Workgroup& group) {
  return {group.first_wave, static_cast<std::size_t>(group.waves)};
}

}  // namespace rocflash::sim
