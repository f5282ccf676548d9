// Prints whether ROCFLASH_TEST_LIBRARY was opened; library_test runs it as a setuid program.
#include <cstdio>

#include "gpu/driver/library.hpp"

int main() {
  const rocflash::gpu::Library library = rocflash::gpu::open_library("ROCFLASH_TEST_LIBRARY", {});
  std::printf("%d %s\n", library.handle != nullptr, library.reason.c_str());
}
