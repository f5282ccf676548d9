// Which library is opened as a driver, and that a privileged process ignores the environment.
#include "gpu/driver/library.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace rocflash::gpu {
namespace {

struct Variable {
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  const char* name_;
};

TEST(Library, EnvironmentVariableHasPriority) {
  const char* names[] = {"libc.so.6"};
  EXPECT_EQ(open_library("ROCFLASH_TEST_LIBRARY", names).reason, "already loaded by this process");
  const Variable wrong("ROCFLASH_TEST_LIBRARY", "/no/such/library.so");
  const Library none = open_library("ROCFLASH_TEST_LIBRARY", names);
  EXPECT_FALSE(none.handle);
  EXPECT_NE(none.reason.find("ROCFLASH_TEST_LIBRARY is set, but: /no/such/library.so"),
            std::string::npos)
      << none.reason;
}

TEST(Library, ReportsTheNamesItTried) {
  const char* names[] = {"libno.so.2", "libno.so"};
  EXPECT_EQ(open_library("ROCFLASH_TEST_LIBRARY", names).reason,
            "not found; tried libno.so.2, libno.so; set ROCFLASH_TEST_LIBRARY to its path");
}

TEST(Library, PrivilegedProcessesIgnoreTheEnvironment) {
  const Variable given("ROCFLASH_TEST_LIBRARY", FAKE_HIP6_LIBRARY);
  const char* names[] = {"libc.so.6"};
  const char* none[] = {"libno.so"};
  EXPECT_FALSE(is_privileged());
  EXPECT_EQ(open_library("ROCFLASH_TEST_LIBRARY", names, false).path, FAKE_HIP6_LIBRARY);
  const Library other = open_library("ROCFLASH_TEST_LIBRARY", names, true);
  EXPECT_EQ(other.path, "libc.so.6");
  EXPECT_EQ(
      other.reason,
      "already loaded by this process; ROCFLASH_TEST_LIBRARY is ignored because this process is "
      "privileged");
  EXPECT_EQ(open_library("ROCFLASH_TEST_LIBRARY", none, true).reason,
            "not found; tried libno.so; ROCFLASH_TEST_LIBRARY is ignored because this process is "
            "privileged");
}

std::string output_of(const std::string& program, bool as_another_user) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t unprivileged_user = 65534;
    if (as_another_user && setuid(unprivileged_user) != 0) _exit(1);
    dup2(ends[1], 1);
    execl(program.c_str(), program.c_str(), nullptr);
    _exit(1);
  }
  close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return text;
}

// An actual setuid-root copy of the probe, run by another user.
TEST(Library, SetuidProcessIsPrivileged) {
  char directory[] = "/tmp/rocflash_setuid_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  struct statvfs files{};
  statvfs(directory, &files);
  const std::string copy = std::string(directory) + "/probe";
  std::filesystem::copy_file(PROBE, copy);
  const Variable given("ROCFLASH_TEST_LIBRARY", FAKE_HIP6_LIBRARY);
  EXPECT_EQ(output_of(copy, false), "1 opened from ROCFLASH_TEST_LIBRARY\n");
  const bool possible = geteuid() == 0 && (files.f_flag & ST_NOSUID) == 0 &&
                        chmod(directory, 0755) == 0 && chmod(copy.c_str(), 04755) == 0;
  if (possible) {
    EXPECT_EQ(output_of(copy, true),
              "0 not found; tried ; ROCFLASH_TEST_LIBRARY is ignored because this process is "
              "privileged\n");
  }
  std::filesystem::remove_all(directory);
  if (!possible) GTEST_SKIP() << "needs root, and a file system without nosuid";
}

}  // namespace
}  // namespace rocflash::gpu
