#include "platform/memory.hpp"

#include <malloc.h>

#include "platform/windows/text.hpp"

namespace rocflash::platform {

void* aligned_allocate(std::size_t alignment, std::size_t size) noexcept {
  return _aligned_malloc(size, alignment);
}

void aligned_free(void* memory) noexcept { _aligned_free(memory); }

// Fiber-local storage is thread-local storage with a destructor. FlsFree, when this library is
// unloaded, runs the destructor for all threads, so that none runs later.
ThreadMemory::ThreadMemory() noexcept {
  const DWORD key = FlsAlloc([](void* memory) { aligned_free(memory); });
  usable_ = key != FLS_OUT_OF_INDEXES;
  key_ = key;
}
ThreadMemory::~ThreadMemory() {
  if (usable_) FlsFree(static_cast<DWORD>(key_));
}
void* ThreadMemory::get() const noexcept { return FlsGetValue(static_cast<DWORD>(key_)); }
bool ThreadMemory::set(void* memory) const noexcept {
  return FlsSetValue(static_cast<DWORD>(key_), memory) != 0;
}

}  // namespace rocflash::platform
