// Aligned allocations, and memory per thread. One implementation per operating system.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rocflash::platform {

// `size` is a multiple of `alignment`, a power of two. Null if out of memory.
void* aligned_allocate(std::size_t alignment, std::size_t size) noexcept;
void aligned_free(void* memory) noexcept;

// A pointer per thread to memory of aligned_allocate, which is freed when the thread ends. A
// thread_local with a destructor would terminate the process when its registration fails for lack
// of memory, and would run code of this library after it is unloaded.
class ThreadMemory {
 public:
  ThreadMemory() noexcept;
  ~ThreadMemory();
  ThreadMemory(const ThreadMemory&) = delete;
  ThreadMemory& operator=(const ThreadMemory&) = delete;

  bool usable() const noexcept { return usable_; }
  void* get() const noexcept;
  bool set(void* memory) const noexcept;  // false if out of memory

 private:
  std::uintptr_t key_ = 0;
  bool usable_ = false;
};

}  // namespace rocflash::platform
