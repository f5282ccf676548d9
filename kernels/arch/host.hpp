// The host as a target: no kernels, but the portable C++ of device code compiles here and is unit
// tested.
#pragma once

#include <cmath>
#include <cstdint>

#define ROCFLASH_SHARED
#define ROCFLASH_UNROLL

namespace rocflash::kernel::arch {

inline constexpr int wave_size = 1;
using WorkgroupIndex = std::uint32_t;
inline constexpr int lds_bank_chunks = 8;
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
const T& reload_kernargs(const T& arguments) {
  return arguments;  // NOLINT(bugprone-return-const-ref-from-parameter): kernel arguments outlive it
}

inline void sched_barrier() {}
inline int opaque_sgpr(int x) { return x; }
template <class T>
T to_vgpr(T x) {
  return x;
}

inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1 / x; }

}  // namespace rocflash::kernel::arch
