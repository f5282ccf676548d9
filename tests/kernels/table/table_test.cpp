// The kernel table: families, names and tiles that host and device share.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "table/groups.hpp"

namespace rocflash::kernel {
namespace {

constexpr int forward_buckets[] = {64, 96, 128, 192, 256};

TEST(Table, FamiliesAndMembersHaveTheirOwnNames) {
  std::set<std::string> families, archs;
  for (const FamilyFacts& facts : family_facts) families.insert(facts.name);
  for (const Member& member : members) archs.insert(member.arch);
  EXPECT_EQ(families.size(), std::size(family_facts));
  EXPECT_EQ(archs.size(), std::size(members));
  EXPECT_STREQ(name_of(Family::cdna3), "cdna3");
  EXPECT_STREQ(name_of(Family::sm80), "nvidia");
}

// Hopper's kernels come beside those of sm_80, which serve what it does not name.
TEST(Table, AdditionsHaveWhatNamesThemAndNoMore) {
  EXPECT_EQ(base_of(Family::sm90), Family::sm80);
  EXPECT_TRUE(is_addition(Family::sm90));
  EXPECT_EQ(base_of(Family::sm80), Family::sm80);
  EXPECT_FALSE(contains(family_set::all, Family::sm90));
  EXPECT_FALSE(contains(family_set::nvidia, Family::sm90));
  for (const int bucket : forward_buckets) {
    EXPECT_TRUE(has_kernel(Family::sm90, kernel_number({Operation::forward_pages, DType::f16,
                                                        bucket, Variant::plain})));
    const int number = kernel_number(warpgroups_spec(DType::bf16, bucket));
    ASSERT_GE(number, 0);
    EXPECT_TRUE(has_kernel(Family::sm90, number));
    EXPECT_FALSE(has_kernel(Family::sm80, number));
    const ForwardGroups groups = forward_groups(kernel_spec(number));
    // setmaxnreg moves registers within what the launch was given: so many per thread, times eight.
    const int entry = 65536 / groups.threads() / 8 * 8;
    EXPECT_LE(128 * (groups.copying + groups.groups * groups.computing), entry * groups.threads());
  }
}

TEST(Table, GradientsOnHopperFitAMultiprocessor) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int bucket : {64, 128, 192, 256}) {
      const KernelSpec spec = backward_spec(
          bucket <= 128 ? Operation::backward_warpgroups : Operation::backward_warpgroups_large,
          dtype, bucket, Variant::plain);
      const int number = kernel_number(spec);
      ASSERT_GE(number, 0);
      EXPECT_TRUE(has_kernel(Family::sm90, number));
      EXPECT_FALSE(has_kernel(Family::sm80, number));
      const BackwardBlock block = backward_block(spec);
      const BackwardGroups groups = backward_groups(spec);
      constexpr BackwardRoles roles;
      const int entry = 65536 / block.threads / 8 * 8;
      EXPECT_LE(128 * (has_roles(spec) ? roles.serving + roles.groups * roles.computing
                                       : groups.registers()),
                entry * block.threads);
      EXPECT_LE(block.shared, 232448);
    }
  }
}

TEST(Table, SetsOfFamilies) {
  EXPECT_TRUE(contains(family_set::all, Family::sm80));
  EXPECT_TRUE(contains(family_set::amd, Family::rdna2));
  EXPECT_FALSE(contains(family_set::amd, Family::sm80));
  EXPECT_TRUE(contains(family_set::cdna3 | family_set::sm80, Family::cdna3));
  EXPECT_FALSE(contains(family_set::cdna3 | family_set::sm80, Family::cdna2));
}

TEST(Table, NumbersAndNamesBelongToOneKernelEach) {
  std::set<std::string> names;
  for (int n = 0; n < kernel_count; ++n) {
    EXPECT_EQ(kernel_number(kernel_spec(n)), n);
    EXPECT_TRUE(is_named(kernel_spec(n), kernel_name(n)));
    names.insert(kernel_name(n));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kernel_count));
  EXPECT_EQ(kernel_number(forward_spec(DType::f64, 64, Variant::plain)), -1);
  EXPECT_EQ(kernel_number(forward_spec(DType::f16, 65, Variant::plain)), -1);
}

TEST(Table, NamesAreThoseOfTheCodeObjects) {
  EXPECT_STREQ(kernel_name(kernel_number(forward_spec(DType::f16, 64, Variant::plain))),
               "forward_f16_64_plain");
  EXPECT_STREQ(kernel_name(kernel_number(forward_spec(DType::bf16, 256, Variant::full))),
               "forward_bf16_256_full");
  EXPECT_STREQ(kernel_name(kernel_number(weights_spec(DType::bf16))), "weights_bf16");
  EXPECT_FALSE(is_named(weights_spec(DType::bf16), "weights_bf16_"));
  EXPECT_FALSE(is_named(weights_spec(DType::bf16), "weights_bf1"));
}

TEST(Table, SmallestBucketThatHolds) {
  const auto bucket = [](int head_size) {
    return bucket_of(Operation::forward, DType::bf16, head_size);
  };
  EXPECT_EQ(bucket(1), 64);
  EXPECT_EQ(bucket(64), 64);
  EXPECT_EQ(bucket(65), 96);
  EXPECT_EQ(bucket(129), 192);
  const int largest = largest_bucket(Operation::forward, DType::bf16);
  EXPECT_EQ(largest, 256);
  EXPECT_EQ(bucket(largest), largest);
  EXPECT_EQ(bucket(largest + 1), 0);
  EXPECT_EQ(bucket_of(Operation::forward, DType::f64, 1), 0);
  EXPECT_EQ(largest_bucket(Operation::forward, DType::f64), 0);
}

TEST(Table, EveryFamilyHasAForwardKernelOfEachKind) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int bucket : forward_buckets) {
      for (const Variant variant : {Variant::plain, Variant::full}) {
        const int number = kernel_number(forward_spec(dtype, bucket, variant));
        ASSERT_GE(number, 0) << name_of(forward_spec(dtype, bucket, variant)).text;
        for (const Member& member : members)
          EXPECT_EQ(has_kernel(member.family, number), !is_addition(member.family));
      }
    }
  }
}

TEST(Table, TilesAreWholeWaves) {
  for (int number = 0; number < kernel_count; ++number) {
    for (const Member& member : members) {
      if (!has_kernel(member.family, number)) continue;
      const int wave = facts_of(member.family).wave;
      const GroupShape group = group_shape(member.family, kernel_spec(number));
      EXPECT_EQ(group.threads % wave, 0);
      EXPECT_GE(group.waves_per_simd, 1);
      // Plans choose wide kernels where the GPU gives more than every member does: up to 227 KiB.
      const bool wide = kernel_spec(number).operation == Operation::backward_fused_large;
      EXPECT_LE(group.dynamic_shared, wide ? 227 << 10 : member.machine.group_shared);
      if (kernel_spec(number).operation != Operation::forward) continue;
      const ForwardTile tile = forward_tile(member.family, kernel_spec(number));
      EXPECT_EQ(tile.queries % (tile.threads / wave), 0);
      EXPECT_EQ(tile.keys % 16, 0);
      EXPECT_LE(tile.queries, 256);  // plain kernels address rows of a tile with 32 bits
    }
  }
}

// GPUs from sm_80 on give a workgroup at least 99 KiB, some no more.
TEST(Table, SharedMemoryOfSm80HoldsItsTiles) {
  for (const int bucket : forward_buckets) {
    for (const Variant variant : {Variant::plain, Variant::full}) {
      const KernelSpec spec = forward_spec(DType::f16, bucket, variant);
      const ForwardTile tile = forward_tile(Family::sm80, spec);
      EXPECT_LE(tile.dynamic_shared, 99 << 10);
      EXPECT_GE(tile.dynamic_shared, 2 * 2 * tile.keys * bucket * 2);  // two tiles of k and of v
    }
  }
  for (const int bucket : {64, 128}) {
    const KernelSpec spec = forward_spec(DType::f32, bucket, Variant::plain);
    ASSERT_TRUE(has_kernel(Family::sm80, kernel_number(spec)));
    EXPECT_LE(forward_tile(Family::sm80, spec).dynamic_shared, 99 << 10);
    const KernelSpec fused{Operation::backward_fused, DType::f32, bucket, Variant::plain};
    ASSERT_TRUE(has_kernel(Family::sm80, kernel_number(fused)));
    EXPECT_LE(backward_tile(Family::sm80, fused).dynamic_shared, 99 << 10);
  }
}

}  // namespace
}  // namespace rocflash::kernel
