#include "support/allocations.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

std::atomic<long> left{0};  // until the one that fails; 0: none does
std::atomic<bool> and_rest{false}, failed{false};
std::atomic<std::size_t> most{0};

bool refuses(std::size_t bytes) {
  const std::size_t limit = most.load();
  bool refused = limit != 0 && bytes >= limit;
  if (left.load() > 0) {
    const long before = left.fetch_sub(1);
    refused = refused || before == 1;
    if (before == 1 && and_rest) left = 1;
  }
  if (refused) {
    failed = true;
    errno = ENOMEM;
  }
  return refused;
}

}  // namespace

// glibc's own, under its other names. Ours are visible to the library, whatever the build hides.
#pragma GCC visibility push(default)
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) noexcept { return refuses(n) ? nullptr : __libc_malloc(n); }
void* calloc(std::size_t n, std::size_t size) noexcept {
  return refuses(n * size) ? nullptr : __libc_calloc(n, size);
}
void* realloc(void* old, std::size_t n) noexcept {
  return refuses(n) ? nullptr : __libc_realloc(old, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) noexcept {
  return refuses(n) ? nullptr : __libc_memalign(alignment, n);
}
int posix_memalign(void** to, std::size_t alignment, std::size_t n) noexcept {
  if (refuses(n)) return ENOMEM;
  *to = __libc_memalign(alignment, n);
  return *to ? 0 : ENOMEM;
}
}
#pragma GCC visibility pop

namespace rocflash::test {

void fail_allocation(long number, Failing which) {
  failed = false;
  and_rest = which == Failing::rest;
  left = number;
}

void fail_allocations_above(std::size_t bytes) {
  failed = false;
  most = bytes;
}

bool allocation_failed() { return failed; }

int in_child(const std::function<int()>& body) {
  constexpr unsigned patience = 60;
  const pid_t child = fork();
  if (child == 0) {
    alarm(patience);
    _exit(body());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace rocflash::test
