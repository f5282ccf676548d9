// Out of memory in any call on the CPU is a status with a message, and the next call succeeds. Each
// attempt runs in a child process, because a process initializes the library once.
#include <gtest/gtest.h>

#include <functional>

#include "support/allocations.hpp"
#include "support/call.hpp"

namespace rocflash::test {
namespace {

enum Outcome { good = 0, failed_then_good = 1, still_failing = 2, no_message = 3 };

// `call` must not allocate itself. Returns how many allocations failed.
int each_allocation(const char* name, const std::function<rocflash_status()>& call) {
  int failures = 0;
  for (const Failing which : {Failing::one, Failing::rest}) {
    for (long n = 1; n < 10000; ++n) {
      const int outcome = in_child([&]() -> int {
        fail_allocation(n, which);
        const rocflash_status first = call();
        const bool failed = allocation_failed();
        fail_allocation(0, Failing::one);
        if (first == ROCFLASH_OK) return failed ? failed_then_good : good;
        if (*rocflash_last_error() == '\0') return no_message;
        return call() == ROCFLASH_OK ? failed_then_good : still_failing;
      });
      if (outcome == good) break;
      ++failures;
      if (outcome != failed_then_good) {
        ADD_FAILURE() << name << ", allocation " << n << ": " << outcome;
        break;
      }
    }
  }
  return failures;
}

// A call with its workspace, allocated in the parent without initializing the library.
struct Ready {
  explicit Ready(rocflash_backend backend, int threads, Size size = {.b = 2, .sq = 70, .sk = 90})
      : call(size) {
    call.backend(backend, threads).set_pointers();
    memory.resize(std::size_t{1} << 22);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    call.execution.workspace = memory.data() + (64 - address % 64);
    call.execution.workspace_size = memory.size() - 64;
  }
  Call call;
  std::vector<std::byte> memory;
};

TEST(Allocation, ForwardAndBackward) {
  for (const auto backend : {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_REFERENCE,
                             ROCFLASH_BACKEND_NAIVE, ROCFLASH_BACKEND_STANDARD}) {
    // The reference backends allocate per row, always in the same way: a small size suffices.
    const bool is_reference =
        backend == ROCFLASH_BACKEND_REFERENCE || backend == ROCFLASH_BACKEND_NAIVE;
    const Size size =
        is_reference ? Size{.b = 1, .sq = 2, .sk = 2, .h = 1} : Size{.b = 2, .sq = 70, .sk = 90};
    for (const int threads : {1, 2}) {
      Ready r(backend, threads, size);
      const Call& c = r.call;
      each_allocation("forward", [&] {
        return rocflash_forward(&c.problem, &c.forward_outputs, &c.execution);
      });
      each_allocation("backward", [&] {
        return rocflash_backward(&c.problem, &c.backward_tensors, &c.execution);
      });
    }
  }
}

TEST(Allocation, Decode) {
  Ready r(ROCFLASH_BACKEND_CPU, 2, {.b = 2, .sq = 1, .sk = 300});
  HostTensor k_new(DType::f32, {2, 1, 1, 4}), v_new(DType::f32, {2, 1, 1, 4}),
      cos(DType::f32, {400, 2}), sin(DType::f32, {400, 2});
  r.call.with_used_k({5, 7});
  rocflash_append append{};
  append.struct_size = sizeof append;
  append.k_new = &k_new.dl;
  append.v_new = &v_new.dl;
  append.rotary_cos = &cos.dl;
  append.rotary_sin = &sin.dl;
  const Call& c = r.call;
  each_allocation("decode", [&] {
    return rocflash_decode(&c.problem, &append, &c.forward_outputs, &c.execution);
  });
}

TEST(Allocation, Combine) {
  HostTensor parts(DType::f32, {3, 1, 8, 2, 4}), lses(DType::f32, {3, 1, 2, 8}),
      out(DType::f32, {1, 8, 2, 4}), lse(DType::f32, {1, 2, 8});
  rocflash_execution execution{};
  execution.struct_size = sizeof execution;
  execution.num_threads = 2;
  each_allocation("combine", [&] {
    return rocflash_combine(&parts.dl, &lses.dl, &out.dl, &lse.dl, &execution);
  });
}

TEST(Allocation, Queries) {
  each_allocation("device", [] {
    rocflash_device device{};
    device.struct_size = sizeof device;
    return rocflash_query_device(0, &device);
  });
  const int failures = each_allocation("driver", [] {
    rocflash_driver driver{};
    driver.struct_size = sizeof driver;
    return rocflash_query_driver(1, &driver);
  });
  EXPECT_GT(failures, 0) << "the library does not call this program's malloc";
  each_allocation("limits", [] {
    rocflash_limits limits{};
    limits.struct_size = sizeof limits;
    return rocflash_query_limits(&limits);
  });
}

}  // namespace
}  // namespace rocflash::test
