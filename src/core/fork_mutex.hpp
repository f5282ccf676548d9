// A mutex for one-time initialization that survives fork. A process may fork while a thread holds
// it: the child inherits the locked mutex but not the thread. This mutex stores the owner's process
// id, so the child can take it over.
//
// The guarded object must be valid at any moment: it is built separately and published by one
// atomic store, so that an interrupted attempt leaks only memory.
#pragma once

#include <unistd.h>

#include <atomic>
#include <mutex>

#include "core/names.hpp"

namespace rocflash::core {

class ForkMutex {
 public:
  void lock() noexcept {
    const int self = getpid();
    for (;;) {
      int holder = unlocked;
      if (holder_.compare_exchange_strong(holder, self, std::memory_order_acquire)) return;
      if (holder == self) {
        holder_.wait(holder);
      } else if (holder_.compare_exchange_strong(holder, self, std::memory_order_acquire)) {
        return;
      }
    }
  }
  void unlock() noexcept {
    holder_.store(unlocked, std::memory_order_release);
    holder_.notify_one();
  }

 private:
  static constexpr int unlocked = 0;
  std::atomic<int> holder_{unlocked};
};

}  // namespace rocflash::core
