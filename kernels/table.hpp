// Which kernels exist, and the shape of each: the device instantiates from this table and the host
// looks up in it, so the two cannot disagree.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"

namespace rocflash::kernel {

enum class Family : std::uint8_t { cdna2, cdna3, cdna4, rdna2, rdna3, rdna4, nvidia };

// Plain is the hot path: any lengths, causal, window and chunk, rows that begin on 16 bytes, head
// sizes of whole 16 bytes. Full adds every other option as branches that the whole workgroup takes
// together.
enum class Variant : std::uint8_t { plain, full };

// Head sizes that kernels are compiled for; a problem takes the smallest that holds both its head
// sizes.
inline constexpr int forward_buckets[] = {64, 96, 128, 192, 256};
inline constexpr int largest_bucket = 256;

constexpr int bucket_of(int head_size) {
  for (const int bucket : forward_buckets) {
    if (head_size <= bucket) return bucket;
  }
  return 0;
}

#define ROCFLASH_FORWARD_BUCKETS(X, dtype, variant) \
  X(dtype, 64, variant)                             \
  X(dtype, 96, variant) X(dtype, 128, variant) X(dtype, 192, variant) X(dtype, 256, variant)

// X(dtype, bucket, variant): the kernel is called forward_<dtype>_<bucket>_<variant>. The build
// gives device sources one dtype and variant at a time (cmake/Kernels.cmake); everyone else sees
// all.
#ifdef ROCFLASH_UNIT_DTYPE
#define ROCFLASH_FORWARD_KERNELS(X) \
  ROCFLASH_FORWARD_BUCKETS(X, ROCFLASH_UNIT_DTYPE, ROCFLASH_UNIT_VARIANT)
#else
#define ROCFLASH_FORWARD_KERNELS(X)        \
  ROCFLASH_FORWARD_BUCKETS(X, f16, plain)  \
  ROCFLASH_FORWARD_BUCKETS(X, f16, full)   \
  ROCFLASH_FORWARD_BUCKETS(X, bf16, plain) \
  ROCFLASH_FORWARD_BUCKETS(X, bf16, full)
#endif

// X(dtype): weights_<dtype>, one wave a row of s_dmask.
#define ROCFLASH_WEIGHTS_KERNELS(X) X(f16) X(bf16)
struct WeightsTile {
  int threads, waves_per_simd;
};
inline constexpr WeightsTile weights_tile{256, 1};

// One workgroup's share of a problem.
struct ForwardTile {
  int queries;         // rows of q that a workgroup works on
  int keys;            // rows of k and v that it takes in at a time
  int threads;         // in a workgroup
  int waves_per_simd;  // that registers and LDS must leave room for; the build's report is held to
                       // it
  bool shared_queries = false;  // q stays in LDS, where registers are too few for it
  int dynamic_shared = 0;       // bytes given at launch; AMD kernels declare theirs
};

// NVIDIA: q, two tiles each of k and v, and eight bytes a query. Queries that
// go to registers can leave their place to the tiles. All shapes keep to the 99 KiB of shared
// memory that every GPU from sm_80 on gives a workgroup.
constexpr int nvidia_shared_bytes(int bucket, int queries, int keys, bool q_leaves) {
  const int q = queries * bucket * 2, tiles = 2 * 2 * keys * bucket * 2;
  return (!q_leaves ? q + tiles : q > tiles ? q : tiles) + queries * 8;
}

constexpr ForwardTile forward_tile(Family family, int bucket, Variant variant) {
  const bool plain = variant == Variant::plain;
  switch (family) {
    case Family::cdna2:
    case Family::cdna3:
    case Family::cdna4:
      if (plain && bucket <= 128) return {256, 64, 512, 2};
      return {128, 32, 256, 1};
    case Family::rdna2:
    case Family::rdna3:  // both hold every operand twice
      if (bucket <= 128) return {128, 32, 256, 4, bucket == 128 || (bucket == 96 && !plain)};
      return {64, 16, 128, 2, true};
    case Family::rdna4:
      if (bucket <= 128) return {128, 32, 256, 4, bucket == 128 && !plain};
      return {64, 16, 128, 2, true};
    case Family::nvidia:
      // A warp that has 32 queries reads k and v half as often as one that has 16, but its outputs
      // and scores leave few registers for anything else.
      if (bucket <= 128)
        return {128, 64, 128, 2, bucket > 64, nvidia_shared_bytes(bucket, 128, 64, false)};
      if (bucket <= 192) return {64, 64, 128, 2, false, nvidia_shared_bytes(bucket, 64, 64, true)};
      return {128, 32, 256, 2, false, nvidia_shared_bytes(bucket, 128, 32, true)};
  }
  return {};
}

}  // namespace rocflash::kernel
