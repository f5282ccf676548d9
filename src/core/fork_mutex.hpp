// A lock for what is made once, on first use. A process may be forked while one of its threads
// makes such a thing: the child has a copy of the locked lock, but not of the thread that would
// unlock it. This lock knows which process locked it, so a child takes over what its parent holds.
//
// Therefore what it guards must be ready for that at any moment: it is built aside and then
// published by one atomic store, so that an unfinished attempt has left nothing behind but memory.
#pragma once

#include <unistd.h>

#include <atomic>
#include <mutex>

#include "core/names.hpp"

namespace rocflash::core {

class ForkMutex {
 public:
  void lock() noexcept {
    const int here = getpid();
    for (;;) {
      int holder = nobody;
      if (holder_.compare_exchange_strong(holder, here, std::memory_order_acquire)) return;
      if (holder == here) {
        holder_.wait(holder);
      } else if (holder_.compare_exchange_strong(holder, here, std::memory_order_acquire)) {
        return;
      }
    }
  }
  void unlock() noexcept {
    holder_.store(nobody, std::memory_order_release);
    holder_.notify_one();
  }

 private:
  static constexpr int nobody = 0;
  std::atomic<int> holder_{nobody};
};

}  // namespace rocflash::core
