// Hopper (compute capability 9.0) and what only it has: products of whole warpgroups (wgmma.hpp),
// copies of tiles by the tensor memory accelerator, barriers that count copied bytes, registers
// that move from one warpgroup to another. Compiled as CUDA, which knows launch bounds and
// parameters that stay where they are; `setmaxnreg` and tensor maps need them.
#pragma once

#include "arch/nvidia.hpp"
#include "arch/tensor_map.hpp"
#include "arch/wgmma.hpp"

#undef ROCFLASH_KERNEL
#define ROCFLASH_KERNEL(name, tile, Arguments)                                  \
  static void name##_body(const Arguments& arguments);                          \
  extern "C" __attribute__((global, launch_bounds(tile.threads, 1))) void name( \
      const __attribute__((grid_constant)) Arguments arguments) {               \
    name##_body(arguments);                                                     \
  }                                                                             \
  [[gnu::always_inline]] static inline void name##_body(const Arguments& arguments)

// As CUDA writes it: an address space alone would make it global memory here.
#undef ROCFLASH_SHARED_ARRAY
#define ROCFLASH_SHARED_ARRAY [[clang::loader_uninitialized]] static __attribute__((shared))

namespace rocflash::kernel::arch {

inline constexpr int warpgroup_size = 128;

inline int groups() { return __nvvm_read_ptx_sreg_nctaid_x(); }  // workgroups of the launch
inline int group_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
inline int group_z() { return __nvvm_read_ptx_sreg_ctaid_z(); }

// Clusters: workgroups that run at the same time and read each other's shared memory. How many they are, and which
// one this is; a barrier of all their threads, in two halves; an address of another one's shared memory, and loads from it.
inline int cluster_groups() { return __nvvm_read_ptx_sreg_cluster_nctarank(); }
inline int cluster_rank() { return __nvvm_read_ptx_sreg_cluster_ctarank(); }
inline void reach_cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
inline void pass_cluster_barrier() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
inline SharedAddress address_in(int rank, SharedAddress at) {
  SharedAddress there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
  return there;
}
inline float load_cluster_float(SharedAddress from) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}
inline Float4 load_cluster_floats(SharedAddress from) {
  float x, y, z, w;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
               : "r"(from)
               : "memory");
  return {x, y, z, w};
}

// A launch that may start while the one before it still runs waits here for all of that one's results; and that
// one says from when on it may start.
inline void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
inline void let_next_launch_start() { asm volatile("griddepcontrol.launch_dependents;"); }

// Arguments lie in constant memory, whose lines arrive on first use, one after the other. A launch that waits for another
// has them come before: one word of each line goes into a sum of which nothing depends but a pause. Warps that fetch a line
// each have all of them on their way at once.
template <class Arguments>
void fetch_arguments(const Arguments& a) {
  constexpr int line = 64, words = sizeof(Arguments) / 4;
  const auto* at = reinterpret_cast<const std::uint32_t*>(&a);
  std::uint32_t sum = 0;
  ROCFLASH_UNROLL
  for (int n = 0; n < words; n += line / 4) sum += at[n];
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p nanosleep.u32 0; }" ::"r"(sum));
}
template <int warps, class Arguments>
void fetch_arguments_by_turns(const Arguments& a) {
  constexpr int line = 64, words = sizeof(Arguments) / 4;
  const auto* at = reinterpret_cast<const std::uint32_t*>(&a);
  const int turn = __nvvm_shfl_sync_idx_i32(all_lanes, wave(), 0, 31);
  ROCFLASH_UNROLL
  for (int n = 0; n < words; n += line / 4)
    if (turn == n / (line / 4) % warps)
      asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p nanosleep.u32 0; }" ::"r"(at[n]));
}

// The number of the warpgroup, which the compiler then knows to be the same in a warp.
inline int warpgroup() {
  return __nvvm_shfl_sync_idx_i32(all_lanes, thread() / warpgroup_size, 0, 31);
}

// The thread's number and how many workgroups there are, asked for again: no register keeps them meanwhile.
inline int thread_again() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}
inline int groups_again() {
  int x;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(x));
  return x;
}

// Moves registers between warpgroups: those that need few give some up, the others wait until there
// are enough. All warps of a warpgroup, once, in branches of one if.
template <int registers>
void give_registers() {
  static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
void take_registers() {
  static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Named barriers of some threads, whole warps: 0 is arch::barrier's. One side may only report that
// it has come so far.
inline void barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
inline void reach_barrier(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// The same, and whether the condition holds in one of their threads.
inline bool any_of(int number, int threads, bool condition) {
  std::uint32_t found;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 q, %3, 0; bar.red.or.pred p, %1, %2, q; selp.u32 %0, 1, 0, "
      "p; }"
      : "=r"(found)
      : "r"(number), "r"(threads), "r"(static_cast<std::uint32_t>(condition))
      : "memory");
  return found != 0;
}

// Makes ordinary stores of this thread to shared memory visible to copies and products that start
// after a barrier.
inline void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Barriers in shared memory, eight bytes each. A phase is over once `arrivals` threads have arrived
// and all announced bytes are there.
inline constexpr int barrier_bytes = 8;
inline void make_barrier(SharedAddress at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
// By the thread that made them, before any other thread may use them (behind arch::barrier()).
inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
inline void arrive(SharedAddress at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
inline void arrive_and_expect(SharedAddress at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}
inline void wait_for_phase(SharedAddress at, std::uint32_t parity) {
  std::uint32_t over;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, "
        "p; }"
        : "=r"(over)
        : "r"(at), "r"(parity)
        : "memory");
  } while (!over);
}

// A map of the kernel's parameters, fetched ahead of its first use.
inline void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Copies a box of a tensor to shared memory. What lies outside of the tensor is 0 there, and counts
// in the bytes that the barrier waits for. `cache` is a hint: who will need it again.
enum class Reuse : std::uint64_t { none = 0x12F0000000000000, much = 0x14F0000000000000 };
inline void copy_box(SharedAddress to, const TensorMap& map, SharedAddress full, int column,
                     int row, int head, int batch, Reuse reuse) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(full), "r"(column), "r"(row), "r"(head), "r"(batch),
      "l"(static_cast<std::uint64_t>(reuse))
      : "memory");
}
// Sixteen bytes as arch::copy_async, which leave the cache before others do.
inline void copy_async_once(SharedAddress to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(static_cast<std::uint64_t>(Reuse::none))
               : "memory");
}
// Stores a box, or adds its numbers to those that are there. What lies outside of the tensor is
// dropped.
inline void store_box(const TensorMap& map, SharedAddress from, int column, int row, int head,
                      int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
inline void add_box(const TensorMap& map, SharedAddress from, int column, int row, int head,
                    int batch) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(&map),
      "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
// Bytes one behind the other, multiples of 16: to shared memory, and f32 numbers added to memory, which will be added to
// again.
inline void copy_bytes(SharedAddress to, const void* from, int bytes, SharedAddress full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(full)
      : "memory");
}
inline void add_floats(float* to, SharedAddress from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, "
      "%3;" ::"l"(to),
      "r"(from), "r"(bytes), "l"(static_cast<std::uint64_t>(Reuse::much))
      : "memory");
}
// Stores and additions of this thread, in groups. Waits until at most `open` groups still read
// shared memory, or are unfinished at all.
inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int open>
void wait_for_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(open) : "memory");
}
template <int open>
void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(open) : "memory");
}

// A counter in memory by which workgroups follow each other: what one has done before it counts is done for
// whoever sees the number.
inline std::uint32_t load_counter(const std::uint32_t* counter) {
  std::uint32_t x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
  return x;
}
inline void count(std::uint32_t* counter, int by = 1) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(by) : "memory");
}
// Leaves the memory to others for a while.
inline void pause() { asm volatile("nanosleep.u32 500;" ::: "memory"); }
// Orders copies and additions by the copy engine with ordinary accesses of this thread.
inline void order_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Four matrices of 8x8 numbers to shared memory, as load_matrices reads them; lane n passes the
// address of row n % 8 of matrix n / 8.
inline void store_matrices(SharedAddress row, Words4 w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
               : "memory");
}
inline void store_matrices_transposed(SharedAddress row, Words4 w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
               : "memory");
}

}  // namespace rocflash::kernel::arch
