// The registry of device memory.
#include "core/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "core/fill_pattern.h"

namespace rocflash::sim {
namespace {

// Freed memory is quarantined so that its addresses are not reused at once:
// a use after free then faults and does not touch another allocation.
constexpr u64 kQuarantineBytes = 64ull << 20;
constexpr std::size_t kFreedRemembered = 256;

constexpr u64 kPage = 4096;
// hipMalloc's guarantee and no more: larger alignment would hide a kernel that depends on it.
constexpr u64 kAlignment = 256;
// A red zone is as large as its allocation within these bounds: a row, a head or a whole tensor too
// far still falls into it. It costs address space and no memory.
constexpr u64 kSmallestRedZone = 1ull << 20;
constexpr u64 kLargestRedZone = 1ull << 30;

u64 round_up(u64 size, u64 unit) { return (size + unit - 1) / unit * unit; }
u64 red_zone_of(u64 size) {
  return std::clamp(round_up(size, kPage), kSmallestRedZone, kLargestRedZone);
}
// The pages between the red zones.
u64 mapped_bytes(u64 size) { return round_up(kAlignment + std::max<u64>(size, 1), kPage); }

u8* map_between_red_zones(u64 size, u64 red_zone) {
  const u64 inner = mapped_bytes(size);
  void* p = mmap(nullptr, inner + 2 * red_zone, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  u8* const first = static_cast<u8*>(p) + red_zone;
  if (mprotect(first, inner, PROT_READ | PROT_WRITE) != 0) {
    munmap(p, inner + 2 * red_zone);
    return nullptr;
  }
  return first + kAlignment;
}

void unmap(const Allocation& a) {
  munmap(reinterpret_cast<u8*>(a.base) - kAlignment - a.red_zone,
         mapped_bytes(a.size) + 2 * a.red_zone);
}

// Zero pages on demand: the shadow of a large allocation costs only what is touched.
u8* map_shadow(u64 size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<u8*>(p);
}

}  // namespace

Memory& Memory::instance() {
  static auto* memory = new Memory;  // outlives static destructors that free device memory
  return *memory;
}

void Memory::insert(Allocation allocation) {
  const std::unique_lock lock(mutex_);
  allocation.id = next_id_++;
  const u64 base = allocation.base;
  live_[base] = std::make_unique<Allocation>(std::move(allocation));
  generation_.fetch_add(1, std::memory_order_release);
}

void* Memory::allocate(u64 size, std::string kind, bool track, int device) {
  constexpr u64 kLargest =
      1ull << 46;  // more than any process can map; keeps the sums from wrapping
  if (size > kLargest) return nullptr;
  const u64 red_zone = red_zone_of(size);
  u8* memory = map_between_red_zones(size, red_zone);
  if (memory == nullptr) return nullptr;
  std::memset(memory, kFillByte, std::max<u64>(size, 1));
  u8* defined = track ? map_shadow(round_up(std::max<u64>(size, 1), kAlignment)) : nullptr;
  insert(
      {reinterpret_cast<u64>(memory), size, std::move(kind), 0, device, defined, true, red_zone});
  in_use_ += size;
  return memory;
}

bool Memory::release(void* pointer) {
  const std::unique_lock lock(mutex_);
  const auto it = live_.find(reinterpret_cast<u64>(pointer));
  if (it == live_.end() || !it->second->owned) return false;
  Allocation allocation = *it->second;
  live_.erase(it);
  generation_.fetch_add(1, std::memory_order_release);
  in_use_ -= allocation.size;
  if (allocation.defined != nullptr) {
    munmap(allocation.defined, round_up(std::max<u64>(allocation.size, 1), kAlignment));
    allocation.defined = nullptr;
  }
  quarantined_ += allocation.size;
  freed_.push_back({std::move(allocation), true});
  drop_quarantine(kQuarantineBytes);
  return true;
}

void Memory::drop_quarantine(u64 keep) {
  const auto let_go = [this](Freed& entry) {
    if (!entry.mapped) return;
    unmap(entry.allocation);
    entry.mapped = false;
    quarantined_ -= entry.allocation.size;
  };
  for (Freed& entry : freed_) {
    if (quarantined_ <= keep) break;
    let_go(entry);
  }
  while (freed_.size() > kFreedRemembered) {
    let_go(freed_.front());
    freed_.pop_front();
  }
}

bool Memory::add(const void* pointer, u64 size, std::string kind, int device) {
  if (pointer == nullptr || size == 0) return false;
  insert({reinterpret_cast<u64>(pointer), size, std::move(kind), 0, device, nullptr, false, 0});
  return true;
}

bool Memory::remove(const void* pointer) {
  const std::unique_lock lock(mutex_);
  const auto it = live_.find(reinterpret_cast<u64>(pointer));
  if (it == live_.end() || it->second->owned) return false;
  live_.erase(it);
  generation_.fetch_add(1, std::memory_order_release);
  return true;
}

const Allocation* Memory::find(u64 address) const {
  const std::shared_lock lock(mutex_);
  auto it = live_.upper_bound(address);
  if (it == live_.begin()) return nullptr;
  --it;
  return it->second->contains(address, 1) ? it->second.get() : nullptr;
}

bool Memory::was_freed(u64 address) const {
  const std::shared_lock lock(mutex_);
  for (const auto& entry : freed_) {
    if (entry.allocation.contains(address, 1)) return true;
  }
  return false;
}

std::string Memory::describe(u64 address) const {
  const std::shared_lock lock(mutex_);
  const Allocation* best = nullptr;
  u64 best_distance = ~0ull;
  bool freed = false;
  const auto consider = [&](const Allocation& a, bool is_freed) {
    const u64 end = a.base + a.size;
    const u64 distance = address < a.base ? a.base - address
                         : address >= end ? address - end + 1
                                          : 0;
    if (distance < best_distance) {
      best = &a;
      best_distance = distance;
      freed = is_freed;
    }
  };
  for (const auto& [base, allocation] : live_) consider(*allocation, false);
  for (const auto& entry : freed_) {
    if (entry.allocation.contains(address, 1)) consider(entry.allocation, true);
  }
  if (best == nullptr) return "no allocation at all";
  const u64 end = best->base + best->size;
  std::string where;
  if (address < best->base) {
    where = fmt::format("{} bytes before", best->base - address);
  } else if (address >= end) {
    where = fmt::format("{} bytes past the end of", address - end);
  } else {
    where = fmt::format("{} bytes into", address - best->base);
  }
  return fmt::format("{} {}{} #{} of {} bytes at {:#x}", where, freed ? "freed " : "", best->kind,
                     best->id, best->size, best->base);
}

void Memory::mark_defined(const void* pointer, u64 size) {
  const u64 address = reinterpret_cast<u64>(pointer);
  if (const Allocation* a = find(address); a != nullptr && a->defined != nullptr) {
    std::memset(a->defined + (address - a->base), 0xff,
                std::min(size, a->size - (address - a->base)));
  }
}

void Memory::copy_definedness(const void* to, const void* from, u64 size) {
  const u64 to_address = reinterpret_cast<u64>(to);
  const u64 from_address = reinterpret_cast<u64>(from);
  const Allocation* source = find(from_address);
  const Allocation* target = find(to_address);
  if (target == nullptr || target->defined == nullptr) return;
  if (source == nullptr || source->defined == nullptr || !source->contains(from_address, size) ||
      !target->contains(to_address, size)) {
    mark_defined(to, size);
    return;
  }
  std::memmove(target->defined + (to_address - target->base),
               source->defined + (from_address - source->base), size);
}

}  // namespace rocflash::sim
