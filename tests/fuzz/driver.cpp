// Runs the fuzz target on the bytes of a seeded generator: the same calls on every machine, without
// libFuzzer. Usage: fuzz_driver [inputs] [seed]; `fuzz_driver FILE` replays an input that libFuzzer
// saved.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "fuzz/count.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  if (argc == 2) {
    if (std::ifstream file(argv[1], std::ios::binary); file) {
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      return 0;
    }
  }
  const long inputs = argc > 1 ? std::atol(argv[1]) : 20000;
  std::mt19937_64 random(argc > 2 ? static_cast<std::uint64_t>(std::atoll(argv[2])) : 1);
  std::vector<std::uint8_t> bytes;
  for (long n = 0; n < inputs; ++n) {
    bytes.resize(60 + random() % 120);
    for (std::uint8_t& b : bytes) b = static_cast<std::uint8_t>(random());
    // Many zeros give simple problems with one or two options; few zeros give many options.
    const auto zeros = random() % 4;
    if (zeros > 0)
      for (std::uint8_t& b : bytes)
        if (random() % 4 < zeros) b = 0;
    std::FILE* last = nullptr;
    if (std::getenv("FUZZ_KEEP_LAST") && (last = std::fopen("fuzz_last_input", "wb"))) {
      std::fwrite(bytes.data(), 1, bytes.size(), last);
      std::fclose(last);
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  const auto& c = rocflash::fuzz::counts;
  std::printf("%ld inputs: %" PRIu64 " calls; %" PRIu64 " valid problems, %" PRIu64
              " compared, %" PRIu64 " decoded, %" PRIu64 " combined; %" PRIu64
              " corrupted calls rejected, %" PRIu64 " accepted\n",
              inputs, c.calls, c.valid, c.compared, c.decoded, c.combined, c.rejected, c.accepted);
  const bool covered = inputs < 1000 || (c.compared > 0 && c.decoded > 0 && c.combined > 0 &&
                                         c.rejected > 0 && c.accepted > 0);
  return covered ? 0 : 1;  // a run that does not reach every kind of call fails
}
