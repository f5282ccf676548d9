// The tile of each forward kernel: a pure function of the family and of what the kernel is compiled
// for.
#pragma once

#include "table/kernels.hpp"

namespace rocflash::kernel {

// What one workgroup works on.
struct ForwardTile {
  int queries;         // rows of q per workgroup
  int keys;            // rows of k and v that it loads at a time
  int threads;         // per workgroup
  int waves_per_simd;  // that registers and LDS must leave room for; the report is held to it
  bool shared_queries = false;  // q stays in shared memory, where registers are too few for it
  int dynamic_shared = 0;       // bytes given at launch; AMD kernels declare theirs
};

constexpr KernelSpec forward_spec(DType dtype, int bucket, Variant variant) {
  return {Operation::forward, dtype, bucket, variant};
}

// Half as many queries per workgroup, half of the keys per wave.
constexpr KernelSpec halves_spec(DType dtype, int bucket) {
  return {Operation::forward_halves, dtype, bucket, Variant::plain};
}

// The bytes of shared memory that sm80's schedule needs: q, two tiles each of k and v, and eight
// bytes per query. A q that moves to registers leaves its place to the tiles.
constexpr int sm80_forward_shared(int row_bytes, int queries, int keys, bool q_leaves) {
  const int q = queries * row_bytes, tiles = 2 * 2 * keys * row_bytes;
  return (!q_leaves ? q + tiles : q > tiles ? q : tiles) + queries * 8;
}

// Forward by warpgroups: one has tiles of keys and values copied, the others have 64 queries each.
struct ForwardGroups {
  int groups;        // that compute
  int keys;          // of a tile
  bool in_turns;     // one group's products run while another has its softmax
  int q_stages = 1;  // blocks of queries in shared memory
  int stages = 2;    // tiles of keys
  // Registers of a thread, after the copying group has given some of its own to the others.
  int copying = 40, computing = 232;

  constexpr int queries() const { return 64 * groups; }
  constexpr int threads() const { return 128 * (groups + 1); }
};

constexpr KernelSpec warpgroups_spec(DType dtype, int bucket) {
  return {Operation::forward_warpgroups, dtype, bucket, Variant::plain};
}

constexpr ForwardGroups forward_groups(const KernelSpec& spec) {
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

// Blocks of q, tiles of k and of v, the keys that each query sees, four orders, barriers.
constexpr int forward_groups_shared(const KernelSpec& spec) {
  const ForwardGroups g = forward_groups(spec);
  const int row_bytes = spec.bucket * static_cast<int>(size_of(spec.dtype));
  return (g.q_stages * g.queries() + 2 * g.stages * g.keys) * row_bytes + 8 * g.queries() + 4 * 48 +
         8 * 2 * (g.q_stages + 2 * g.stages);
}

constexpr ForwardTile forward_tile(Family family, const KernelSpec& spec) {
  const int bucket = spec.bucket;
  const bool plain = spec.variant == Variant::plain;
  const int row_bytes = bucket * static_cast<int>(size_of(spec.dtype));
  switch (family) {
    case Family::cdna1:
      if (plain && bucket == 128) return {128, 64, 256, 1};
      [[fallthrough]];
    case Family::cdna2:
    case Family::cdna3:
    case Family::cdna4:
      if (spec.operation == Operation::forward_halves) return {128, 64, 512, 2};
      if (plain && bucket <= 128) return {256, 64, 512, 2};
      return {128, 32, 256, 1};
    case Family::gcn5:  // as RDNA2, with a quarter of its registers
      if (bucket <= 64 && plain) return {128, 32, 256, 2, true};
      if (bucket <= 128) return {128, 32, 256, 1, bucket == 128};
      return {64, 16, 128, 1, true};
    case Family::rdna2:
    case Family::rdna3:  // both hold every operand twice
      if (bucket <= 128) return {128, 32, 256, 4, bucket == 128 || (bucket == 96 && !plain)};
      return {64, 16, 128, 2, true};
    case Family::rdna4:
      if (bucket <= 128) return {128, 32, 256, 4, bucket == 128 && !plain};
      return {64, 16, 128, 2, true};
    case Family::sm80:
      // f32: with 32 queries per warp, k and v are taken into parts half as often as with 16.
      if (spec.dtype == DType::f32) {
        const int queries = plain ? 128 : 64, keys = plain && bucket > 64 ? 16 : 32;
        return {queries, keys, 128, 2, true, sm80_forward_shared(row_bytes, queries, keys, false)};
      }
      // A warp of 32 queries reads k and v half as often as one of 16, but its outputs and scores
      // leave few registers for anything else. All shapes keep to the 99 KiB of shared memory that
      // every GPU from sm_80 on gives a workgroup.
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
