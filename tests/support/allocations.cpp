#include "support/allocations.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

namespace {

std::atomic<long> countdown{0};  // to the allocation that fails; 0: none fails
std::atomic<bool> and_rest{false}, failed{false};
std::atomic<std::size_t> size_limit{0};

bool fails(std::size_t bytes) {
  const std::size_t limit = size_limit.load();
  bool fail = limit != 0 && bytes >= limit;
  if (countdown.load() > 0) {
    const long before = countdown.fetch_sub(1);
    fail = fail || before == 1;
    if (before == 1 && and_rest) countdown = 1;
  }
  if (fail) {
    failed = true;
    errno = ENOMEM;
  }
  return fail;
}

}  // namespace

// glibc's own functions under their internal names. The replacements have default visibility, so
// that the library calls them in builds with -fvisibility=hidden.
#pragma GCC visibility push(default)
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) noexcept { return fails(n) ? nullptr : __libc_malloc(n); }
void* calloc(std::size_t n, std::size_t size) noexcept {
  return fails(n * size) ? nullptr : __libc_calloc(n, size);
}
void* realloc(void* old, std::size_t n) noexcept {
  return fails(n) ? nullptr : __libc_realloc(old, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) noexcept {
  return fails(n) ? nullptr : __libc_memalign(alignment, n);
}
int posix_memalign(void** to, std::size_t alignment, std::size_t n) noexcept {
  if (fails(n)) return ENOMEM;
  *to = __libc_memalign(alignment, n);
  return *to ? 0 : ENOMEM;
}
}
#pragma GCC visibility pop

namespace rocflash::test {

void fail_allocation(long number, Failing which) {
  failed = false;
  and_rest = which == Failing::rest;
  countdown = number;
}

void fail_allocations_above(std::size_t bytes) {
  failed = false;
  size_limit = bytes;
}

bool allocation_failed() { return failed; }

int in_child(const std::function<int()>& body) {
  constexpr unsigned timeout_s = 60;
  const pid_t child = fork();
  if (child == 0) {
    alarm(timeout_s);
    _exit(body());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace rocflash::test
