// The first GPU call of a process, on a fake driver: out of memory, damaged kernels, driver errors,
// and a concurrent fork. Each test runs in a child process, because a process has one first call.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <rocflash/rocflash.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "support/allocations.hpp"

namespace rocflash::test {
namespace {

// Forward of one small problem at addresses that are never dereferenced.
struct Given {
  explicit Given(int device = 0) {
    for (DLTensor* t : {&q, &k, &v, &out}) {
      t->data = reinterpret_cast<void*>(0x100000 * (1 + (t - &q)));
      t->device = {kDLROCM, device};
      t->ndim = 4;
      t->dtype = {kDLFloat, 16, 1};
      t->shape = shape;
    }
    problem.struct_size = sizeof problem;
    problem.q = &q;
    problem.k = &k;
    problem.v = &v;
    outputs.struct_size = sizeof outputs;
    outputs.out = &out;
  }
  std::int64_t shape[4] = {2, 30, 4, 64};
  DLTensor q{}, k{}, v{}, out{};
  rocflash_problem problem{};
  rocflash_forward_outputs outputs{};
};

template <class Function>
Function* fake(const char* name) {
  void* library = dlopen(std::getenv("ROCFLASH_HIP_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

enum Outcome { good = 0, failed_then_good = 1, still_failing = 2, wrong = 3 };

// A call with failing allocations, then one without.
Outcome call_twice(const std::function<void()>& fail_memory,
                   const std::function<rocflash_status()>& call) {
  fail_memory();
  const rocflash_status first = call();
  const bool failed = allocation_failed();
  fail_allocation(0, Failing::one);
  fail_allocations_above(0);
  if (first == ROCFLASH_OK) return failed ? failed_then_good : good;
  if (*rocflash_last_error() == '\0') return wrong;
  return call() == ROCFLASH_OK ? failed_then_good : still_failing;
}

rocflash_status forward() {
  const Given g;
  return rocflash_forward(&g.problem, &g.outputs, nullptr);
}

void each_allocation(const std::function<rocflash_status()>& call) {
  for (const Failing which : {Failing::one, Failing::rest}) {
    int failures = 0;
    for (long n = 1; n < 10000; ++n) {
      const int outcome =
          in_child([&] { return call_twice([&] { fail_allocation(n, which); }, call); });
      if (outcome == good) break;
      ++failures;
      ASSERT_EQ(outcome, failed_then_good) << "allocation " << n;
    }
    EXPECT_GT(failures, 0);
  }
}

TEST(FirstCall, EveryAllocationMayFail) { each_allocation(forward); }

TEST(FirstCall, EveryAllocationOfAQueryMayFail) {
  each_allocation([] {
    rocflash_device device{};
    device.struct_size = sizeof device;
    return rocflash_query_device(1, &device);
  });
  each_allocation([] {
    rocflash_driver driver{};
    driver.struct_size = sizeof driver;
    return rocflash_query_driver(0, &driver);
  });
}

TEST(FirstCall, DecompressionIsRetriedAfterOutOfMemory) {
  EXPECT_EQ(in_child([] {
              fail_allocations_above(64 << 10);
              if (forward() != ROCFLASH_OUT_OF_MEMORY) return 10;
              fail_allocations_above(0);
              const char* expected = "not enough memory to decompress the kernels of gfx942, ";
              if (std::strncmp(rocflash_last_error(), expected, std::strlen(expected)) != 0) {
                std::fprintf(stderr, "%s\n", rocflash_last_error());
                return 11;
              }
              return forward() == ROCFLASH_OK ? 0 : 12;
            }),
            0);
}

std::vector<char> content(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A copy of the library with one bit flipped in the embedded kernels of the device.
std::string damaged_copy() {
  std::vector<char> bytes = content(ROCFLASH_LIBRARY_FILE);
  const std::vector<char> kernels = content(ROCFLASH_KERNELS_FILE);
  const auto at = std::search(bytes.begin(), bytes.end(), kernels.begin(), kernels.end());
  EXPECT_NE(at, bytes.end());
  at[static_cast<std::ptrdiff_t>(kernels.size() / 2)] ^= 0x10;
  const std::string copy = testing::TempDir() + "librocflash_damaged.so";
  std::ofstream(copy, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return copy;
}

TEST(FirstCall, DamagedKernelsAreRejected) {
  const std::string copy = damaged_copy();
  EXPECT_EQ(in_child([&] {
              void* library = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
              if (!library) return 10;
              const auto forward_of =
                  reinterpret_cast<decltype(&rocflash_forward)>(dlsym(library, "rocflash_forward"));
              const auto error_of = reinterpret_cast<decltype(&rocflash_last_error)>(
                  dlsym(library, "rocflash_last_error"));
              const Given g;
              for (int n = 0; n < 2; ++n) {
                if (forward_of(&g.problem, &g.outputs, nullptr) != ROCFLASH_INTERNAL) return 11;
                const char* expected = "the kernels of gfx942 in this library are damaged: ";
                if (std::strncmp(error_of(), expected, std::strlen(expected)) != 0) {
                  std::fprintf(stderr, "%s\n", error_of());
                  return 12;
                }
              }
              return 0;
            }),
            0);
  std::remove(copy.c_str());
}

TEST(FirstCall, FailedDriverIsRetried) {
  EXPECT_EQ(
      in_child([] {
        setenv("FAKE_COUNT_ERROR", "100", 1);
        if (forward() != ROCFLASH_DEVICE_ERROR) return 10;
        const char* expected =
            "q is on rocm:0, but the hip driver is not in use: opened from ROCFLASH_HIP_LIBRARY; "
            "not used: hip: hipGetDeviceCount: error 100, no device";
        if (std::strcmp(rocflash_last_error(), expected) != 0) return 11;
        rocflash_driver driver{};
        driver.struct_size = sizeof driver;
        if (rocflash_query_driver(0, &driver) != ROCFLASH_OK || driver.in_use) return 12;
        const char* const reason = driver.reason;
        rocflash_query_driver(0, &driver);
        if (driver.reason != reason) return 13;  // an unchanged reason keeps its address
        unsetenv("FAKE_COUNT_ERROR");
        if (forward() != ROCFLASH_OK) return 14;
        if (std::strstr(reason, "error 100, no device") == nullptr) return 15;
        return rocflash_query_driver(0, &driver) == ROCFLASH_OK && driver.in_use ? 0 : 16;
      }),
      0);
}

// A library that becomes available after the first call, as a framework's does.
TEST(FirstCall, MissingLibraryIsSearchedAgain) {
  EXPECT_EQ(in_child([] {
              const std::string real = std::getenv("ROCFLASH_HIP_LIBRARY");
              setenv("ROCFLASH_HIP_LIBRARY", "/no/such/libamdhip64.so", 1);
              if (forward() != ROCFLASH_UNSUPPORTED) return 10;
              setenv("ROCFLASH_HIP_LIBRARY", real.c_str(), 1);
              return forward() == ROCFLASH_OK ? 0 : 11;
            }),
            0);
}

// A forked child lacks the thread that was loading in the parent, and must not wait for it.
TEST(FirstCall, ForkDuringTheFirstCallDoesNotBlockTheChild) {
  EXPECT_EQ(in_child([] {
              const auto hold = fake<void(int)>("fake_hold");
              const auto held = fake<int()>("fake_held");
              hold(1);
              rocflash_status first = ROCFLASH_INTERNAL;
              std::thread loading([&] { first = forward(); });
              while (!held()) std::this_thread::yield();
              const int child = in_child([&] {
                hold(0);
                return forward() == ROCFLASH_OK ? 0 : 20;
              });
              hold(0);
              loading.join();
              return child != 0 ? child & 0xff : first == ROCFLASH_OK ? 0 : 21;
            }),
            0);
}

}  // namespace
}  // namespace rocflash::test
