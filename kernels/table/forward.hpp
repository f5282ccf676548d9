// Tile shapes of the forward kernels: constexpr functions of the family and the kernel's spec,
// which host and device evaluate alike.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

struct ForwardTile {
  int queries;                  // rows of Q per workgroup (kBlockM)
  int keys;                     // rows of K and V per iteration of the main loop (kBlockN)
  int threads;                  // per workgroup
  int waves_per_simd;           // occupancy target; the resource report checks it
  bool shared_queries = false;  // Q stays in shared memory, because of register pressure
  int dynamic_shared = 0;       // bytes passed at launch; AMD kernels declare LDS statically
};

constexpr KernelSpec forward_spec(DType dtype, int bucket, Variant variant) {
  return {Op::forward, Schedule::tiled, dtype, bucket, variant};
}

// Work tiles of the last, partial wave of workgroups: half the queries per workgroup, and each wave
// of a pair takes half of the keys.
constexpr KernelSpec tail_split_spec(DType dtype, int bucket) {
  return {Op::forward, Schedule::tail_split, dtype, bucket, Variant::specialized};
}

// Shared memory of the sm_80 schedule in bytes: Q, double-buffered K and V, and the mask bounds of
// each query. Q aliases the K/V stages where it moves to registers in the prologue.
constexpr int sm80_forward_shared(int row_bytes, int queries, int keys, bool q_in_registers) {
  const int q = queries * row_bytes, tiles = 2 * 2 * keys * row_bytes;
  return (!q_in_registers ? q + tiles : q > tiles ? q : tiles) + queries * 8;
}

// Warp-specialized forward: one producer warpgroup, and consumer warpgroups of 64 queries each.
struct ForwardWarpgroups {
  int consumers;     // consumer warpgroups
  int keys;          // per K/V stage
  bool pingpong;     // softmax of one consumer overlaps with the wgmma of another
  int q_stages = 1;  // pipeline stages of Q
  int stages = 2;    // pipeline stages of K and of V
  int producer_registers = 40, consumer_registers = 232;  // per thread, after setmaxnreg

  constexpr int queries() const { return 64 * consumers; }
  constexpr int threads() const { return 128 * (consumers + 1); }
};

constexpr KernelSpec warp_specialized_spec(DType dtype, int bucket) {
  return {Op::forward, Schedule::warp_specialized, dtype, bucket, Variant::specialized};
}

constexpr ForwardWarpgroups warp_specialized_tile(const KernelSpec& spec) {
  switch (spec.bucket) {
    case 64:
      return {3, 128, true, 1, 2, 32, 160};
    case 96:
      return {2, 192, true};
    case 128:
      return {2, 128, true};
    case 192:
      return {2, 112, true, 1};
    default:
      return {2, 80, true, 1};
  }
}

// Shared memory: the stages of Q, K and V, the mask bounds of each query, four WorkTileInfo slots
// of the tile scheduler, the mbarriers.
constexpr int warp_specialized_smem(const KernelSpec& spec) {
  const ForwardWarpgroups g = warp_specialized_tile(spec);
  const int row_bytes = spec.bucket * static_cast<int>(size_of(spec.dtype));
  return (g.q_stages * g.queries() + 2 * g.stages * g.keys) * row_bytes + 8 * g.queries() + 4 * 48 +
         8 * 2 * (g.q_stages + 2 * g.stages);
}

constexpr ForwardTile forward_tile(Family family, const KernelSpec& spec) {
  const int bucket = spec.bucket;
  const bool specialized = spec.variant == Variant::specialized;
  const int row_bytes = bucket * static_cast<int>(size_of(spec.dtype));
  switch (family) {
    case Family::cdna1:
      if (specialized && bucket == 128) return {128, 64, 256, 1};
      [[fallthrough]];
    case Family::cdna2:
    case Family::cdna3:
    case Family::cdna4:
      if (spec.schedule == Schedule::tail_split) return {128, 64, 512, 2};
      if (specialized && bucket <= 128) return {256, 64, 512, 2};
      return {128, 32, 256, 1};
    case Family::gcn5:  // a quarter of RDNA2's registers
      if (bucket <= 64 && specialized) return {128, 32, 256, 2, true};
      if (bucket <= 128) return {128, 32, 256, 1, bucket == 128};
      return {64, 16, 128, 1, true};
    case Family::rdna2:
    case Family::rdna3:  // both halves of a wave hold every operand
      if (bucket <= 128) return {128, 32, 256, 4, bucket == 128 || (bucket == 96 && !specialized)};
      return {64, 16, 128, 2, true};
    case Family::rdna4:
      if (bucket <= 128) return {128, 32, 256, 4, bucket == 128 && !specialized};
      return {64, 16, 128, 2, true};
    case Family::sm80:
      // f32: 32 queries per warp halve the splits of K and V into TF32 terms, compared with 16.
      if (spec.dtype == DType::f32) {
        const int queries = specialized ? 128 : 64, keys = specialized && bucket > 64 ? 16 : 32;
        return {queries, keys, 128, 2, true, sm80_forward_shared(row_bytes, queries, keys, false)};
      }
      // 32 queries per warp halve the ldmatrix traffic of K and V, compared with 16, at the price
      // of registers for O and S. All shapes fit in 99 KiB, the shared memory per CTA of every GPU
      // from sm_80 on.
      if (bucket <= 128)
        return {128, 64, 128, 2, bucket > 64, sm80_forward_shared(row_bytes, 128, 64, false)};
      if (bucket <= 192)
        return {64, 64, 128, 2, false, sm80_forward_shared(row_bytes, 64, 64, true)};
      return {128, 32, 256, 2, false, sm80_forward_shared(row_bytes, 128, 32, true)};
    case Family::sm90:
      break;
  }
  return {};
}

}  // namespace rocflash::kernel
