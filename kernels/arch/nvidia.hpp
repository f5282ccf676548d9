// NVIDIA GPUs from sm_80 on: asynchronous copies into shared memory, loads of whole 8x8 matrices,
// and the matrix products mma.sync.m16n8k16 and, for f32, m16n8k8. Warps of 32 lanes.
#pragma once

#include <cstdint>

#include "arch/layout.hpp"
#include "tile/swizzled.hpp"
#include "tile/vector.hpp"

#define ROCFLASH_SHARED __attribute__((address_space(3)))
// Shared memory of a kernel beside what is given at launch: its content is undefined at the start.
#define ROCFLASH_SHARED_ARRAY [[clang::loader_uninitialized]] static ROCFLASH_SHARED
#define ROCFLASH_UNROLL _Pragma("unroll")

// A kernel with its one argument, called `arguments`. It lies in constant memory and takes no
// registers.
#define ROCFLASH_KERNEL(name, tile, Arguments)                                    \
  static void name##_body(const Arguments& arguments);                            \
  extern "C" __attribute__((nvptx_kernel)) void name(const Arguments arguments) { \
    name##_body(arguments);                                                       \
  }                                                                               \
  [[gnu::always_inline]] static inline void name##_body(const Arguments& arguments)

namespace rocflash::kernel::arch {

inline constexpr int wave_size = 32;

// Numbers of workgroups, as they are divided. With a sign: without one the assembler computes them, and what follows from
// them, in uniform registers, and gradients of 64 columns were 6 % slower on an H200.
using Ordinal = std::int32_t;
inline constexpr std::uint32_t all_lanes = 0xffffffffu;

inline int thread() { return __nvvm_read_ptx_sreg_tid_x(); }
inline int group() { return __nvvm_read_ptx_sreg_ctaid_x(); }
inline int lane() { return thread() % wave_size; }
inline int wave() { return thread() / wave_size; }

template <class T>
T load(const T* pointer) {
  return *pointer;
}
template <class T>
void store(T* pointer, T value) {
  *pointer = value;
}

// Sixteen bytes that nobody needs again: they leave the caches before others do.
inline Words4 load_once(const void* from) {
  std::uint32_t x, y, z, w;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "l"(from)
               : "memory");
  return {x, y, z, w};
}

// Arguments take no registers until they are used.
template <class T>
const T& again(const T& arguments) {
  return arguments;
}

// The same number, which the compiler must take for a new one: what is computed from it is not kept
// in registers across a loop.
inline std::uint32_t renew(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

inline int renewed(int x) { return static_cast<int>(renew(static_cast<std::uint32_t>(x))); }
inline int renewed_thread() {
  return static_cast<int>(renew(static_cast<std::uint32_t>(thread())));
}

// There are no scalar registers to spare or to run out of.
template <class T>
T in_lanes(T x) {
  return x;
}
inline int uniform(int x) { return x; }

inline float exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
inline float log2(float x) { return __nvvm_lg2_approx_f(x); }
inline float reciprocal(float x) { return __nvvm_rcp_approx_ftz_f(x); }

inline std::uint32_t ballot(bool condition) {
  return __nvvm_vote_ballot_sync(all_lanes, condition);
}
inline bool any(bool condition) { return __nvvm_vote_any_sync(all_lanes, condition); }

inline float from_lane(float x, int lane) {
  return __builtin_bit_cast(
      float, __nvvm_shfl_sync_idx_i32(all_lanes, __builtin_bit_cast(int, x), lane, 31));
}
// The value of the lane whose number differs in these bits.
template <class T>
T from_lane_xor(T x, int bits) {
  return __builtin_bit_cast(
      T, __nvvm_shfl_sync_bfly_i32(all_lanes, __builtin_bit_cast(int, x), bits, 31));
}

// The value of the lane so many places further among its sixteen, cyclically.
template <int places>
float rotated(float x) {
  const int from = (lane() & 16) | ((lane() + places) & 15);
  return from_lane(x, from);
}

// Over all lanes, the same in each of them.
inline float largest_of_wave(float x) {
  ROCFLASH_UNROLL
  for (int bits = 1; bits < wave_size; bits *= 2) x = __builtin_fmaxf(x, from_lane_xor(x, bits));
  return x;
}
inline float sum_of_wave(float x) {
  ROCFLASH_UNROLL
  for (int bits = 1; bits < wave_size; bits *= 2) x += from_lane_xor(x, bits);
  return x;
}

inline void barrier() { asm volatile("bar.sync 0;" ::: "memory"); }
inline void wave_barrier() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
// As on AMD GPUs: what lanes of this warp have written to shared memory is there for its other lanes.
inline void wave_fence() { wave_barrier(); }

// Where `there` is true: adds to a number in global memory that others add to as well, in any order. (On one
// line: a brace on a line of its own ends a kernel, see src/gpu/ptx.cpp.)
inline void add(float* to, float x, bool there) {
  asm volatile(
      "{ .reg .pred there; setp.ne.b32 there, %2, 0; @there red.global.add.f32 [%0], %1; }" ::"l"(
          to),
      "f"(x), "r"(static_cast<int>(there))
      : "memory");
}

// Shared memory that the launch gives; addresses are bytes in an address space of their own.
#ifdef __CUDA__
extern "C" __attribute__((shared)) std::uint8_t rocflash_shared[] __attribute__((aligned(1024)));
#else
extern "C" __attribute__((address_space(3))) std::uint8_t rocflash_shared[]
    __attribute__((aligned(128)));
#endif
inline SharedAddress shared_begin() {
  return static_cast<SharedAddress>(reinterpret_cast<std::uintptr_t>(rocflash_shared));
}

// Copies sixteen bytes from global to shared memory; zeros instead of them where `there` is false.
inline void copy_async(SharedAddress to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
inline void copy_async(SharedAddress to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
// Four bytes.
inline void copy_async4(SharedAddress to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(there ? 4 : 0)
               : "memory");
}
inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's committed groups of copies are unfinished.
template <int pending>
void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

inline void store_shared(SharedAddress to, std::uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
inline void store_shared(SharedAddress to, Words4 w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w.x), "r"(w.y), "r"(w.z),
               "r"(w.w)
               : "memory");
}
inline void store_shared(SharedAddress to, Words2 w) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(w.x), "r"(w.y) : "memory");
}
inline Words2 load_shared8(SharedAddress from) {
  std::uint32_t x, y;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x), "=r"(y) : "r"(from) : "memory");
  return {x, y};
}
inline std::uint32_t load_shared4(SharedAddress from) {
  std::uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
inline float load_shared_float(SharedAddress from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}
inline Words4 load_shared(SharedAddress from) {
  std::uint32_t x, y, z, w;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "r"(from)
               : "memory");
  return {x, y, z, w};
}

// Four matrices of 8x8 numbers. Lane n passes the address of row n % 8 of matrix n / 8 and receives
// two numbers of each matrix, or of its transpose: row lane / 4, columns 2 (lane % 4) and the next.
inline Words4 load_matrices(SharedAddress row) {
  std::uint32_t x, y, z, w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "r"(row)
               : "memory");
  return {x, y, z, w};
}
inline Words4 load_matrices_transposed(SharedAddress row) {
  std::uint32_t x, y, z, w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "r"(row)
               : "memory");
  return {x, y, z, w};
}

// Two numbers to the nearest, ties to even, in one word.
template <DType dtype>
std::uint32_t narrow_two(float low, float high) {
  std::uint32_t word;
  if constexpr (dtype == DType::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

template <DType dtype>
struct Mma {
  using Layout = layout::MmaM16n8k16;
  static constexpr int rows = 16, columns = 8, depth = 16;
  static constexpr int results = 4, together = 1;
  struct Result {
    float at[results];
  };

  static void multiply(Result& c, Words4 a, std::uint32_t b0, std::uint32_t b1) {
    if constexpr (dtype == DType::bf16) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
          : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
          : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    }
  }
};

// f32 by TF32, which has f32's exponents and 11 bits of precision: a number is the sum of two such parts, but for
// the last bit of some, and of the four products of parts the smallest one is left out. (It costs a fifth of the speed.)
//
// The matrix unit cuts off the bits that a sum has no room for, it does not round. A long sum would drift, so
// sums are short: of `together` steps, large products and small ones apart. The caller adds them up in f32.
template <>
struct Mma<DType::f32> {
  using Layout = layout::MmaM16n8k8;
  static constexpr int rows = 16, columns = 8, depth = 8;
  static constexpr int results = 4, together = 2;
  struct Result {
    float at[results];
  };
  struct Sum {
    Result large, small;
    float total(int r) const { return large.at[r] + small.at[r]; }
  };
  struct Parts {
    Words4 large, small;
  };

  // A part that is no number makes the other one none either: whoever gets the result computes it again.
  static Parts parts(Words4 numbers) {
    Parts parts;
    ROCFLASH_UNROLL
    for (int n = 0; n < 4; ++n) {
      // The nearest, ties away from 0. (The conversion that does the same has a fourth of the rate.)
      const std::uint32_t bits = numbers[n], large = (bits + 0x1000u) & 0xffffe000u;
      const auto x = __builtin_bit_cast(float, bits), y = __builtin_bit_cast(float, large);
      parts.large[n] = large;
      parts.small[n] = __builtin_bit_cast(std::uint32_t, x - y);  // 12 bits; the unit takes 11
    }
    return parts;
  }
  // The right operand's numbers are `first` and the next of the four.
  template <int first>
  static void multiply(Sum& c, const Parts& a, const Parts& b) {
    multiply(c.small, a.small, b.large[first], b.large[first + 1]);
    multiply(c.small, a.large, b.small[first], b.small[first + 1]);
    multiply(c.large, a.large, b.large[first], b.large[first + 1]);
  }

 private:
  static void multiply(Result& c, Words4 a, std::uint32_t b0, std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
};

// Memory with an end: loads at or past it return 0, stores there are dropped.
inline constexpr std::uint32_t nowhere = 0x80000000u;
class Window {
 public:
  Window(const void* data, std::uint32_t bytes)
      : data_(static_cast<std::byte*>(const_cast<void*>(data))), bytes_(bytes) {}

  Words4 load16(std::uint32_t offset) const { return load_at<Words4>(offset); }
  Words2 load8(std::uint32_t offset) const { return load_at<Words2>(offset); }
  void store16(Words4 value, std::uint32_t offset) const { store_at(value, offset); }
  void store8(Words2 value, std::uint32_t offset) const { store_at(value, offset); }

 private:
  template <class T>
  T load_at(std::uint32_t offset) const {
    return offset < bytes_ ? *reinterpret_cast<const T*>(data_ + offset) : T{};
  }
  template <class T>
  void store_at(T value, std::uint32_t offset) const {
    if (offset < bytes_) *reinterpret_cast<T*>(data_ + offset) = value;
  }
  std::byte* data_;
  std::uint32_t bytes_;
};

}  // namespace rocflash::kernel::arch
