// Draws numbers from a fuzzer's bytes. Past the end, bytes read as 0, which is the simplest choice
// everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rocflash::fuzz {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t byte() { return at_ < size_ ? data_[at_++] : std::uint8_t{0}; }
  // From low to high, both included; the range must be below 256 wide.
  int range(int low, int high) { return low + byte() % (high - low + 1); }
  // True for about n of 256 bytes, never for 0.
  bool chance(int n) {
    const int b = byte();
    return b > 0 && b <= n;
  }
  template <class T>
  T raw() {
    std::uint8_t bytes[sizeof(T)];
    for (std::uint8_t& b : bytes) b = byte();
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  template <class T, std::size_t n>
  T pick(const T (&of)[n]) {
    return of[byte() % n];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

// SplitMix64: the fuzzer need not control values, they only have to vary.
struct Random {
  std::uint64_t state;
  std::uint64_t bits() {
    std::uint64_t x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double value() { return 4 * uniform() - 2; }
};

}  // namespace rocflash::fuzz
