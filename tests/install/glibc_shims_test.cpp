// src/platform/glibc: a program that is linked like the command and calls the functions that the
// shims replace. Constructors, exceptions through several modules, files, numbers and threads must
// work, also on an old system.
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

extern "C" {
long __isoc23_strtol(const char*, char**, int);
unsigned long long __isoc23_strtoull(const char*, char**, int);
}

namespace {

int failures = 0;

void expect(bool good, const char* what) {
  if (good) return;
  std::printf("wrong: %s\n", what);
  ++failures;
}

int constructed = 0;
struct Counter {
  Counter() { ++constructed; }
} counter;

// qsort is in the C library, so the exception unwinds a frame of another module.
int throwing_order(const void*, const void*) { throw std::runtime_error("from a callback"); }

}  // namespace

int main(int count, char** arguments) {
  expect(constructed == 1, "constructors run once before main");
  expect(count >= 1 && arguments[0] != nullptr, "main receives its arguments");

  try {
    throw std::out_of_range("thrown");
  } catch (const std::exception& error) {
    expect(std::string(error.what()) == "thrown", "an exception is caught by its base");
  }
  bool caught = false;
  try {
    int numbers[] = {2, 1};
    std::qsort(numbers, 2, sizeof(int), throwing_order);
  } catch (const std::runtime_error&) {
    caught = true;
  }
  expect(caught, "an exception unwinds through the C library");

  struct stat about{};
  expect(stat(arguments[0], &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0, "stat");
  expect(stat("/nonexistent/file", &about) == -1, "stat of a missing file");
  expect(std::filesystem::is_directory("/"), "libstdc++'s calls of stat");
  expect(std::filesystem::file_size(arguments[0]) > 0, "file sizes");

  char* end = nullptr;
  expect(__isoc23_strtol("-12x", &end, 10) == -12 && *end == 'x', "strtol of C23");
  expect(__isoc23_strtoull("18446744073709551615", nullptr, 10) == ~0ULL, "strtoull of C23");

  auto shared = std::make_shared<int>(0);
  std::thread([copy = shared] { ++*copy; }).join();
  expect(*shared == 1 && shared.use_count() == 1, "references are counted across threads");

  if (failures == 0) std::printf("ok\n");
  return failures == 0 ? 0 : 1;
}
