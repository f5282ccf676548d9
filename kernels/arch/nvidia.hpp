// NVIDIA GPUs from sm_80 on: cp.async, ldmatrix, mma.sync.m16n8k16, and m16n8k8 with TF32 for f32.
#pragma once

#include <cstdint>

#include "arch/layout.hpp"
#include "tile/swizzled.hpp"
#include "tile/vector.hpp"

#define ROCFLASH_SHARED __attribute__((address_space(3)))
// Static shared memory of a kernel, not initialized; in addition to the dynamic shared memory.
#define ROCFLASH_SHARED_ARRAY [[clang::loader_uninitialized]] static ROCFLASH_SHARED
#define ROCFLASH_UNROLL _Pragma("unroll")

// A kernel with one parameter, `arguments`, in constant memory.
#define ROCFLASH_KERNEL(name, tile, Arguments)                                    \
  static void name##_body(const Arguments& arguments);                            \
  extern "C" __attribute__((nvptx_kernel)) void name(const Arguments arguments) { \
    name##_body(arguments);                                                       \
  }                                                                               \
  [[gnu::always_inline]] static inline void name##_body(const Arguments& arguments)

namespace rocflash::kernel::arch {

inline constexpr int wave_size = 32;

// Workgroup indices in the tile scheduler's divisions. Signed: with unsigned indices ptxas uses
// uniform registers for them and what depends on them, and backward at head dimension 64 was 6 %
// slower on an H200.
using WorkgroupIndex = std::int32_t;
inline constexpr std::uint32_t all_lanes = 0xffffffffu;

inline int thread() { return __nvvm_read_ptx_sreg_tid_x(); }
inline int workgroup_id() { return __nvvm_read_ptx_sreg_ctaid_x(); }
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

// ld.global.cs of 16 bytes: streaming data, evicted first.
inline Words4 load_streaming(const void* from) {
  std::uint32_t x, y, z, w;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "l"(from)
               : "memory");
  return {x, y, z, w};
}

// Kernel parameters are in constant memory and take no registers.
template <class T>
const T& reload_kernargs(const T& arguments) {
  return arguments;
}

// ptxas schedules and allocates registers itself.
inline void sched_barrier() {}

// The same value, opaque to the optimizer: addresses derived from it are recomputed in each
// iteration and not hoisted into registers.
inline std::uint32_t opaque_vgpr(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

inline int opaque_sgpr(int x) {
  return static_cast<int>(opaque_vgpr(static_cast<std::uint32_t>(x)));
}
inline int opaque_thread() {
  return static_cast<int>(opaque_vgpr(static_cast<std::uint32_t>(thread())));
}

// No scalar register file that kernels manage: both are the identity.
template <class T>
T to_vgpr(T x) {
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

inline float readlane(float x, int lane) {
  return __builtin_bit_cast(
      float, __nvvm_shfl_sync_idx_i32(all_lanes, __builtin_bit_cast(int, x), lane, 31));
}
// Butterfly shuffle.
template <class T>
T shfl_xor(T x, int bits) {
  return __builtin_bit_cast(
      T, __nvvm_shfl_sync_bfly_i32(all_lanes, __builtin_bit_cast(int, x), bits, 31));
}

// Rotates within each group of 16 lanes, as DPP row_ror does.
template <int lanes>
float row_ror(float x) {
  const int from = (lane() & 16) | ((lane() + lanes) & 15);
  return readlane(x, from);
}

// Reductions over the warp; all lanes get the result.
inline float wave_reduce_max(float x) {
  ROCFLASH_UNROLL
  for (int bits = 1; bits < wave_size; bits *= 2) x = __builtin_fmaxf(x, shfl_xor(x, bits));
  return x;
}
inline float wave_reduce_sum(float x) {
  ROCFLASH_UNROLL
  for (int bits = 1; bits < wave_size; bits *= 2) x += shfl_xor(x, bits);
  return x;
}

inline void barrier() { asm volatile("bar.sync 0;" ::: "memory"); }
inline void syncwarp() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
// Makes shared memory stores of this warp visible to its other lanes.
inline void wave_fence() { syncwarp(); }

// Predicated red.global.add.f32. On one line of PTX: a brace on a line of its own ends a kernel
// (src/gpu/ptx.cpp).
inline void add(float* to, float x, bool in_bounds) {
  asm volatile(
      "{ .reg .pred there; setp.ne.b32 there, %2, 0; @there red.global.add.f32 [%0], %1; }" ::"l"(
          to),
      "f"(x), "r"(static_cast<int>(in_bounds))
      : "memory");
}

// Dynamic shared memory. Addresses are 32-bit, in the shared state space.
#ifdef __CUDA__
extern "C" __attribute__((shared)) std::uint8_t rocflash_shared[] __attribute__((aligned(1024)));
#else
extern "C" __attribute__((address_space(3))) std::uint8_t rocflash_shared[]
    __attribute__((aligned(128)));
#endif
inline SharedAddress shared_begin() {
  return static_cast<SharedAddress>(reinterpret_cast<std::uintptr_t>(rocflash_shared));
}

// cp.async of 16 bytes from global to shared memory; zero-filled where `in_bounds` is false.
inline void cp_async(SharedAddress to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
inline void cp_async(SharedAddress to, const void* from, bool in_bounds) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(in_bounds ? 16 : 0)
               : "memory");
}
// Four bytes.
inline void cp_async4(SharedAddress to, const void* from, bool in_bounds) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(in_bounds ? 4 : 0)
               : "memory");
}
inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's committed cp.async groups are incomplete.
template <int pending>
void cp_async_wait() {
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

// Four 8x8 matrices of 16-bit elements. Lane n passes the address of row n % 8 of matrix n / 8 and
// receives two elements of each matrix, or of its transpose: row n / 4, columns 2 (n % 4) and the
// next.
inline Words4 ldmatrix_x4(SharedAddress row) {
  std::uint32_t x, y, z, w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "r"(row)
               : "memory");
  return {x, y, z, w};
}
inline Words4 ldmatrix_x4_trans(SharedAddress row) {
  std::uint32_t x, y, z, w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
               : "r"(row)
               : "memory");
  return {x, y, z, w};
}

// Converts two f32 to 16 bits, round to nearest even, and packs them.
template <DType dtype>
std::uint32_t cvt_pack(float low, float high) {
  std::uint32_t word;
  if constexpr (dtype == DType::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else if constexpr (dtype == DType::f16) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    static_assert(handled_dtype<dtype>, "cvt_pack has no instruction for this dtype");
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
    } else if constexpr (dtype == DType::f16) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
          : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    } else {
      static_assert(handled_dtype<dtype>, "Mma has no instruction for this dtype");
    }
  }
};

// 3xTF32: each f32 is split into a large and a small TF32 term (11 bits of precision each), and of
// the four products small·small is omitted. It would cost a fifth of the throughput.
//
// The tensor core truncates when it accumulates. Long sums would be biased, so an accumulation
// covers `together` k-steps, with separate accumulators for large and small products. The caller
// adds them in FP32.
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
  struct Tf32Terms {
    Words4 large, small;
  };

  // A non-finite term makes the other one NaN; the epilogue recomputes non-finite rows.
  static Tf32Terms split(Words4 elements) {
    Tf32Terms terms;
    ROCFLASH_UNROLL
    for (int n = 0; n < 4; ++n) {
      // Round to nearest, ties away from 0. cvt.rna.tf32 does the same at a quarter of the rate.
      const std::uint32_t bits = elements[n], large = (bits + 0x1000u) & 0xffffe000u;
      const auto x = __builtin_bit_cast(float, bits), y = __builtin_bit_cast(float, large);
      terms.large[n] = large;
      terms.small[n] = __builtin_bit_cast(std::uint32_t, x - y);  // 12 bits; TF32 has 11
    }
    return terms;
  }
  // B's fragment is elements `first` and `first` + 1 of the four.
  template <int first>
  static void multiply(Sum& c, const Tf32Terms& a, const Tf32Terms& b) {
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

// Bounds-checked memory, as AMD's buffer resource: loads at or past the end return 0, stores are
// dropped.
inline constexpr std::uint32_t out_of_bounds = 0x80000000u;
class BufferResource {
 public:
  BufferResource(const void* data, std::uint32_t bytes)
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
