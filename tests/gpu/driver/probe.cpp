// Says what became of ROCFLASH_TEST_LIBRARY in this process: library_test runs it with other
// rights.
#include <cstdio>

#include "gpu/driver/library.hpp"

int main() {
  const rocflash::gpu::Library library = rocflash::gpu::open_library("ROCFLASH_TEST_LIBRARY", {});
  std::printf("%d %s\n", library.handle != nullptr, library.reason.c_str());
}
