// Prints the ISA paths that this CPU supports, one per line, from the library's error message for
// an unknown path. ctest generates its list of tests from it.
#include <rocflash/rocflash.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

int main() {
  setenv("ROCFLASH_CPU_ISA", "none", 1);
  rocflash_device device{};
  device.struct_size = sizeof device;
  const int status = rocflash_query_device(0, &device);
  std::string_view message = rocflash_last_error();
  constexpr std::string_view before = "this CPU supports ", between = ", ";
  const std::size_t begin = message.find(before);
  if (status != ROCFLASH_INVALID_ARGUMENT || begin == std::string_view::npos) {
    std::fprintf(stderr, "no list of instruction sets, but status %d: %s\n", status,
                 message.data());
    return 1;
  }
  message.remove_prefix(begin + before.size());
  for (;;) {
    const std::size_t end = message.find(between);
    std::printf("%.*s\n", static_cast<int>(message.substr(0, end).size()), message.data());
    if (end == std::string_view::npos) return 0;
    message.remove_prefix(end + between.size());
  }
}
