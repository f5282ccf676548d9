// Primitives that all AMD GPUs share: wave intrinsics, DPP, LDS fences, buffer resources,
// scheduling barriers. Thin wrappers of clang's builtins.
#pragma once

#include <cstdint>

#include "tile/vector.hpp"

#define ROCFLASH_GLOBAL __attribute__((address_space(1)))
#define ROCFLASH_SHARED __attribute__((address_space(3)))
// Static LDS of a kernel, not initialized.
#define ROCFLASH_SHARED_ARRAY [[clang::loader_uninitialized]] static ROCFLASH_SHARED
#define ROCFLASH_UNROLL _Pragma("unroll")

// A kernel with one parameter, `arguments`. It is read through the kernarg segment pointer: the
// compiler loads a by-value parameter as a whole in the prologue and runs out of SGPRs.
#define ROCFLASH_KERNEL(name, tile, Arguments)                                           \
  static void name##_body(const Arguments& arguments);                                   \
  extern "C" __attribute__((amdgpu_kernel, visibility("protected"),                      \
                            amdgpu_flat_work_group_size((tile).threads, (tile).threads), \
                            amdgpu_waves_per_eu((tile).waves_per_simd))) void            \
  name(Arguments) {                                                                      \
    name##_body(*(const Arguments*)__builtin_amdgcn_kernarg_segment_ptr());              \
  }                                                                                      \
  [[gnu::always_inline]] static inline void name##_body(const Arguments& arguments)

namespace rocflash::kernel::arch {

#if defined(__GFX9__)
inline constexpr int wave_size = 64;
#else
inline constexpr int wave_size = 32;
#endif

// Workgroup indices in the tile scheduler's divisions. Unsigned division takes fewer instructions.
using WorkgroupIndex = std::uint32_t;

inline int thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
inline int workgroup_id() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
inline int lane() { return thread() % wave_size; }
// Wave-uniform through readfirstlane, so that what depends on it is computed in SGPRs.
inline int wave() { return __builtin_amdgcn_readfirstlane(thread() / wave_size); }

// Asserts that all lanes hold the same value.
inline int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }

template <class T>
T* uniform(T* pointer) {
  const auto bits = (std::uint64_t)pointer;
  const auto low = (std::uint32_t)uniform((int)bits);
  return (T*)((std::uint64_t)(std::uint32_t)uniform((int)(bits >> 32)) << 32 | low);
}

// Pointers in kernel arguments are generic in C++; the casts give the global address space.
template <class T>
T load(const T* pointer) {
  return *(const ROCFLASH_GLOBAL T*)pointer;
}
template <class T>
void store(T* pointer, T value) {
  *(ROCFLASH_GLOBAL T*)pointer = value;
}

// Makes the compiler load kernel arguments again after this point. What only the epilogue needs
// does not occupy SGPRs during the main loop.
template <class T>
const T& reload_kernargs(const T& arguments) {
  auto* pointer = (const __attribute__((address_space(4))) T*)&arguments;
  asm volatile("" : "+s"(pointer));
  return *(const T*)pointer;
}

// sched_barrier(0): the scheduler moves no instruction across. Bounds register pressure.
inline void sched_barrier() { __builtin_amdgcn_sched_barrier(0); }
// The same, and `x` is computed before it.
template <class T>
void sched_barrier(T& x) {
  asm volatile("" : "+v"(x));
  __builtin_amdgcn_sched_barrier(0);
}

// s_setprio: of the waves of a SIMD, those with higher priority (0 to 3) issue first.
template <int priority>
void setprio() {
  __builtin_amdgcn_s_setprio(priority);
}

// Forces the values to be computed at this point. The compiler would sink an MMA past a branch,
// next to its use, and keep its operands live until then.
template <int count>
void pin_vgpr(float (&x)[count]) {
  ROCFLASH_UNROLL
  for (int n = 0; n < count; ++n) asm volatile("" : "+v"(x[n]));
}

template <class T>
void pin_vgpr(T& x) {
  asm volatile("" : "+v"(x));
}

// An undefined value: the register is free until the next assignment.
template <class T>
void undef_vgpr(T& x) {
  asm volatile("" : "=v"(x));
}

// The same value, opaque to the optimizer: addresses derived from it are recomputed in each
// iteration and not hoisted into registers.
inline int opaque_vgpr(int x) {
  asm volatile("" : "+v"(x));
  return x;
}
inline int opaque_thread() { return opaque_vgpr(thread()); }
inline int opaque_lane() { return opaque_vgpr(lane()) & (wave_size - 1); }
// The same for wave-uniform values.
template <class T>
T opaque_sgpr(T x) {
  asm volatile("" : "+s"(x));
  return x;
}

// Moves a wave-uniform value to a VGPR, where SGPRs are scarce; `uniform` moves it back.
template <class T>
T to_vgpr(T x) {
  asm("" : "+v"(x));
  return x;
}

inline float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
inline float log2(float x) { return __builtin_amdgcn_logf(x); }
inline float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }

// A mask with one bit per lane.
inline std::uint64_t ballot(bool condition) {
  if constexpr (wave_size == 64) return __builtin_amdgcn_ballot_w64(condition);
  return __builtin_amdgcn_ballot_w32(condition);
}
inline bool any(bool condition) { return ballot(condition) != 0; }

// v_readlane: one lane's value, broadcast.
inline float readlane(float x, int lane) {
  return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, x), lane));
}

// DPP row_ror: rotates right within each row of 16 lanes.
template <int lanes>
float row_ror(float x) {
  constexpr int row_rotate = 0x120;
  const int bits = __builtin_bit_cast(int, x);
  return __builtin_bit_cast(
      float, __builtin_amdgcn_update_dpp(bits, bits, row_rotate + lanes, 0xf, 0xf, false));
}

// Reductions over the wave; all lanes get the result.
inline float wave_reduce_max(float x) {
  float largest = readlane(x, 0);
  for (int n = 1; n < wave_size; ++n) largest = __builtin_fmaxf(largest, readlane(x, n));
  return largest;
}
inline float wave_reduce_sum(float x) {
  float sum = readlane(x, 0);
  for (int n = 1; n < wave_size; ++n) sum += readlane(x, n);
  return sum;
}

// Workgroup barrier for LDS. It does not wait for global memory (vmcnt). The wait on lgkmcnt is
// explicit: clang 22 omits it for a fence of "local" where it considers the in-order LDS
// sufficient.
inline void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
#if defined(__GFX12__)
  asm volatile("s_wait_dscnt 0x0");
#else
  asm volatile("s_waitcnt lgkmcnt(0)");
#endif
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

// Makes LDS stores of this wave visible to its other lanes. No instruction: LDS executes the
// accesses of one wave in order.
inline void wave_fence() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront", "local");
  __builtin_amdgcn_wave_barrier();
}

// sched_barrier mask: DS reads and MFMA/WMMA do not cross, everything else may. Without it the
// compiler issues each DS read right before its use, and at one wave per SIMD its latency is
// exposed.
inline void sched_barrier_lds_mma() { __builtin_amdgcn_sched_barrier(0x676); }

// v_perm_b32: the low, or the high, 16 bits of two words in one word.
inline std::uint32_t pack_low16(std::uint32_t first, std::uint32_t second) {
  return __builtin_amdgcn_perm(second, first, 0x05040100);
}
inline std::uint32_t pack_high16(std::uint32_t first, std::uint32_t second) {
  return __builtin_amdgcn_perm(second, first, 0x07060302);
}

// The value of the corresponding lane in the other half of the wave. By value: clang 22 compiles
// __builtin_bit_cast of a vector element to the vector's element 0.
template <class T>
T other_half(T x) {
  static_assert(sizeof(T) == 4);
  const int bits = __builtin_bit_cast(int, x);
#if defined(__GFX9__)
  return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute((lane() ^ 32) * 4, bits));
#else
  // v_permlanex16 with the identity permutation: swaps the two rows of 16 lanes.
  return __builtin_bit_cast(
      T, __builtin_amdgcn_permlanex16(bits, bits, 0x76543210, 0xfedcba98, false, false));
#endif
}

// The four words of the lower half of the wave, then those of the upper half, in all lanes.
inline Words8 both_halves(Words4 own) {
  const bool upper = lane() / (wave_size / 2) != 0;
  Words8 both;
  ROCFLASH_UNROLL
  for (int n = 0; n < 4; ++n) {
    const std::uint32_t word = own[n], other = other_half(word);
    both[n] = upper ? other : word;
    both[4 + n] = upper ? word : other;
  }
  return both;
}

// DPP quad_perm: permutes each group of four lanes.
template <int lanes>
std::uint32_t quad_perm(std::uint32_t x) {
  return static_cast<std::uint32_t>(
      __builtin_amdgcn_update_dpp(0, static_cast<int>(x), lanes, 0xf, 0xf, true));
}

// Transposes a 4x4 block of 16-bit elements held by four adjacent lanes, one row per lane.
inline Words2 transpose_quad(Words2 row) {
  constexpr int next_lane = 0xb1, next_pair = 0x4e;  // lanes 1 0 3 2, and lanes 2 3 0 1
  const std::uint32_t halves = lane() % 2 == 0 ? 0x05040100 : 0x03020706;
  const std::uint32_t first = __builtin_amdgcn_perm(quad_perm<next_lane>(row.x), row.x, halves),
                      second = __builtin_amdgcn_perm(quad_perm<next_lane>(row.y), row.y, halves);
  const bool upper = lane() % 4 >= 2;
  const std::uint32_t received = quad_perm<next_pair>(upper ? first : second);
  return {upper ? received : first, upper ? second : received};
}

// Device-scope counters in global memory, relaxed.
inline std::uint32_t load_counter(const std::uint32_t* counter) {
  return __scoped_atomic_load_n((const ROCFLASH_GLOBAL std::uint32_t*)counter, __ATOMIC_RELAXED,
                                __MEMORY_SCOPE_DEVICE);
}
inline std::uint32_t atomic_add(std::uint32_t* counter) {
  return __scoped_atomic_fetch_add((ROCFLASH_GLOBAL std::uint32_t*)counter, 1u, __ATOMIC_RELAXED,
                                   __MEMORY_SCOPE_DEVICE);
}
inline void atomic_max(std::uint32_t* counter, std::uint32_t to) {
  (void)__scoped_atomic_fetch_max((ROCFLASH_GLOBAL std::uint32_t*)counter, to, __ATOMIC_RELAXED,
                                  __MEMORY_SCOPE_DEVICE);
}
// Compiler-only fence.
inline void compiler_fence() { asm volatile("" ::: "memory"); }
// Waits until this wave's stores have reached the L2 (gfx10 only).
inline void wait_stores();
inline void sleep() { __builtin_amdgcn_s_sleep(1); }

// ds_read_b64_tr_b16, where has_ds_read_tr: sixteen lanes address a block of 4 rows by 16 columns,
// lane n the columns from 4 (n % 4) on of row n / 4. Lane n receives column n.
Words2 ds_read_tr16(const ROCFLASH_SHARED Words2* from);

// Buffer resource (V#) with hardware bounds checking: loads at or past num_records return 0, stores
// are dropped. Ragged tiles need no branches. The offset `out_of_bounds` is past every num_records.
inline constexpr std::uint32_t out_of_bounds = 0x80000000u;
class BufferResource {
 public:
  // `bytes` is num_records, up to 2^31 - 1.
  BufferResource(const void* data, std::uint32_t bytes)
      : resource_(__builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(data), 0,
                                                    static_cast<int>(bytes), format)) {}

  Words4 load16(std::uint32_t offset) const {
    return __builtin_amdgcn_raw_buffer_load_b128(resource_, static_cast<int>(offset), 0, 0);
  }
  Words2 load8(std::uint32_t offset) const {
    return __builtin_amdgcn_raw_buffer_load_b64(resource_, static_cast<int>(offset), 0, 0);
  }
  void store16(Words4 value, std::uint32_t offset) const {
    __builtin_amdgcn_raw_buffer_store_b128(value, resource_, static_cast<int>(offset), 0, 0);
  }
  void store8(Words2 value, std::uint32_t offset) const {
    __builtin_amdgcn_raw_buffer_store_b64(value, resource_, static_cast<int>(offset), 0, 0);
  }
  // Bypasses L0 (glc) and L1 (dlc), which are not coherent with other units' stores (gfx10).
  Words4 load16_coherent(std::uint32_t offset) const {
    constexpr int glc = 1, dlc = 4;
    return __builtin_amdgcn_raw_buffer_load_b128(resource_, static_cast<int>(offset), 0, glc | dlc);
  }
  // buffer_atomic_add_f32. RDNA2 and GCN5 do not have it.
#if defined(__GFX10__) || defined(__gfx906__)
  void add(float value, std::uint32_t offset) const;
#else
  void add(float value, std::uint32_t offset) const {
    __builtin_amdgcn_raw_ptr_buffer_atomic_fadd_f32(value, resource_, static_cast<int>(offset), 0,
                                                    device_scope);
  }
#endif

 private:
  // Word 3 of the V#: raw 32-bit elements, num_records in bytes.
#if defined(__GFX9__)
  static constexpr int format = 0x00027000;
#elif defined(__GFX10__)
  static constexpr int format = 0x31014000;
#else
  static constexpr int format = 0x31004000;
#endif
  // Cache policy of atomics: device scope, which only gfx12 encodes.
#if defined(__GFX12__)
  static constexpr int device_scope = 2 << 3;
#else
  static constexpr int device_scope = 0;
#endif
  __amdgpu_buffer_rsrc_t resource_;
};

}  // namespace rocflash::kernel::arch
