// Properties of every call: struct sizes, per-thread errors, concurrency, fork, workspace.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <thread>

#include "support/call.hpp"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
// One test starts threads in a forked child.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif
#endif

extern "C" int c_program_works(void);

namespace rocflash::test {
namespace {

TEST(Calls, FromC) { EXPECT_EQ(c_program_works(), 0); }

// The struct of a program built against a newer header, with the new fields zero.
template <class Struct, std::size_t bytes>
struct Grown {
  explicit Grown(const Struct& given) : known(given) { known.struct_size = sizeof *this; }
  Struct known;
  char added[bytes] = {};
};

TEST(Calls, LargerStructsWithZeroTailsAreAccepted) {
  Call c;
  c.backend(ROCFLASH_BACKEND_REFERENCE).with_sinks().expect_forward();
  c.expect_backward();
  const auto out = c.out.bytes(), dq = c.dq.bytes();
  Grown<rocflash_problem, 24> problem(c.problem);
  Grown<rocflash_forward_outputs, 8> outputs(c.forward_outputs);
  Grown<rocflash_backward_tensors, 16> tensors(c.backward_tensors);
  Grown<rocflash_execution, 8> execution(c.execution);
  c.out.fill(9);
  c.dq.fill(9);
  ASSERT_EQ(rocflash_forward(&problem.known, &outputs.known, &execution.known), ROCFLASH_OK)
      << rocflash_last_error();
  ASSERT_EQ(rocflash_backward(&problem.known, &tensors.known, &execution.known), ROCFLASH_OK)
      << rocflash_last_error();
  EXPECT_TRUE(c.out.bytes() == out);
  EXPECT_TRUE(c.dq.bytes() == dq);
}

// Callers may have the structs of the first release: fields keep their offsets, and structs never
// shrink.
TEST(Calls, FirstReleaseLayoutIsKept) {
  EXPECT_EQ(offsetof(rocflash_problem, q), 8u);
  EXPECT_EQ(offsetof(rocflash_problem, max_seqlen_q), 72u);
  EXPECT_EQ(offsetof(rocflash_problem, causal), 88u);
  EXPECT_EQ(offsetof(rocflash_problem, window), 96u);
  EXPECT_EQ(offsetof(rocflash_problem, softmax_scale), 120u);
  EXPECT_EQ(offsetof(rocflash_problem, dropout_p), 160u);
  EXPECT_EQ(offsetof(rocflash_problem, deterministic), 184u);
  EXPECT_GE(sizeof(rocflash_problem), 192u);
  EXPECT_GE(sizeof(rocflash_forward_outputs), 32u);
  EXPECT_EQ(offsetof(rocflash_backward_tensors, dbias), 64u);
  EXPECT_EQ(offsetof(rocflash_backward_tensors, dalibi_slopes), 72u);
  EXPECT_EQ(offsetof(rocflash_backward_tensors, delta), 80u);
  EXPECT_EQ(offsetof(rocflash_execution, workspace_size), 32u);
  EXPECT_EQ(offsetof(rocflash_device, units), 40u);
}

TEST(Calls, ExecutionMayBeNull) {
  Call c;
  std::size_t zeros = 1, null = 2;
  ASSERT_EQ(rocflash_forward_workspace(&c.problem, &c.forward_outputs, &c.execution, &zeros),
            ROCFLASH_OK);
  ASSERT_EQ(rocflash_forward_workspace(&c.problem, &c.forward_outputs, nullptr, &null),
            ROCFLASH_OK);
  EXPECT_EQ(null, zeros);
}

TEST(Calls, StridesMayBeNullForCompactTensors) {
  Call c({.b = 2});
  c.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
  const auto out = c.out.bytes();
  for (HostTensor* t : {&c.q, &c.k, &c.v, &c.out, &c.lse}) t->dl.strides = nullptr;
  c.out.fill(9);
  c.expect_forward();
  EXPECT_TRUE(c.out.bytes() == out);
}

TEST(Calls, ByteOffsetAndPinnedHostMemoryAreSupported) {
  Call c;
  c.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
  const auto out = c.out.bytes();
  auto* data = static_cast<std::byte*>(c.q.dl.data);
  c.q.dl.data = data - 16;
  c.q.dl.byte_offset = 16;
  c.k.dl.device = {kDLCUDAHost, 0};
  c.v.dl.device = {kDLROCMHost, 3};
  c.out.dl.device = {kDLCPU, 1};
  c.out.fill(9);
  c.expect_forward();
  EXPECT_TRUE(c.out.bytes() == out);
}

// Interleaved views of one buffer, such as dq, dk and dv of a packed qkv, do not overlap.
TEST(Calls, InterleavedOutputsAreAccepted) {
  Call c({.sq = 5, .sk = 5, .h = 2, .hk = 2});
  c.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
  c.expect_backward();
  const auto dq = c.dq.values(), dk = c.dk.values(), dv = c.dv.values();
  HostTensor buffer(DType::f32, {1, 5, 3, 2, 4});
  std::int64_t stride[] = {120, 24, 4, 1};
  std::uint64_t offset = 0;
  for (HostTensor* t : {&c.dq, &c.dk, &c.dv}) {
    t->dl.data = buffer.dl.data;
    t->dl.strides = stride;
    t->dl.byte_offset = offset;
    offset += 8 * sizeof(float);
  }
  c.expect_backward();
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t n = 0; n < 8; ++n) {
      const auto at = static_cast<std::size_t>(i * 8 + n);
      EXPECT_EQ(buffer.get({0, i, 0, n / 4, n % 4}), dq[at]);
      EXPECT_EQ(buffer.get({0, i, 1, n / 4, n % 4}), dk[at]);
      EXPECT_EQ(buffer.get({0, i, 2, n / 4, n % 4}), dv[at]);
    }
}

// Two strided views of one buffer: shifted views share rows, alternating ones do not.
TEST(Calls, ViewsThatShareRowsAreRejected) {
  HostTensor buffer(DType::f32, {2, 7, 2, 4});
  const auto forward = [&](std::int64_t rows, std::int64_t step, std::int64_t shift) {
    Call c({.b = 2, .sq = rows, .sk = 3, .h = 2, .hk = 2});
    std::int64_t stride[] = {56, 8 * step, 4, 1};
    for (HostTensor* t : {&c.q, &c.out}) {
      t->dl.data = buffer.dl.data;
      t->dl.strides = stride;
    }
    c.out.dl.byte_offset = static_cast<std::uint64_t>(shift) * 8 * sizeof(float);
    return c.forward();
  };
  EXPECT_EQ(forward(5, 1, 1), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(),
               "out overlaps q in memory; an output must not overlap another tensor");
  EXPECT_EQ(forward(3, 2, 2), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(forward(3, 2, 1), ROCFLASH_OK);
  EXPECT_EQ(forward(3, 1, 3), ROCFLASH_OK);
}

TEST(Calls, EachThreadHasItsOwnError) {
  Call c;
  c.problem.causal = 5;
  ASSERT_EQ(c.forward(), ROCFLASH_INVALID_ARGUMENT);
  const std::string here = rocflash_last_error();
  std::string fresh, there;
  std::thread([&] {
    fresh = rocflash_last_error();
    Call other;
    other.problem.causal = 6;
    other.forward();
    there = rocflash_last_error();
  }).join();
  EXPECT_EQ(fresh, "");
  EXPECT_EQ(there, "causal is 6; it must be 0 or 1");
  EXPECT_EQ(rocflash_last_error(), here);
  EXPECT_EQ(here, "causal is 5; it must be 0 or 1");
}

TEST(Calls, SuccessKeepsTheLastError) {
  Call c;
  c.problem.causal = 5;
  ASSERT_EQ(c.forward(), ROCFLASH_INVALID_ARGUMENT);
  c.problem.causal = 0;
  c.expect_forward();
  EXPECT_STREQ(rocflash_last_error(), "causal is 5; it must be 0 or 1");
}

// Valid and invalid calls from concurrent threads, on every backend.
TEST(Calls, ConcurrentThreads) {
  constexpr rocflash_backend backends[] = {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_REFERENCE,
                                           ROCFLASH_BACKEND_NAIVE, ROCFLASH_BACKEND_STANDARD};
  const Size size{.b = 2, .sq = 40, .sk = 70, .h = 4, .hk = 2, .d = 16, .dv = 8};
  std::vector<std::vector<std::byte>> out, dk;
  for (const auto which : backends) {
    Call c(size);
    c.backend(which, 3).expect_forward();
    c.expect_backward();
    out.push_back(c.out.bytes());
    dk.push_back(c.dk.bytes());
  }
  std::vector<int> wrong(8, 0);
  std::vector<std::thread> threads;
  for (int n = 0; n < 8; ++n) {
    threads.emplace_back([&, n] {
      for (int round = 0; round < 8; ++round) {
        const auto at = static_cast<std::size_t>((n + round) % 4);
        Call c(size);
        c.backend(backends[at], 1 + (n + round) % 5);
        int& count = wrong[static_cast<std::size_t>(n)];
        count += c.forward() != ROCFLASH_OK || c.backward() != ROCFLASH_OK;
        count += c.out.bytes() != out[at] || c.dk.bytes() != dk[at];
        c.problem.causal = 100 + n;
        count += c.forward() != ROCFLASH_INVALID_ARGUMENT;
        count +=
            rocflash_last_error() != "causal is " + std::to_string(100 + n) + "; it must be 0 or 1";
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

std::size_t threads_of_this_process() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    ++count;
  return count;
}

// Runs `child` in a forked process and expects it to return true within 30 seconds.
template <class Child>
void expect_in_fork(Child child) {
  const pid_t id = fork();
  ASSERT_GE(id, 0);
  if (id == 0) {
    alarm(30);  // terminates a child that hangs
    _exit(child() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(id, &status, 0), id);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

const Size many_blocks{.b = 2, .sq = 64, .sk = 64, .h = 4, .hk = 4, .d = 16, .dv = 16};

// A forked child has none of its parent's threads: it must start its own instead of waiting for
// those.
TEST(Calls, WorkInAForkedChild) {
  Call c(many_blocks);
  c.backend(ROCFLASH_BACKEND_CPU, 4).expect_forward();
  c.expect_backward();
  const auto out = c.out.bytes(), dq = c.dq.bytes();
  expect_in_fork([&] {
    c.out.fill(9);
    c.dq.fill(9);
    const bool good = c.forward() == ROCFLASH_OK && c.backward() == ROCFLASH_OK;
    return good && c.out.bytes() == out && c.dq.bytes() == dq && threads_of_this_process() >= 4;
  });
  c.expect_forward();  // the parent's pool still works
  EXPECT_TRUE(c.out.bytes() == out);
}

// The process may fork while the pool computes for another thread and its mutex is locked.
TEST(Calls, WorkInAChildForkedDuringACall) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    Call c(many_blocks);
    c.backend(ROCFLASH_BACKEND_CPU, 4);
    while (!stop) c.forward();
  });
  Call c(many_blocks);
  c.backend(ROCFLASH_BACKEND_CPU, 4);
  for (int n = 0; n < 20; ++n) {
    expect_in_fork([&] { return c.forward() == ROCFLASH_OK; });
  }
  stop = true;
  other.join();
}

// The query accepts null data, and rejects what the call would reject.
TEST(Workspace, QueryNeedsNoData) {
  Call c({.b = 2, .sq = 33, .sk = 65});
  c.with_bias().with_sinks();
  for (const auto which :
       {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD, ROCFLASH_BACKEND_REFERENCE}) {
    c.backend(which, 2);
    c.set_pointers();
    std::size_t forward = 1, backward = 1, forward_null = 2, backward_null = 2;
    ASSERT_EQ(rocflash_forward_workspace(&c.problem, &c.forward_outputs, &c.execution, &forward),
              ROCFLASH_OK);
    ASSERT_EQ(rocflash_backward_workspace(&c.problem, &c.backward_tensors, &c.execution, &backward),
              ROCFLASH_OK);
    std::vector<HostTensor*> all = {&c.q,   &c.k,    &c.v,  &c.bias, &c.sinks, &c.out,
                                    &c.lse, &c.dout, &c.dq, &c.dk,   &c.dv,    &c.dsinks};
    std::vector<void*> data;
    for (HostTensor* t : all) data.push_back(std::exchange(t->dl.data, nullptr));
    EXPECT_EQ(
        rocflash_forward_workspace(&c.problem, &c.forward_outputs, &c.execution, &forward_null),
        ROCFLASH_OK)
        << rocflash_last_error();
    EXPECT_EQ(
        rocflash_backward_workspace(&c.problem, &c.backward_tensors, &c.execution, &backward_null),
        ROCFLASH_OK)
        << rocflash_last_error();
    EXPECT_EQ(forward_null, forward);
    EXPECT_EQ(backward_null, backward);
    c.problem.softcap = -1;
    EXPECT_EQ(rocflash_forward_workspace(&c.problem, &c.forward_outputs, &c.execution, &forward),
              ROCFLASH_INVALID_ARGUMENT);
    c.problem.softcap = 0;
    for (std::size_t n = 0; n < all.size(); ++n) all[n]->dl.data = data[n];
  }
}

using Query = rocflash_status (*)(Call&, std::size_t*);
using Run = rocflash_status (*)(Call&);

// A workspace that is too small, null or misaligned is rejected and the outputs are not written.
// The queried size suffices.
void expect_workspace_is_checked(Call& c, Query query, Run run, int& with_workspace) {
  std::size_t bytes = 0;
  ASSERT_EQ(query(c, &bytes), ROCFLASH_OK) << rocflash_last_error();
  c.execution.workspace = nullptr;
  c.execution.workspace_size = 0;
  if (bytes == 0) {
    EXPECT_EQ(run(c), ROCFLASH_OK) << rocflash_last_error();
    return;
  }
  ++with_workspace;
  const std::string size = std::to_string(bytes);
  const auto before_out = c.out.bytes(), before_dq = c.dq.bytes();
  Memory memory(bytes);  // of exactly this size, so that a sanitizer detects an access past it
  c.execution.workspace = memory.data;
  c.execution.workspace_size = bytes - 1;
  EXPECT_EQ(run(c), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(rocflash_last_error(), "workspace_size is " + std::to_string(bytes - 1) +
                                       "; it must be at least " + size +
                                       " for this call, the size that the workspace query returns");
  c.execution.workspace_size = bytes;
  c.execution.workspace = nullptr;
  EXPECT_EQ(run(c), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(rocflash_last_error(), "workspace is null; this call requires " + size + " bytes");
  c.execution.workspace = memory.data + 8;
  EXPECT_EQ(run(c), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(),
               "workspace is 8 bytes past a multiple of 64; it must be aligned to 64 bytes");
  EXPECT_TRUE(c.out.bytes() == before_out && c.dq.bytes() == before_dq);
  c.execution.workspace = memory.data;
  EXPECT_EQ(run(c), ROCFLASH_OK) << rocflash_last_error();
}

TEST(Workspace, IsChecked) {
  int with_workspace = 0;
  for (const auto which : {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD}) {
    for (const std::int64_t sq : {1, 40}) {
      Call c({.b = 2, .sq = sq, .sk = 70, .h = 4, .hk = 2, .d = 16, .dv = 8});
      c.backend(which, 2);
      expect_workspace_is_checked(
          c,
          [](Call& call, std::size_t* bytes) {
            return rocflash_forward_workspace(&call.problem, &call.forward_outputs, &call.execution,
                                              bytes);
          },
          [](Call& call) {
            return rocflash_forward(&call.problem, &call.forward_outputs, &call.execution);
          },
          with_workspace);
      expect_workspace_is_checked(
          c,
          [](Call& call, std::size_t* bytes) {
            return rocflash_backward_workspace(&call.problem, &call.backward_tensors,
                                               &call.execution, bytes);
          },
          [](Call& call) {
            return rocflash_backward(&call.problem, &call.backward_tensors, &call.execution);
          },
          with_workspace);
    }
  }
  EXPECT_GT(with_workspace, 0) << "no call needed a workspace, so nothing was tested";
}

}  // namespace
}  // namespace rocflash::test
