// Servers of LDS, L1, L2, MALL and memory.
#include "cycle_model/memory_system.h"

#include <algorithm>
#include <cmath>

namespace rocflash::sim {
namespace {

// Deterministic choice of the CU that fetches a shared line.
u64 scatter(u64 x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  return x;
}

Clock queue_available_at(std::deque<Clock>& waiting, int capacity, Clock now) {
  while (!waiting.empty() && waiting.front() <= now) waiting.pop_front();
  const auto limit = static_cast<std::size_t>(capacity);
  return waiting.size() < limit ? now : waiting[waiting.size() - limit];
}

}  // namespace

// --- LDS -------------------------------------------------------------------------------------

Clock Banks::take(Clock start, Clock clocks) {
  if (clocks <= 0) return start;
  constexpr Clock kPast = 4096;  // requests are never older than this
  std::vector<Taken> next;
  next.reserve(taken_.size() + 2);
  const auto add = [&](Clock begin, Clock end) {
    if (!next.empty() && next.back().end == begin) {
      next.back().end = end;
    } else {
      next.push_back({begin, end});
    }
  };
  Clock at = start;
  for (const Taken& t : taken_) {
    if (t.end < start - kPast) continue;
    if (clocks > 0 && t.begin > at) {
      const Clock part = std::min(clocks, t.begin - at);
      add(at, at + part);
      at += part;
      clocks -= part;
    }
    add(t.begin, t.end);
    if (clocks > 0) at = std::max(at, t.end);
  }
  if (clocks > 0) {
    add(at, at + clocks);
    at += clocks;
  }
  taken_ = std::move(next);
  return at;
}

Clock LdsServer::available_at(int pair, Clock now) {
  return queue_available_at(waiting_[pair], p_.queue, now);
}

LdsServer::Served LdsServer::access(int pair, Clock now, const TracedAccess& access, bool write) {
  const double bytes = write ? (256.0 + access.lds_bytes) * p_.write_factor : access.lds_bytes;
  const auto port = static_cast<Clock>(std::ceil(bytes / p_.port_bytes));
  const Clock start = std::max(now, port_free_[pair]);
  const Clock banks = banks_[p_.banks_shared ? 0 : pair].take(start, access.bank_clocks);
  const Clock end = std::max(start + port, banks);
  port_free_[pair] = end;
  busy_ += access.bank_clocks;
  waiting_[pair].push_back(start);
  return {end, end + p_.latency};
}

Clock LdsServer::load_to_lds(Clock now, u32 bytes) {
  const Clock clocks = (bytes + 127) / 128;
  busy_ += clocks;
  return banks_[0].take(now, clocks);
}

// --- memory ----------------------------------------------------------------------------------

Clock MemorySystem::Server::take(Clock now) {
  const double start = std::max(static_cast<double>(now), free);
  free = start + clocks_per_line;
  return static_cast<Clock>(start) + latency;
}

MemorySystem::MemorySystem(const CycleModelParameters& p, const Sharing& sharing, double clock_mhz)
    : p_(p), sharing_(sharing), two_paths_(p.issue.issue_period == 1) {
  const MemoryParameters& m = p.memory;
  const double line = kLineBytes;
  const double per_us = clock_mhz;  // clocks per microsecond
  const double cus = std::max(1, sharing.active_cus);
  const double cus_per_xcd = std::max(1, sharing.active_cus_per_xcd);
  const auto share = [&](double bytes_per_second) {  // clocks per line of this unit's share
    return line * cus / (bytes_per_second / (per_us * 1e6));
  };
  const auto clocks = [&](double ns) { return static_cast<Clock>(ns * per_us / 1000); };
  l2_ = {m.l2_latency, line / std::min(m.l2_rate, m.l2_xcd_rate / cus_per_xcd), 0};
  fits_mall_ = sharing.footprint_bytes <= m.mall_bytes;
  mall_ = {clocks(m.mall_latency_ns), m.mall_rate > 0 ? share(m.mall_rate) : 0, 0};
  memory_ = {clocks(m.memory_latency_ns), share(m.memory_rate), 0};
  atomics_ = {m.l2_latency, m.atomic_clocks * std::max(1.0, cus_per_xcd / 16), 0};
}

Clock MemorySystem::available_at(int pair, Clock now) {
  Path& own = path(pair);
  Clock when = queue_available_at(own.waiting, p_.memory.queue, now);
  while (!own.in_flight.empty() && own.in_flight.front().first <= now) {
    own.in_flight_bytes -= own.in_flight.front().second;
    own.in_flight.pop_front();
  }
  u64 left = own.in_flight_bytes;
  for (auto it = own.in_flight.begin();
       it != own.in_flight.end() && left > static_cast<u64>(p_.memory.in_flight); ++it) {
    left -= it->second;
    when = std::max(when, it->first);
  }
  return when;
}

Clock MemorySystem::line_end(Path& own, Clock now, u64 line, u64 salt) {
  const u64 tag = line ^ salt;
  const MemoryParameters& m = p_.memory;
  const u64 l1_capacity = static_cast<u64>(m.l1_bytes) / kLineBytes;
  const auto in_l1 = own.l1.find(tag);
  if (in_l1 != own.l1.end() && own.l1_fills - in_l1->second < l1_capacity) {
    in_l1->second = own.l1_fills;
    ++traffic_.l1_hits;
    return now + m.l1_latency;
  }
  own.l1[tag] = ++own.l1_fills;
  const double sharers = sharing_.cus ? std::max(1.0, sharing_.cus(line)) : 1.0;
  const double cus = std::max(1, sharing_.active_cus_per_xcd);
  const auto l2_capacity = static_cast<u64>(m.l2_bytes / kLineBytes * sharers / cus);
  const auto in_l2 = l2_lines_.find(tag);
  const bool in_this_l2 = in_l2 != l2_lines_.end() && l2_fills_ - in_l2->second < l2_capacity;
  const bool fetched_by_other = scatter(line) % 1024 >= static_cast<u64>(1024 / sharers);
  l2_lines_[tag] = ++l2_fills_;
  const Clock from_l2 = l2_.take(now);
  if (in_this_l2 || fetched_by_other) {
    ++traffic_.l2_hits;
    return from_l2;
  }
  const bool other_xcd_first = sharing_.other_xcds && sharing_.other_xcds(line) &&
                               scatter(line * 3 + 1) % static_cast<u64>(p_.chip.xcds) != 0;
  if (m.mall_bytes > 0 && (fits_mall_ || other_xcd_first)) {
    ++traffic_.mall_hits;
    return std::max(from_l2, mall_.take(now));
  }
  ++traffic_.memory;
  return std::max(from_l2, memory_.take(now));
}

Clock MemorySystem::access(int pair, Clock now, const TimedOp& op, const TracedAccess& access,
                           const u64* lines, u64 salt) {
  const MemoryParameters& m = p_.memory;
  Path& own = path(pair);
  Clock service = std::max<Clock>(m.least_clocks, m.line_clocks * Clock{access.lines});
  service = std::max<Clock>(service, access.bytes / static_cast<u32>(m.l1_rate));
  if (access.bytes == 8 * 64) service = std::max<Clock>(service, m.two_dwords);
  const Clock start = std::max(now, own.address_free);
  own.address_free = start + service;
  own.waiting.push_back(start);
  Clock end = start + service;
  for (u32 i = 0; i < access.lines; ++i) {
    const Clock at = start + service * Clock(i) / access.lines;
    if (op.atomic) {
      end = std::max(end, atomics_.take(at));
    } else if (op.store) {
      l2_.take(at);
      if (!fits_mall_) memory_.take(at);
      end = std::max(end, at + m.store_latency);
    } else {
      end = std::max(end, line_end(own, at, lines[i], salt));
    }
  }
  if (!op.store) {
    own.in_flight.emplace_back(end, access.bytes);
    own.in_flight_bytes += access.bytes;
  }
  return end;
}

}  // namespace rocflash::sim
