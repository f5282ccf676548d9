// A value that is computed on first use, without a lock. The guard of a function-local static is a
// lock: a process that forks while another thread holds it leaves it locked in the child for good.
#pragma once

#include <atomic>
#include <memory>

#include "core/names.hpp"

namespace rocflash::core {

// Threads that come first at the same time each compute the value, and the first one finished is
// kept; so computing it must have no other effect. A computation that throws is tried again by the
// next call. The value is never destroyed: threads that outlive main may still use it.
// Must be a variable with static storage, declared constinit.
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
