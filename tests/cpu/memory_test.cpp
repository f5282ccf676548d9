// Memory beyond inputs and outputs: the workspace is a few tiles per thread, and nothing else is
// allocated. The scores of 32k x 32k would take 4 GiB; heap and resident memory must stay far
// below.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support/call.hpp"

// Replaces the allocator by a counting wrapper of the C library's allocator. The shared library's
// calls use it too.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);
}

namespace {

std::atomic<std::size_t> live{0}, peak{0}, calls{0};

void* counted(void* p) {
  if (!p) return p;
  ++calls;
  const std::size_t now = live += malloc_usable_size(p);
  for (std::size_t known = peak; now > known && !peak.compare_exchange_weak(known, now);) {
  }
  return p;
}

}  // namespace

extern "C" {
void* malloc(std::size_t n) { return counted(__libc_malloc(n)); }
void* calloc(std::size_t n, std::size_t size) { return counted(__libc_calloc(n, size)); }
void* realloc(void* p, std::size_t n) {
  if (p) live -= malloc_usable_size(p);
  return counted(__libc_realloc(p, n));
}
void* memalign(std::size_t alignment, std::size_t n) {
  return counted(__libc_memalign(alignment, n));
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
  return counted(__libc_memalign(alignment, n));
}
int posix_memalign(void** p, std::size_t alignment, std::size_t n) {
  *p = counted(__libc_memalign(alignment, n));
  return *p ? 0 : ENOMEM;
}
void free(void* p) {
  if (p) live -= malloc_usable_size(p);
  __libc_free(p);
}
}

namespace rocflash::test {
namespace {

constexpr std::size_t mib = 1 << 20;

// Peak resident bytes of this process since `reset_high_water`.
std::size_t high_water() {
  std::size_t kilobytes = 0;
  if (std::FILE* status = std::fopen("/proc/self/status", "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, status)) std::sscanf(line, "VmHWM: %zu", &kilobytes);
    std::fclose(status);
  }
  return kilobytes * 1024;
}

void reset_high_water() {
  if (std::FILE* refs = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", refs);
    std::fclose(refs);
  }
}

std::size_t forward_bytes(Call& c) {
  std::size_t bytes = 0;
  EXPECT_EQ(rocflash_forward_workspace(&c.problem, &c.forward_outputs, &c.execution, &bytes),
            ROCFLASH_OK);
  return bytes;
}

std::size_t backward_bytes(Call& c) {
  std::size_t bytes = 0;
  EXPECT_EQ(rocflash_backward_workspace(&c.problem, &c.backward_tensors, &c.execution, &bytes),
            ROCFLASH_OK);
  return bytes;
}

TEST(Memory, ForwardWorkspaceIsTilesPerThread) {
  const auto bytes = [](std::int64_t rows, int threads) {
    Call c({.b = 1, .sq = rows, .sk = rows, .h = 2, .hk = 2, .d = 64, .dv = 64});
    return forward_bytes(c.backend(ROCFLASH_BACKEND_CPU, threads));
  };
  EXPECT_LE(bytes(1024, 4), bytes(8192, 4)) << "short problems use smaller blocks";
  EXPECT_EQ(bytes(65536, 4), bytes(32768, 4)) << "grows with the length";
  EXPECT_LE(bytes(8192, 4), 4 * bytes(8192, 1)) << "grows faster than the threads";
  EXPECT_LE(bytes(65536, 1), 2 * mib);
}

TEST(Memory, BackwardWorkspaceIsLinearInQueries) {
  const auto bytes = [](std::int64_t sq, std::int64_t sk) {
    Call c({.b = 1, .sq = sq, .sk = sk, .h = 2, .hk = 2, .d = 64, .dv = 64});
    return backward_bytes(c.backend(ROCFLASH_BACKEND_CPU, 2));
  };
  EXPECT_EQ(bytes(4096, 16384), bytes(4096, 4096)) << "grows with the keys";
  EXPECT_LE(bytes(16384, 4096), 4 * bytes(4096, 4096)) << "grows faster than the queries";
}

TEST(Memory, BackwardWorkspaceShrinksWithAWindow) {
  const auto bytes = [](std::int64_t left) {
    Call c({.b = 1, .sq = 16384, .sk = 16384, .h = 2, .hk = 2, .d = 64, .dv = 64});
    return backward_bytes(c.with_window(left, 0).backend(ROCFLASH_BACKEND_CPU, 2));
  };
  EXPECT_LE(bytes(512), bytes(-1) / 3);
  EXPECT_LE(bytes(4096), bytes(-1));
}

// The gradient of a broadcast bias needs a few times its size for every batch, and nothing if the
// bias is not broadcast. With fewer concurrent (batch, head) slices the keys may have one split
// more, which needs another dq.
TEST(Memory, GradientOfABiasGrowsWithTheBias) {
  const auto added = [](std::int64_t batch, std::vector<std::int64_t> shape) {
    Call c({.b = batch, .sq = 256, .sk = 256, .h = 2, .hk = 2, .d = 8, .dv = 8});
    c.with_bias(std::move(shape)).backend(ROCFLASH_BACKEND_CPU, 2);
    const std::size_t without = backward_bytes(c);
    return backward_bytes(c.with_option_gradients()) - without;
  };
  const std::size_t bias = 256 * 256 * 2 * sizeof(float), dq = 256 * 2 * 16 * sizeof(float);
  EXPECT_EQ(added(16, {16, 2, 256, 256}), 0u);
  EXPECT_LE(added(16, {1, 2, 256, 256}), 8 * bias + 16 * dq);
  EXPECT_LE(added(64, {1, 2, 256, 256}), 8 * bias + 64 * dq);
  EXPECT_LE(added(64, {1, 1, 256, 256}), 4 * bias + 64 * dq);
  EXPECT_LE(added(64, {1, 1, 1, 1}), 4096 + 64 * dq);
}

TEST(Memory, ThirtyTwoThousandSquared) {
  constexpr std::int64_t rows = 32768;
  Call c({.b = 1, .sq = rows, .sk = rows, .h = 1, .hk = 1, .d = 8, .dv = 8}, DType::bf16);
  c.problem.causal = 1;
  c.backend(ROCFLASH_BACKEND_CPU, 2);
  {
    Call warm;  // starts the pool
    warm.backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
  }
  const auto expect_little = [&](const char* what, std::size_t bytes, std::size_t allowed,
                                 auto call) {
    EXPECT_LE(bytes, allowed) << what << ": workspace";
    Memory workspace(bytes);
    std::memset(workspace.data, 0, bytes);
    c.execution.workspace = workspace.data;
    c.execution.workspace_size = bytes;
    reset_high_water();
    const std::size_t resident = high_water(), before = live;
    peak = before;
    ASSERT_EQ(call(), ROCFLASH_OK) << rocflash_last_error();
    EXPECT_LE(peak - before, mib) << what << ": allocated during the call";
    EXPECT_LE(high_water() - resident, 8 * mib) << what << ": resident";
  };
  expect_little("forward", forward_bytes(c), mib,
                [&] { return rocflash_forward(&c.problem, &c.forward_outputs, &c.execution); });
  // In addition to tiles: delta, row max and 1 / row sum of each query, and an f32 dq for each of
  // at most
  // 8 chunks of keys.
  const std::size_t partial_dq = 8 * 16 * sizeof(float) * rows;
  expect_little("backward", backward_bytes(c), mib + 3 * rows * sizeof(float) + partial_dq,
                [&] { return rocflash_backward(&c.problem, &c.backward_tensors, &c.execution); });
}

TEST(Memory, CallsAllocateNothing) {
  Call c({.b = 2, .sq = 100, .sk = 100, .h = 4, .hk = 2, .d = 32, .dv = 32});
  c.with_sinks().with_bias({1, 4, 100, 100}).with_alibi().with_option_gradients();
  c.with_dropout(0.1f).backend(ROCFLASH_BACKEND_CPU, 2).expect_forward();
  c.expect_backward();
  std::size_t bytes = std::max(forward_bytes(c), backward_bytes(c));
  Memory workspace(bytes);
  c.execution.workspace = workspace.data;
  c.execution.workspace_size = bytes;
  const std::size_t before = calls;
  rocflash_forward(&c.problem, &c.forward_outputs, &c.execution);
  rocflash_backward(&c.problem, &c.backward_tensors, &c.execution);
  // The pool's queue of calls may allocate a node occasionally.
  EXPECT_LE(calls - before, 4u);
}

}  // namespace
}  // namespace rocflash::test
