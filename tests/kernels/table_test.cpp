// The kernel table: names and tiles that host and device share.
#include "table.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace rocflash::kernel {
namespace {

constexpr Family families[] = {Family::cdna2, Family::cdna3, Family::cdna4, Family::rdna2,
                               Family::rdna3, Family::rdna4, Family::nvidia};

TEST(Table, SmallestBucketThatHolds) {
  EXPECT_EQ(bucket_of(1), 64);
  EXPECT_EQ(bucket_of(64), 64);
  EXPECT_EQ(bucket_of(65), 96);
  EXPECT_EQ(bucket_of(129), 192);
  EXPECT_EQ(bucket_of(largest_bucket), largest_bucket);
  EXPECT_EQ(bucket_of(largest_bucket + 1), 0);
}

TEST(Table, EveryBucketHasAKernelOfEachKind) {
  std::set<std::string> names;
#define ROCFLASH_NAME(dtype, bucket, variant) names.insert(#dtype "_" #bucket "_" #variant);
  ROCFLASH_FORWARD_KERNELS(ROCFLASH_NAME)
#undef ROCFLASH_NAME
  for (const char* dtype : {"f16", "bf16"})
    for (const int bucket : forward_buckets)
      for (const char* variant : {"plain", "full"})
        EXPECT_EQ(names.count(std::string(dtype) + "_" + std::to_string(bucket) + "_" + variant),
                  1u);
  EXPECT_EQ(names.size(), 2 * std::size(forward_buckets) * 2);
}

TEST(Table, TilesAreWholeWaves) {
  for (const Family family : families) {
    const int wave =
        family == Family::cdna2 || family == Family::cdna3 || family == Family::cdna4 ? 64 : 32;
    for (const int bucket : forward_buckets) {
      for (const Variant variant : {Variant::plain, Variant::full}) {
        const ForwardTile tile = forward_tile(family, bucket, variant);
        EXPECT_EQ(tile.threads % wave, 0);
        EXPECT_EQ(tile.queries % (tile.threads / wave), 0);
        EXPECT_EQ(tile.keys % 16, 0);
        EXPECT_LE(tile.queries, 256);  // plain kernels address rows of a tile with 32 bits
        EXPECT_GE(tile.waves_per_simd, 1);
      }
    }
  }
}

// GPUs from sm_80 on give a workgroup at least 99 KiB, some no more.
TEST(Table, SharedMemoryOfEveryNvidiaGpuIsEnough) {
  for (const int bucket : forward_buckets) {
    for (const Variant variant : {Variant::plain, Variant::full}) {
      const ForwardTile tile = forward_tile(Family::nvidia, bucket, variant);
      EXPECT_LE(tile.dynamic_shared, 99 << 10);
      EXPECT_GE(tile.dynamic_shared, 2 * 2 * tile.keys * bucket * 2);  // two tiles of k and of v
    }
  }
}

}  // namespace
}  // namespace rocflash::kernel
