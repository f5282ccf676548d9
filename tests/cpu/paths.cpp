// Prints the instruction sets that this machine can run, one a line, as the library itself tells
// them when it is asked for one that does not exist. The list of tests is made from it.
#include <rocflash/rocflash.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

int main() {
  setenv("ROCFLASH_CPU_ISA", "none", 1);
  rocflash_device device{};
  device.struct_size = sizeof device;
  const int status = rocflash_query_device(0, &device);
  std::string_view words = rocflash_last_error();
  constexpr std::string_view before = "this machine can run ", between = ", ";
  const std::size_t begin = words.find(before);
  if (status != ROCFLASH_INVALID_ARGUMENT || begin == std::string_view::npos) {
    std::fprintf(stderr, "no list of instruction sets, but status %d: %s\n", status, words.data());
    return 1;
  }
  words.remove_prefix(begin + before.size());
  for (;;) {
    const std::size_t end = words.find(between);
    std::printf("%.*s\n", static_cast<int>(words.substr(0, end).size()), words.data());
    if (end == std::string_view::npos) return 0;
    words.remove_prefix(end + between.size());
  }
}
