// The host as an architecture: it has no kernels, but the ordinary C++ in them compiles here and is
// tested on its own.
#pragma once

#include <cmath>
#include <cstdint>

#define ROCFLASH_SHARED
#define ROCFLASH_UNROLL

namespace rocflash::kernel::arch {

inline constexpr int wave_size = 1;
using Ordinal = std::uint32_t;
inline constexpr int bank_chunks = 8;
inline int lane() { return 0; }

template <class T>
T load(const T* pointer) {
  return *pointer;
}
template <class T>
void store(T* pointer, T value) {
  *pointer = value;
}
template <class T>
const T& again(const T& arguments) {
  return arguments;
}

inline int renewed(int x) { return x; }
template <class T>
T in_lanes(T x) {
  return x;
}

inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1 / x; }

}  // namespace rocflash::kernel::arch
