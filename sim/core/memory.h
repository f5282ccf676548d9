// Device memory. It is host memory with a list of allocations for bounds checks and, with checks
// enabled, shadow memory of which bytes were written. Every allocation is between two red
// zones of unmapped addresses, so that an out-of-bounds access does not hit another allocation.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>

#include "core/types.h"

namespace rocflash::sim {

struct Allocation {
  u64 base = 0;
  u64 size = 0;
  std::string kind;  // "hipMalloc", "registered host memory", "code object", ...
  u64 id = 0;        // in order of allocation
  int device = 0;
  u8* defined = nullptr;  // 0xff for each byte ever written; null: all of it counts as written
  bool owned = false;     // allocate() made it; release() frees it
  u64 red_zone = 0;       // reserved bytes before and after it, at least

  [[nodiscard]] bool contains(u64 address, u64 bytes) const {
    return address >= base && bytes <= size && address - base <= size - bytes;
  }
};

class Memory {
 public:
  static Memory& instance();

  // Fresh memory; its bytes start undefined when `track` is set.
  void* allocate(u64 size, std::string kind, bool track, int device);
  // False when `pointer` is not the start of a live allocation made by allocate().
  bool release(void* pointer);
  // Makes memory of another owner accessible to kernels.
  bool add(const void* pointer, u64 size, std::string kind, int device);
  bool remove(const void* pointer);

  // The live allocation that holds the address, or null.
  [[nodiscard]] const Allocation* find(u64 address) const;
  // Describes `address` relative to the nearest live or freed allocation.
  [[nodiscard]] std::string describe(u64 address) const;
  [[nodiscard]] bool was_freed(u64 address) const;
  // The host, or a copy from a defined source, wrote these bytes.
  void mark_defined(const void* pointer, u64 size);
  // A copy carries undefinedness along.
  void copy_definedness(const void* to, const void* from, u64 size);
  [[nodiscard]] u64 bytes_in_use() const { return in_use_; }
  // Changes whenever an allocation appears or vanishes, so that look-ups may be cached.
  [[nodiscard]] u64 generation() const { return generation_.load(std::memory_order_acquire); }

 private:
  struct Freed {
    Allocation allocation;
    bool mapped;  // still quarantined
  };
  void insert(Allocation allocation);
  void drop_quarantine(u64 keep);

  mutable std::shared_mutex mutex_;
  std::map<u64, std::unique_ptr<Allocation>> live_;  // by base
  std::deque<Freed> freed_;
  u64 quarantined_ = 0;
  u64 next_id_ = 1;
  std::atomic<u64> in_use_{0};
  std::atomic<u64> generation_{1};
};

}  // namespace rocflash::sim
