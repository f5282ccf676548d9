#include "platform/memory.hpp"

#include <pthread.h>

#include <cstdlib>

namespace rocflash::platform {

void* aligned_allocate(std::size_t alignment, std::size_t size) noexcept {
  return std::aligned_alloc(alignment, size);
}

void aligned_free(void* memory) noexcept { std::free(memory); }

// The destructor of the key is libc's function, which stays mapped.
ThreadMemory::ThreadMemory() noexcept {
  pthread_key_t key{};
  usable_ = pthread_key_create(&key, std::free) == 0;
  key_ = key;
}
ThreadMemory::~ThreadMemory() {
  if (usable_) pthread_key_delete(static_cast<pthread_key_t>(key_));
}
void* ThreadMemory::get() const noexcept {
  return pthread_getspecific(static_cast<pthread_key_t>(key_));
}
bool ThreadMemory::set(void* memory) const noexcept {
  return pthread_setspecific(static_cast<pthread_key_t>(key_), memory) == 0;
}

}  // namespace rocflash::platform
