// Closes the library after a call while threads of its pool still run: as librocflash.so, and
// inside a third-party shared library.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace {

using Sum = int();

// Also in a thread that exits and in a forked child, which run the library's registered handlers.
TEST(Unload, APluginWithThePoolInside) {
  for (int n = 0; n < 50; ++n) {
    void* const plugin = dlopen(ROCFLASH_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(plugin, nullptr) << dlerror();
    auto* const sum = reinterpret_cast<Sum*>(dlsym(plugin, "plugin_sum"));
    std::thread([&] { EXPECT_EQ(sum(), 100); }).join();
    dlclose(plugin);
    if (n % 10) continue;
    std::this_thread::sleep_for(
        std::chrono::milliseconds(2));  // the threads stop spinning and sleep
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(Unload, APluginThatWasNeverCalled) {
  for (int n = 0; n < 3; ++n) {
    void* const plugin = dlopen(ROCFLASH_SECOND_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(plugin, nullptr) << dlerror();
    dlclose(plugin);
    EXPECT_EQ(dlopen(ROCFLASH_SECOND_PLUGIN, RTLD_NOW | RTLD_NOLOAD), nullptr);
    const pid_t child = fork();  // the library's fork handlers are unloaded too
    if (child == 0) _exit(0);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(Unload, TheLibraryItself) {
  void* const library = dlopen(ROCFLASH_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* const version = reinterpret_cast<const char* (*)()>(dlsym(library, "rocflash_version"));
  ASSERT_NE(version, nullptr);
  dlclose(library);
  EXPECT_STRNE(version(), "");
}

}  // namespace
