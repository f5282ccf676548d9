// src/platform/windows: which libraries are opened, the process's OpenMP runtime, the environment
// and memory. Each suite is a process of its own, since libraries stay loaded.
#include <gtest/gtest.h>
#include <windows.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "cpu/openmp.hpp"
#include "cpu/thread_pool.hpp"
#include "gpu/driver/library.hpp"
#include "platform/memory.hpp"
#include "platform/process.hpp"
#include "platform/shared_library.hpp"

namespace rocflash {
namespace {

template <class Function>
Function* function_of(void* library, const char* name) {
  return reinterpret_cast<Function*>(platform::symbol_of(library, name));
}

std::string name_of(void* library) {
  auto* const name = function_of<const char*()>(library, "fake_name");
  return name ? name() : "";
}

TEST(Drivers, TheLoadedLibraryHasPriorityOverThePackages) {
  // From ROCm's package next to this program's, by its full path.
  const gpu::Library packaged =
      gpu::open_library("ROCFLASH_TEST_LIBRARY", platform::hip_driver_names());
  ASSERT_TRUE(packaged.handle) << packaged.reason;
  EXPECT_EQ(name_of(packaged.handle), "fake_packaged");
  EXPECT_EQ(packaged.reason, "found in ROCm's package");
  EXPECT_TRUE(packaged.path.ends_with("_rocm_sdk_core\\bin\\amdhip64_7.dll")) << packaged.path;
  FreeLibrary(static_cast<HMODULE>(packaged.handle));

  // A copy that the process has loaded comes before, also an older one from elsewhere.
  std::string error;
  void* const loaded = platform::open_library(ROCFLASH_FAKES "/elsewhere/amdhip64_6.dll", error);
  ASSERT_TRUE(loaded) << error;
  const gpu::Library found =
      gpu::open_library("ROCFLASH_TEST_LIBRARY", platform::hip_driver_names());
  EXPECT_EQ(name_of(found.handle), "fake_loaded");
  EXPECT_EQ(found.reason, "already loaded by this process");
}

TEST(Drivers, OnlyTheSystemsDirectoryIsSearched) {
  const char* system[] = {"ws2_32.dll"};
  const platform::InstalledLibrary found = platform::open_installed_library(system);
  EXPECT_TRUE(found.library);
  EXPECT_EQ(found.where, "found in the system's directory");
  // Not the directory of the program, nor the current one, where anyone may put a file.
  const char* here[] = {"libiomp5md.dll"};
  SetCurrentDirectoryA(ROCFLASH_FAKES "/openmp");
  EXPECT_FALSE(platform::open_installed_library(here).library);
}

TEST(Drivers, AWrongPathIsReported) {
  std::string error;
  EXPECT_FALSE(platform::open_library("C:\\no\\such.dll", error));
  EXPECT_TRUE(error.starts_with("C:\\no\\such.dll: ")) << error;
}

TEST(OpenMp, WorkRunsOnTheRuntimesTeam) {
  EXPECT_EQ(loaded_openmp(Look::now), nullptr);
  std::string error;
  void* const runtime = platform::open_library(ROCFLASH_FAKES "/openmp/libiomp5md.dll", error);
  ASSERT_TRUE(runtime) << error;
  ASSERT_NE(loaded_openmp(Look::now), nullptr);
  std::atomic<int> items{0};
  parallel_for(100, 3, [&](std::int64_t, int worker) {
    EXPECT_LT(worker, 3);
    ++items;
  });
  EXPECT_EQ(items.load(), 100);
  auto* const regions = function_of<int()>(runtime, "fake_regions");
  EXPECT_EQ(regions(), 1);
  // More threads than the team has are the own pool's, unless the runtime is required.
  parallel_for(100, 4, [&](std::int64_t, int) { ++items; });
  EXPECT_EQ(regions(), 1);
  SetEnvironmentVariableA("ROCFLASH_CPU_THREADS", "openmp");
  parallel_for(100, 4, [&](std::int64_t, int) { ++items; });
  EXPECT_EQ(regions(), 2);
  EXPECT_EQ(function_of<int()>(runtime, "fake_requested")(), 4);
  EXPECT_EQ(items.load(), 300);
}

TEST(Environment, HasWhatOtherCLibrariesSet) {
  SetEnvironmentVariableW(L"ROCFLASH_TEST", nullptr);
  EXPECT_EQ(platform::Variable("ROCFLASH_TEST").get(), nullptr);
  SetEnvironmentVariableW(L"ROCFLASH_TEST", L"");
  EXPECT_STREQ(platform::Variable("ROCFLASH_TEST").get(), "");
  const std::wstring longer(300, L'\u00e4');
  SetEnvironmentVariableW(L"ROCFLASH_TEST", longer.c_str());
  EXPECT_EQ(std::string(platform::Variable("ROCFLASH_TEST").get()).size(), 600u);  // UTF-8
  EXPECT_EQ(std::getenv("ROCFLASH_TEST"), nullptr);
}

TEST(Memory, IsAlignedAndFreedPerThread) {
  for (const std::size_t alignment : {64u, 256u, 4096u}) {
    void* const memory = platform::aligned_allocate(alignment, 2 * alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % alignment, 0u);
    platform::aligned_free(memory);
  }
  const platform::ThreadMemory mine;
  ASSERT_TRUE(mine.usable());
  EXPECT_TRUE(mine.set(platform::aligned_allocate(64, 64)));
  std::thread([&] {
    EXPECT_EQ(mine.get(), nullptr);
    EXPECT_TRUE(mine.set(platform::aligned_allocate(64, 64)));
  }).join();
  EXPECT_NE(mine.get(), nullptr);
}

TEST(Machine, CountsCpus) {
  EXPECT_GE(platform::usable_cpus(), 1);
  EXPECT_LE(platform::usable_cpus(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace rocflash
