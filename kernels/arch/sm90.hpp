// Hopper (compute capability 9.0): TMA loads, stores and reductions, mbarriers, named barriers,
// clusters with distributed shared memory, setmaxnreg, programmatic dependent launch. wgmma is in
// wgmma.hpp.
//
// Compiled as CUDA, not as C++ for NVPTX: setmaxnreg needs launch bounds, and tensor maps need
// __grid_constant__ parameters.
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

// CUDA's attribute: the address space alone would give global memory in this mode.
#undef ROCFLASH_SHARED_ARRAY
#define ROCFLASH_SHARED_ARRAY [[clang::loader_uninitialized]] static __attribute__((shared))

namespace rocflash::kernel::arch {

inline constexpr int warpgroup_size = 128;

inline int workgroup_count() { return __nvvm_read_ptx_sreg_nctaid_x(); }
inline int workgroup_id_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
inline int workgroup_id_z() { return __nvvm_read_ptx_sreg_ctaid_z(); }

// Clusters: CTAs that are co-scheduled on one GPC and access each other's shared memory (DSMEM).
inline int cluster_size() { return __nvvm_read_ptx_sreg_cluster_nctarank(); }
inline int cluster_rank() { return __nvvm_read_ptx_sreg_cluster_ctarank(); }
inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
inline SharedAddress mapa(int rank, SharedAddress at) {
  SharedAddress remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
  return remote;
}
inline float load_dsmem_float(SharedAddress from) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}
inline Float4 load_dsmem_floats(SharedAddress from) {
  float x, y, z, w;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
               : "r"(from)
               : "memory");
  return {x, y, z, w};
}

// Programmatic dependent launch (PDL). The dependent kernel waits until all memory operations of
// the primary kernel are visible; the primary kernel allows the dependent one to be scheduled.
inline void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
inline void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// Kernel parameters are in constant memory; each line of the constant cache misses on first use. A
// dependent kernel takes these misses before grid_dependency_wait(). One word per line enters a sum
// that only decides on a nanosleep of 0, so the loads are not dead code.
template <class Arguments>
void prefetch_kernel_params(const Arguments& a) {
  constexpr int line = 64, words = sizeof(Arguments) / 4;
  const auto* at = reinterpret_cast<const std::uint32_t*>(&a);
  std::uint32_t sum = 0;
  ROCFLASH_UNROLL
  for (int n = 0; n < words; n += line / 4) sum += at[n];
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p nanosleep.u32 0; }" ::"r"(sum));
}
// Each warp takes every `warps`-th line, so that the misses are in flight at the same time.
template <int warps, class Arguments>
void prefetch_kernel_params_by_warp(const Arguments& a) {
  constexpr int line = 64, words = sizeof(Arguments) / 4;
  const auto* at = reinterpret_cast<const std::uint32_t*>(&a);
  const int warp = __nvvm_shfl_sync_idx_i32(all_lanes, wave(), 0, 31);
  ROCFLASH_UNROLL
  for (int n = 0; n < words; n += line / 4)
    if (warp == n / (line / 4) % warps)
      asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0; @p nanosleep.u32 0; }" ::"r"(at[n]));
}

// The warpgroup's index. The shuffle makes it warp-uniform for the compiler.
inline int warpgroup() {
  return __nvvm_shfl_sync_idx_i32(all_lanes, thread() / warpgroup_size, 0, 31);
}

// Special registers, read again at each use: no register is live across the main loop.
inline int reload_tid() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}
inline int reload_nctaid() {
  int x;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(x));
  return x;
}

// setmaxnreg: producer warpgroups release registers, consumer warpgroups block until enough of them
// are in the CTA's pool. All warps of a warpgroup execute it, once.
template <int registers>
void reg_dealloc() {
  static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
void reg_alloc() {
  static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Hardware barriers of a CTA, 16 of them. arch::barrier() is number 0. Each kernel names the others
// that it uses, as constants of this type; `barrier + n` is the n-th of a set with consecutive
// numbers, for instance one per consumer warpgroup or one per pipeline stage.
enum class NamedBarrier : int { cta = 0 };
constexpr NamedBarrier operator+(NamedBarrier first, int n) {
  return static_cast<NamedBarrier>(static_cast<int>(first) + n);
}

// `threads` counts the threads that sync and those that only arrive: whole warps.
inline void barrier_sync(NamedBarrier barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(static_cast<int>(barrier)), "r"(threads) : "memory");
}
inline void barrier_arrive(NamedBarrier barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(static_cast<int>(barrier)), "r"(threads) : "memory");
}
// barrier_sync with an OR reduction of the predicate over all threads.
inline bool barrier_red_or(NamedBarrier barrier, int threads, bool condition) {
  std::uint32_t found;
  asm volatile(
      "{ .reg .pred p, q; setp.ne.u32 q, %3, 0; bar.red.or.pred p, %1, %2, q; selp.u32 %0, 1, 0, "
      "p; }"
      : "=r"(found)
      : "r"(static_cast<int>(barrier)), "r"(threads), "r"(static_cast<std::uint32_t>(condition))
      : "memory");
  return found != 0;
}

// Orders this thread's generic-proxy stores to shared memory before later accesses of the async
// proxy (TMA, wgmma).
inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// mbarriers: 64-bit objects in shared memory. A phase completes when the pending arrival count is 0
// and the expected transaction bytes have arrived.
inline constexpr int mbarrier_bytes = 8;
inline void mbarrier_init(SharedAddress at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
// Executed by the thread that initialized them, before the CTA-wide barrier that precedes any use.
inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
inline void mbarrier_arrive(SharedAddress at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
inline void mbarrier_arrive_expect_tx(SharedAddress at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}
// Returns once the phase of this parity has completed.
inline void mbarrier_wait_parity(SharedAddress at, std::uint32_t parity) {
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

// Prefetches a tensor map of the kernel's parameters into the descriptor cache.
inline void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// L2 eviction priorities, as createpolicy encodes them. K and V tiles that other CTAs read too are
// evict_last; tensors that are read once are evict_first.
enum class CacheHint : std::uint64_t {
  evict_first = 0x12F0000000000000,
  evict_last = 0x14F0000000000000
};
// Loads a box of a tensor map to shared memory. Elements outside the tensor are 0, and count in the
// transaction bytes of the mbarrier `full`.
inline void tma_load(SharedAddress to, const TensorMap& map, SharedAddress full, int column,
                     int row, int head, int batch, CacheHint cache_hint) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(&map), "r"(full), "r"(column), "r"(row), "r"(head), "r"(batch),
      "l"(static_cast<std::uint64_t>(cache_hint))
      : "memory");
}
// arch::cp_async of 16 bytes with the evict_first policy.
inline void cp_async_evict_first(SharedAddress to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(static_cast<std::uint64_t>(CacheHint::evict_first))
               : "memory");
}
// Stores a box, or adds its elements to global memory. Elements outside the tensor are dropped.
inline void tma_store(const TensorMap& map, SharedAddress from, int column, int row, int head,
                      int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
inline void tma_reduce_add(const TensorMap& map, SharedAddress from, int column, int row, int head,
                           int batch) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(&map),
      "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
// Bulk copies without a tensor map: contiguous bytes, a multiple of 16.
inline void bulk_load(SharedAddress to, const void* from, int bytes, SharedAddress full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(full)
      : "memory");
}
// f32 elements. evict_last: other CTAs add to the same accumulators.
inline void tma_reduce_add(float* to, SharedAddress from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, "
      "%3;" ::"l"(to),
      "r"(from), "r"(bytes), "l"(static_cast<std::uint64_t>(CacheHint::evict_last))
      : "memory");
}
// Bulk groups of this thread's stores and reductions. The waits return when at most `pending`
// groups still read shared memory, or are incomplete at all.
inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int pending>
void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
template <int pending>
void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

// Counters in global memory that order CTAs: an acquire load and a release increment.
inline std::uint32_t load_counter(const std::uint32_t* counter) {
  std::uint32_t x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(counter) : "memory");
  return x;
}
inline void atomic_add(std::uint32_t* counter, int by = 1) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(by) : "memory");
}
// Backoff of a loop that polls a counter.
inline void sleep() { asm volatile("nanosleep.u32 500;" ::: "memory"); }
// Orders accesses of the async proxy to global memory with this thread's generic-proxy accesses.
inline void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Stores four 8x8 matrices of 16-bit elements, the inverse of ldmatrix_x4: lane n passes the
// address of row n % 8 of matrix n / 8.
inline void stmatrix_x4(SharedAddress row, Words4 w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
               : "memory");
}
inline void stmatrix_x4_trans(SharedAddress row, Words4 w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
               : "memory");
}

}  // namespace rocflash::kernel::arch
