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

// X(dtype): weights_<dtype>, one thread an element of s_dmask.
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
      return {128, 64, 128, 1, false, bucket * 2 * 64 * 2 * 2};
  }
  return {};
}

}  // namespace rocflash::kernel
