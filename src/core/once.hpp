// Lock-free lazy initialization. The guard of a function-local static is a lock: if a process forks
// while another thread holds it, it stays locked in the child.
#pragma once

#include <atomic>
#include <memory>

#include "core/names.hpp"

namespace rocflash::core {

// Concurrent first callers each compute the value and the first to finish wins, so computing it
// must have no side effects. If it throws, the next call tries again. The value is never destroyed:
// threads may use it after main returns. Requires static storage and constinit.
template <class Value>
class OnFirstUse {
 public:
  constexpr OnFirstUse() = default;

  template <class Compute>
  const Value& get(Compute compute) {
    const Value* known = value_.load(std::memory_order_acquire);
    if (known) return *known;
    auto fresh = std::make_unique<const Value>(compute());
    if (value_.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel,
                                       std::memory_order_acquire))
      known = fresh.release();
    return *known;
  }

 private:
  std::atomic<const Value*> value_{nullptr};
};

}  // namespace rocflash::core
