// The kernel table: families, names and tiles that host and device share.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "table/workgroups.hpp"

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

// sm_90a extends sm_80, whose kernels serve what sm_90a has no kernel for.
TEST(Table, ExtensionsHaveOnlyTheirOwnKernels) {
  EXPECT_EQ(base_of(Family::sm90), Family::sm80);
  EXPECT_TRUE(is_extension(Family::sm90));
  EXPECT_EQ(base_of(Family::sm80), Family::sm80);
  EXPECT_FALSE(contains(family_set::all, Family::sm90));
  EXPECT_FALSE(contains(family_set::nvidia, Family::sm90));
  for (const int bucket : forward_buckets) {
    EXPECT_TRUE(
        has_kernel(Family::sm90, kernel_number({Op::forward, Schedule::warp_specialized_paged,
                                                DType::f16, bucket, Variant::specialized})));
    const int number = kernel_number(warp_specialized_spec(DType::bf16, bucket));
    ASSERT_GE(number, 0);
    EXPECT_TRUE(has_kernel(Family::sm90, number));
    EXPECT_FALSE(has_kernel(Family::sm80, number));
    const ForwardWarpgroups groups = warp_specialized_tile(kernel_spec(number));
    // setmaxnreg redistributes the registers of the launch, which are allocated in multiples of
    // eight per thread.
    const int entry = 65536 / groups.threads() / 8 * 8;
    EXPECT_LE(128 * (groups.producer_registers + groups.consumers * groups.consumer_registers),
              entry * groups.threads());
  }
}

TEST(Table, BackwardTilesOfSm90FitAMultiprocessor) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int bucket : {64, 128, 192, 256}) {
      const KernelSpec spec = backward_spec(
          bucket <= 128 ? Schedule::warp_specialized : Schedule::warp_specialized_large, dtype,
          bucket, Variant::specialized);
      const int number = kernel_number(spec);
      ASSERT_GE(number, 0);
      EXPECT_TRUE(has_kernel(Family::sm90, number));
      EXPECT_FALSE(has_kernel(Family::sm80, number));
      const BackwardWorkTile block = backward_work_tile(spec);
      const BackwardWarpgroups groups = backward_warpgroups(spec);
      constexpr BackwardRoles roles;
      const int entry = 65536 / block.threads / 8 * 8;
      EXPECT_LE(
          128 * (has_roles(spec) ? roles.dq_registers + roles.consumers * roles.consumer_registers
                                 : groups.registers()),
          entry * block.threads);
      EXPECT_LE(block.shared, 232448);
    }
  }
}

TEST(Table, FamilySets) {
  EXPECT_TRUE(contains(family_set::all, Family::sm80));
  EXPECT_TRUE(contains(family_set::amd, Family::rdna2));
  EXPECT_FALSE(contains(family_set::amd, Family::sm80));
  EXPECT_TRUE(contains(family_set::cdna3 | family_set::sm80, Family::cdna3));
  EXPECT_FALSE(contains(family_set::cdna3 | family_set::sm80, Family::cdna2));
  EXPECT_EQ(family_set::cdna, family_set::cdna1 | family_set::cdna2_up);
  EXPECT_EQ(family_set::all_but_rdna2 | family_set::rdna2, family_set::all);
  EXPECT_FALSE(contains(family_set::all_but_rdna2, Family::rdna2));
}

TEST(Table, KernelsByOperationAndSchedule) {
  std::set<int> numbers;
  int count = 0;
#define ROCFLASH_SCHEDULE(name) Schedule::name,
  constexpr Schedule schedules[] = {
#include "table/kernels.inc"
  };
  const auto add = [&](Op op) {
    for (const Schedule schedule : schedules) {
      for (const int n : kernels_of(op, schedule)) {
        EXPECT_EQ(kernel_spec(n).op, op);
        EXPECT_EQ(kernel_spec(n).schedule, schedule);
        numbers.insert(n);
        ++count;
      }
    }
  };
#define ROCFLASH_OPERATION(name) add(Op::name);
#include "table/kernels.inc"
  EXPECT_EQ(count, kernel_count);
  EXPECT_EQ(numbers.size(), static_cast<std::size_t>(kernel_count));
  EXPECT_EQ(bucket_of(Op::weights, Schedule::fp32, DType::f16, 1), 0);
}

TEST(Table, NumbersAndNamesAreUnique) {
  std::set<std::string> names;
  for (int n = 0; n < kernel_count; ++n) {
    EXPECT_EQ(kernel_number(kernel_spec(n)), n);
    EXPECT_TRUE(is_named(kernel_spec(n), kernel_name(n)));
    names.insert(kernel_name(n));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kernel_count));
  EXPECT_EQ(kernel_number(forward_spec(DType::f64, 64, Variant::specialized)), -1);
  EXPECT_EQ(kernel_number(forward_spec(DType::f16, 65, Variant::specialized)), -1);
}

TEST(Table, NamesAreTheSymbolsOfTheCodeObjects) {
  EXPECT_STREQ(kernel_name(kernel_number(forward_spec(DType::f16, 64, Variant::specialized))),
               "forward_f16_64_specialized");
  EXPECT_STREQ(kernel_name(kernel_number(forward_spec(DType::bf16, 256, Variant::generic))),
               "forward_bf16_256_generic");
  EXPECT_STREQ(kernel_name(kernel_number(weights_spec(DType::bf16))), "weights_bf16");
  EXPECT_STREQ(kernel_name(kernel_number(cluster_spec(DType::f16, 128))), "decode_cluster_f16_128");
  EXPECT_STREQ(kernel_name(kernel_number(fp32_preprocess_spec)), "backward_preprocess_fp32_f32");
  EXPECT_FALSE(is_named(weights_spec(DType::bf16), "weights_bf16_"));
  EXPECT_FALSE(is_named(weights_spec(DType::bf16), "weights_bf1"));
}

TEST(Table, BucketIsTheSmallestThatFits) {
  const auto bucket = [](int head_dim) {
    return bucket_of(Op::forward, Schedule::tiled, DType::bf16, head_dim);
  };
  EXPECT_EQ(bucket(1), 64);
  EXPECT_EQ(bucket(64), 64);
  EXPECT_EQ(bucket(65), 96);
  EXPECT_EQ(bucket(129), 192);
  const int largest = largest_bucket(Op::forward, Schedule::tiled, DType::bf16);
  EXPECT_EQ(largest, 256);
  EXPECT_EQ(bucket(largest), largest);
  EXPECT_EQ(bucket(largest + 1), 0);
  EXPECT_EQ(bucket_of(Op::forward, Schedule::tiled, DType::f64, 1), 0);
  EXPECT_EQ(largest_bucket(Op::forward, Schedule::tiled, DType::f64), 0);
}

TEST(Table, EveryFamilyHasEveryForwardKernel) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int bucket : forward_buckets) {
      for (const Variant variant : {Variant::specialized, Variant::generic}) {
        const int number = kernel_number(forward_spec(dtype, bucket, variant));
        ASSERT_GE(number, 0) << name_of(forward_spec(dtype, bucket, variant)).text;
        for (const Member& member : members)
          EXPECT_EQ(has_kernel(member.family, number), !is_extension(member.family));
      }
    }
  }
}

TEST(Table, TilesAreWholeWaves) {
  for (int number = 0; number < kernel_count; ++number) {
    for (const Member& member : members) {
      if (!has_kernel(member.family, number)) continue;
      const int wave = facts_of(member.family).wave;
      const WorkgroupShape group = workgroup_shape(member.family, kernel_spec(number));
      EXPECT_EQ(group.threads % wave, 0);
      EXPECT_GE(group.waves_per_simd, 1);
      // Launch plans select large-smem kernels on GPUs with more shared memory than the smallest
      // member: up to 227 KiB.
      const bool large_smem = kernel_spec(number).schedule == Schedule::fused_large_smem;
      EXPECT_LE(group.dynamic_shared, large_smem ? 227 << 10 : member.machine.workgroup_shared);
      if (kernel_spec(number).op != Op::forward || kernel_spec(number).schedule != Schedule::tiled)
        continue;
      const ForwardTile tile = forward_tile(member.family, kernel_spec(number));
      EXPECT_EQ(tile.queries % (tile.threads / wave), 0);
      EXPECT_EQ(tile.keys % 16, 0);
      EXPECT_LE(tile.queries, 256);  // specialized kernels address rows of a tile with 32 bits
    }
  }
}

// Every GPU from sm_80 on has at least 99 KiB of shared memory per CTA, some no more.
TEST(Table, SharedMemoryOfSm80HoldsItsTiles) {
  for (const int bucket : forward_buckets) {
    for (const Variant variant : {Variant::specialized, Variant::generic}) {
      const KernelSpec spec = forward_spec(DType::f16, bucket, variant);
      const ForwardTile tile = forward_tile(Family::sm80, spec);
      EXPECT_LE(tile.dynamic_shared, 99 << 10);
      EXPECT_GE(tile.dynamic_shared, 2 * 2 * tile.keys * bucket * 2);  // two tiles of k and of v
    }
  }
  for (const int bucket : {64, 128}) {
    const KernelSpec spec = forward_spec(DType::f32, bucket, Variant::specialized);
    ASSERT_TRUE(has_kernel(Family::sm80, kernel_number(spec)));
    EXPECT_LE(forward_tile(Family::sm80, spec).dynamic_shared, 99 << 10);
    const KernelSpec fused{Op::backward, Schedule::fused, DType::f32, bucket, Variant::specialized};
    ASSERT_TRUE(has_kernel(Family::sm80, kernel_number(fused)));
    EXPECT_LE(backward_tile(Family::sm80, fused).dynamic_shared, 99 << 10);
  }
}

}  // namespace
}  // namespace rocflash::kernel
