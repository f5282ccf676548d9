// What all AMD GPUs have in common: lanes, memory and LDS through clang's builtins, under names
// that say what they are for.
#pragma once

#include <cstdint>

#include "tile/vector.hpp"

#define ROCFLASH_GLOBAL __attribute__((address_space(1)))
#define ROCFLASH_SHARED __attribute__((address_space(3)))
// LDS of a kernel: its content is undefined at the start.
#define ROCFLASH_SHARED_ARRAY [[clang::loader_uninitialized]] static ROCFLASH_SHARED
#define ROCFLASH_UNROLL _Pragma("unroll")

// A kernel with its one argument, called `arguments`. As an ordinary parameter the compiler would
// load all of it at the start of the kernel and run out of scalar registers; read in place, each
// field is loaded where it is needed.
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

// Numbers of workgroups, as they are divided: without a sign that takes fewer instructions.
using Ordinal = std::uint32_t;

inline int thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
inline int group() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
inline int lane() { return thread() % wave_size; }
// The same in every lane, and the compiler is told so: what is computed from it is scalar.
inline int wave() { return __builtin_amdgcn_readfirstlane(thread() / wave_size); }

// The same for a number that every lane has computed alike.
inline int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }

template <class T>
T* uniform(T* pointer) {
  const auto bits = (std::uint64_t)pointer;
  const auto low = (std::uint32_t)uniform((int)bits);
  return (T*)((std::uint64_t)(std::uint32_t)uniform((int)(bits >> 32)) << 32 | low);
}

// Kernel arguments point to global memory, which the language cannot express.
template <class T>
T load(const T* pointer) {
  return *(const ROCFLASH_GLOBAL T*)pointer;
}
template <class T>
void store(T* pointer, T value) {
  *(ROCFLASH_GLOBAL T*)pointer = value;
}

// The same arguments, loaded again from here on: keeps what only the end of a kernel needs out of
// registers until then.
template <class T>
const T& again(const T& arguments) {
  auto* pointer = (const __attribute__((address_space(4))) T*)&arguments;
  asm volatile("" : "+s"(pointer));
  return *(const T*)pointer;
}

// The compiler moves no instruction past this place.
inline void in_order() { __builtin_amdgcn_sched_barrier(0); }

// Among the waves of a SIMD, those of higher priority (0 to 3) issue first.
template <int priority>
void set_priority() {
  __builtin_amdgcn_s_setprio(priority);
}

// The numbers are computed by here. The compiler would move a product down past a branch, next to its
// use, and keep all that it multiplies in registers until then.
template <int count>
void settle(float (&x)[count]) {
  ROCFLASH_UNROLL
  for (int n = 0; n < count; ++n) asm volatile("" : "+v"(x[n]));
}

template <class T>
void settle(T& x) {
  asm volatile("" : "+v"(x));
}

// Any number from here on: the register is free until the next assignment.
template <class T>
void forget(T& x) {
  asm volatile("" : "=v"(x));
}

// The same number, which the compiler must take for a new one: what is computed from it is not kept
// in registers across a loop.
inline int renew(int x) {
  asm volatile("" : "+v"(x));
  return x;
}
inline int renewed_thread() { return renew(thread()); }
inline int renewed_lane() { return renew(lane()) & (wave_size - 1); }
// The same for numbers that are the same in every lane.
inline int renewed(int x) {
  asm volatile("" : "+s"(x));
  return x;
}

// A number that is the same in every lane, for arithmetic in vector registers where scalar ones are
// few; `uniform` goes back.
template <class T>
T in_lanes(T x) {
  asm("" : "+v"(x));
  return x;
}

inline float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
inline float log2(float x) { return __builtin_amdgcn_logf(x); }
inline float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }

// One bit per lane.
inline std::uint64_t ballot(bool condition) {
  if constexpr (wave_size == 64) return __builtin_amdgcn_ballot_w64(condition);
  return __builtin_amdgcn_ballot_w32(condition);
}
inline bool any(bool condition) { return ballot(condition) != 0; }

// The value of another lane, the same one for all.
inline float from_lane(float x, int lane) {
  return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, x), lane));
}

// The value of the lane so many places further among its sixteen, cyclically.
template <int places>
float rotated(float x) {
  constexpr int row_rotate = 0x120;
  const int bits = __builtin_bit_cast(int, x);
  return __builtin_bit_cast(
      float, __builtin_amdgcn_update_dpp(bits, bits, row_rotate + places, 0xf, 0xf, false));
}

// Over all lanes, the same in each of them.
inline float largest_of_wave(float x) {
  float largest = from_lane(x, 0);
  for (int n = 1; n < wave_size; ++n) largest = __builtin_fmaxf(largest, from_lane(x, n));
  return largest;
}
inline float sum_of_wave(float x) {
  float sum = from_lane(x, 0);
  for (int n = 1; n < wave_size; ++n) sum += from_lane(x, n);
  return sum;
}

// All waves of the workgroup have finished their accesses to LDS before any wave goes on. It does
// not wait for global memory. The wait is written out: for a fence of "local" alone clang 22 leaves it
// out where it takes the order of LDS accesses for enough.
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

// What lanes of this wave have written to LDS is there for its other lanes from here on. It costs
// nothing: a wave's accesses to LDS take place in order.
inline void wave_fence() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront", "local");
  __builtin_amdgcn_wave_barrier();
}

// The compiler moves nothing across: what stands before it has given back its registers.
inline void end_phase() { __builtin_amdgcn_sched_barrier(0); }
// The same, and `x` has been computed by then.
template <class T>
void end_phase(T& x) {
  asm volatile("" : "+v"(x));
  __builtin_amdgcn_sched_barrier(0);
}

// Reads from LDS and products stay on their side of this place; all else may cross it. Left alone, the
// compiler reads each operand right before its use, and a wave that has its SIMD to itself then waits for
// every one of them.
inline void keep_order() { __builtin_amdgcn_sched_barrier(0x676); }

// The lower, or the upper, halves of two words in one.
inline std::uint32_t low_halves(std::uint32_t first, std::uint32_t second) {
  return __builtin_amdgcn_perm(second, first, 0x05040100);
}
inline std::uint32_t high_halves(std::uint32_t first, std::uint32_t second) {
  return __builtin_amdgcn_perm(second, first, 0x07060302);
}

// The value of the lane with the same place in the other half of the wave. Passed by value: clang
// 22's
// __builtin_bit_cast of an element of a vector gives the vector's first element, whichever was
// asked for.
template <class T>
T other_half(T x) {
  static_assert(sizeof(T) == 4);
  const int bits = __builtin_bit_cast(int, x);
#if defined(__GFX9__)
  return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute((lane() ^ 32) * 4, bits));
#else
  // Every lane of a row of 16 takes the lane of its own number in the other row.
  return __builtin_bit_cast(
      T, __builtin_amdgcn_permlanex16(bits, bits, 0x76543210, 0xfedcba98, false, false));
#endif
}

// The lower half's four words followed by the upper half's, in both halves of the wave.
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

// The value of another lane among each four: quad_perm in the instruction set.
template <int lanes>
std::uint32_t within_quad(std::uint32_t x) {
  return static_cast<std::uint32_t>(
      __builtin_amdgcn_update_dpp(0, static_cast<int>(x), lanes, 0xf, 0xf, true));
}

// Four neighbouring lanes have a row of four 16-bit numbers each; then lane n has column n.
inline Words2 transpose_quad(Words2 row) {
  constexpr int next_lane = 0xb1, next_pair = 0x4e;  // lanes 1 0 3 2, and lanes 2 3 0 1
  const std::uint32_t halves = lane() % 2 == 0 ? 0x05040100 : 0x03020706;
  const std::uint32_t first = __builtin_amdgcn_perm(within_quad<next_lane>(row.x), row.x, halves),
                      second = __builtin_amdgcn_perm(within_quad<next_lane>(row.y), row.y, halves);
  const bool upper = lane() % 4 >= 2;
  const std::uint32_t received = within_quad<next_pair>(upper ? first : second);
  return {upper ? received : first, upper ? second : received};
}

// Counters in memory that workgroups of the whole device use: what one holds; the next number of it, counting from 0;
// at least so much from here on.
inline std::uint32_t load_counter(const std::uint32_t* counter) {
  return __scoped_atomic_load_n((const ROCFLASH_GLOBAL std::uint32_t*)counter, __ATOMIC_RELAXED,
                                __MEMORY_SCOPE_DEVICE);
}
inline std::uint32_t count(std::uint32_t* counter) {
  return __scoped_atomic_fetch_add((ROCFLASH_GLOBAL std::uint32_t*)counter, 1u, __ATOMIC_RELAXED,
                                   __MEMORY_SCOPE_DEVICE);
}
inline void raise_counter(std::uint32_t* counter, std::uint32_t to) {
  (void)__scoped_atomic_fetch_max((ROCFLASH_GLOBAL std::uint32_t*)counter, to, __ATOMIC_RELAXED,
                                  __MEMORY_SCOPE_DEVICE);
}
// The compiler moves no access to memory past this place.
inline void keep_accesses() { asm volatile("" ::: "memory"); }
// What this wave has stored before is where the whole device sees it (on gfx10).
inline void await_stores();
inline void pause() { __builtin_amdgcn_s_sleep(1); }

// Where `transposing_reads` is true, reads from LDS can transpose: sixteen lanes name a block of
// four rows of 16 numbers, lane n the numbers from 4 (n % 4) on of row n / 4, and lane n gets
// column n of the block.
Words2 read_transposed(const ROCFLASH_SHARED Words2* from);

// Memory seen through a buffer descriptor: loads at or past its end return 0 and stores there are
// dropped, so ragged edges need no branches. An offset of `nowhere` is always past the end.
inline constexpr std::uint32_t nowhere = 0x80000000u;
class Window {
 public:
  // `bytes` up to 2^31 - 1.
  Window(const void* data, std::uint32_t bytes)
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
  // As the whole device has it: past the caches that other units' stores do not reach (on gfx10).
  Words4 load16_shared(std::uint32_t offset) const {
    constexpr int past_l0 = 1, past_l1 = 4;
    return __builtin_amdgcn_raw_buffer_load_b128(resource_, static_cast<int>(offset), 0,
                                                 past_l0 | past_l1);
  }
  // Adds to a float in memory that other workgroups add to at the same time. RDNA2 and GCN5 have no such
  // instruction.
#if defined(__GFX10__) || defined(__gfx906__)
  void add(float value, std::uint32_t offset) const;
#else
  void add(float value, std::uint32_t offset) const {
    __builtin_amdgcn_raw_ptr_buffer_atomic_fadd_f32(value, resource_, static_cast<int>(offset), 0,
                                                    of_all_workgroups);
  }
#endif

 private:
  // The descriptor's last word: untyped 32-bit elements, bounds in bytes.
#if defined(__GFX9__)
  static constexpr int format = 0x00027000;
#elif defined(__GFX10__)
  static constexpr int format = 0x31014000;
#else
  static constexpr int format = 0x31004000;
#endif
  // The scope of atomics, which older GPUs do not ask for: the whole device.
#if defined(__GFX12__)
  static constexpr int of_all_workgroups = 2 << 3;
#else
  static constexpr int of_all_workgroups = 0;
#endif
  __amdgpu_buffer_rsrc_t resource_;
};

}  // namespace rocflash::kernel::arch
