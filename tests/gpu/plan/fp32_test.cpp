// Launch plans of the FP32 path: f32, large head dimensions, and the gradients of bias and ALiBi
// slopes.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.hpp"
#include "gpu/dispatch/matrix_path.hpp"
#include "gpu/plan/backward.hpp"
#include "gpu/plan/forward.hpp"
#include "gpu/plan/refusal.hpp"
#include "problems.hpp"
#include "table/fp32.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Op;

struct Given {
  Given(DType dtype, int d, int dv) {
    const Sizes sizes{d, dv, 2, 200, 300, 6, 2};
    p = dense_problem(dtype, sizes);
    o.out = output(dtype, sizes);
    t = gradients(dtype, sizes);
  }

  struct Step {
    std::string kernel;
    std::uint32_t workgroups;
    bool operator==(const Step&) const = default;
  };
  std::vector<Step> forward(Family family) const {
    Plan plan;
    plan_forward(plan, p, o, {family, 100});
    return steps(plan);
  }
  std::vector<Step> backward(Family family) const {
    Plan plan;
    plan_backward(plan, p, t, at(0x100000), {family, 100});
    return steps(plan);
  }
  static std::vector<Step> steps(const Plan& plan) {
    std::vector<Step> found;
    for (const Launch& l : plan.launches())
      found.push_back({kernel::kernel_name(l.kernel), l.shape.grid_x});
    return found;
  }

  Problem p;
  ForwardOutputs o;
  BackwardTensors t;
};

bool fp32_path(const Problem& p, Family family) {
  return uses_fp32_path(p, features_of(p), family);
}

constexpr Family families[] = {Family::gcn5,  Family::cdna1, Family::cdna2,
                               Family::cdna3, Family::cdna4, Family::rdna2,
                               Family::rdna3, Family::rdna4, Family::sm80};

TEST(Fp32Plan, SelectedForF32AndLargeHeads) {
  for (const Family family : families) {
    const bool matrix = family == Family::sm80;  // it has f32 kernels with matrix cores
    EXPECT_EQ(fp32_path(Given(DType::f32, 33, 33).p, family), !matrix);
    EXPECT_EQ(fp32_path(Given(DType::f32, 128, 128).p, family), !matrix);
    EXPECT_TRUE(fp32_path(Given(DType::f32, 64, 129).p, family));
    EXPECT_TRUE(fp32_path(Given(DType::f16, 257, 8).p, family));
    EXPECT_TRUE(fp32_path(Given(DType::bf16, 8, 512).p, family));
    EXPECT_FALSE(fp32_path(Given(DType::bf16, 256, 256).p, family));
    Given small_scale(DType::f32, 64, 64);
    small_scale.p.scale = 0x1p-97f;
    EXPECT_TRUE(fp32_path(small_scale.p, family));
    // Sums of few products: columns, keys, or the visible keys of a window or chunk.
    EXPECT_TRUE(fp32_path(Given(DType::f32, 32, 64).p, family));
    EXPECT_TRUE(fp32_path(Given(DType::f32, 64, 32).p, family));
    EXPECT_FALSE(fp32_path(Given(DType::bf16, 8, 8).p, family));
    Given few(DType::f32, 64, 64);
    few.p.max_k = 32;
    EXPECT_TRUE(fp32_path(few.p, family));
    few.p.max_k = 300;
    few.p.visibility = {.left = 31, .right = 0};
    EXPECT_TRUE(fp32_path(few.p, family));
    few.p.visibility = {.left = 32, .right = 0};
    EXPECT_EQ(fp32_path(few.p, family), !matrix);
    few.p.visibility = {.chunk = 32};
    EXPECT_TRUE(fp32_path(few.p, family));
    Given mixed(DType::f32, 64, 64);
    mixed.p.k.dtype = mixed.p.v.dtype = DType::bf16;
    EXPECT_TRUE(fp32_path(mixed.p, family));
  }
}

// Blocks of 128 queries, and slices of 128 columns.
TEST(Fp32Plan, ForwardHasAWorkgroupPerBlockAndSlice) {
  using Step = Given::Step;
  for (const Family family : families) {
    if (family != Family::sm80) {
      EXPECT_EQ(Given(DType::f32, 64, 40).forward(family),
                (std::vector<Step>{{"forward_fp32_f32_64", 2 * 6 * 2}}));
    }
    EXPECT_EQ(Given(DType::f32, 64, 300).forward(family),
              (std::vector<Step>{{"forward_fp32_f32_576", 2 * 6 * 2 * 3}}));
    EXPECT_EQ(Given(DType::bf16, 512, 512).forward(family),
              (std::vector<Step>{{"forward_fp32_f32_576", 2 * 6 * 2 * 4}}));
  }
}

// One kernel for quantized K and V of all dtypes, with queries of any.
TEST(Fp32Plan, QuantizedKeysHaveOneKernel) {
  using Step = Given::Step;
  for (const Family family : families) {
    for (const DType queries : {DType::f32, DType::f16, DType::bf16}) {
      for (const DType keys :
           {DType::e4m3fn, DType::e4m3fnuz, DType::e5m2, DType::e5m2fnuz, DType::i8}) {
        Given g(queries, 64, 64);
        g.p.k.dtype = g.p.v.dtype = keys;
        EXPECT_TRUE(fp32_path(g.p, family));
        EXPECT_EQ(g.forward(family), (std::vector<Step>{{"forward_fp32_i8_576", 2 * 6 * 2}}));
      }
    }
  }
}

TEST(Fp32Plan, BackwardHasOneKernelPerGradient) {
  using Step = Given::Step;
  Given g(DType::f32, 512, 130);
  for (const Family family : families) {
    // 64 rows per workgroup; 128 with f32 matrix instructions and registers for two waves.
    const bool large = kernel::has_fp32_mfma(family) && family != Family::cdna1;
    const std::uint32_t query_blocks = large ? 2 : 4, key_blocks = large ? 3 : 5;
    EXPECT_EQ(g.backward(family),
              (std::vector<Step>{{"backward_preprocess_fp32_f32", 2 * 6 * 1},
                                 {"backward_dq_fp32_f32_576", 2 * 6 * query_blocks * 4},
                                 {"backward_dk_fp32_f32_576", 2 * 2 * key_blocks * 4},
                                 {"backward_dv_fp32_f32_576", 2 * 2 * key_blocks * 2}}));
    EXPECT_EQ(refusal(BackwardCall{g.p, g.t, {}}, family), "");
  }
  g.t.dq = g.t.dk = {};
  EXPECT_EQ(g.backward(Family::cdna3).size(), 2u);
}

// Tiles of 64x64 elements; a broadcast dimension has one tile.
TEST(Fp32Plan, GradientsOfOptionsFollowPreprocess) {
  Given g(DType::f32, 64, 64);
  g.p.bias = {at(0x200000), DType::f32, 360000, 60000, 300, 1};
  g.p.alibi = {at(0x300000), DType::f32, 0, 1};
  g.t.dbias = {at(0x400000), DType::f32, 0, 60000, 300, 1};
  g.t.dalibi = {at(0x500000), DType::f32, 0, 1};
  const std::vector<Given::Step> steps = g.backward(Family::rdna3);
  ASSERT_EQ(steps.size(), 7u);
  EXPECT_EQ(steps[0].kernel, "backward_preprocess_fp32_f32");
  EXPECT_EQ(steps[1], (Given::Step{"backward_dbias_f32", 6 * 4 * 5}));
  EXPECT_EQ(steps[2], (Given::Step{"backward_dalibi_partial_f32", 2 * 6 * 4}));
  EXPECT_EQ(steps[3], (Given::Step{"backward_dalibi_reduce_f32", 6}));
  g.t.dbias.query_stride = 0;
  g.t.dalibi.batch_stride = 6;
  EXPECT_EQ(g.backward(Family::rdna3)[1].workgroups, 6u * 5);
  EXPECT_EQ(g.backward(Family::rdna3)[3].workgroups, 2u * 6);

  // One partial sum per sequence, head and query block.
  Plan with, without;
  plan_backward(with, g.p, g.t, nullptr, {Family::sm80, 100});
  g.t.dalibi = {};
  plan_backward(without, g.p, g.t, nullptr, {Family::sm80, 100});
  EXPECT_GE(with.workspace.value() - without.workspace.value(), 2 * 6 * 4 * 4);
}

// They run on the FP32 path, whose sums round differently: preprocess runs for them in FP32 and
// again for the matrix kernels of dq, dk and dv.
TEST(Fp32Plan, GradientsOfOptionsHaveTheirOwnDelta) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Given g(dtype, 64, 64);
    g.p.bias = {at(0x200000), DType::f32, 360000, 60000, 300, 1};
    EXPECT_EQ(g.backward(Family::sm80)[0].kernel,
              dtype == DType::f32 ? "backward_preprocess_f32" : "backward_preprocess_bf16");
    g.t.dbias = {at(0x400000), DType::f32, 0, 60000, 300, 1};
    const std::vector<Given::Step> steps = g.backward(Family::sm80);
    EXPECT_EQ(steps[0].kernel, "backward_preprocess_fp32_f32");
    EXPECT_EQ(steps[1].kernel, "backward_dbias_f32");
    EXPECT_EQ(steps[2].kernel,
              dtype == DType::f32 ? "backward_preprocess_f32" : "backward_preprocess_bf16");
  }
}

// On AMD, workgroups times threads of a launch must fit in 32 bits. Kernels with one element per
// sequence and head use grid-stride loops, so batches of any size fit.
TEST(Fp32Plan, LaunchesOfManySequencesAreBounded) {
  constexpr std::int64_t many = 1 << 20;
  for (const Family family : families) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Given g(dtype, 64, 64);
      g.p.lengths = {.batch = many, .rows_q = 0, .rows_k = 1};
      g.p.max_q = 0;
      g.p.max_k = 1;
      g.p.bias = {at(0x200000), DType::f32, 0, 0, 1, 1};
      g.p.alibi = {at(0x300000), DType::f32, 6, 1};
      g.p.sinks = {at(0x600000), DType::f32, 0, 1};
      g.t.dbias = {at(0x400000), DType::f32, 0, 0, 1, 1};
      g.t.dalibi = {at(0x500000), DType::f32, 6, 1};
      g.t.dsinks = {at(0x700000), DType::f32, 0, 1};
      for (const std::int64_t queries : {0, 1}) {
        g.p.lengths.rows_q = g.p.max_q = queries;
        Plan plan;
        plan_backward(plan, g.p, g.t, nullptr, {family, 100, 99 << 10});
        plan_forward(plan, g.p, g.o, {family, 100, 99 << 10});
        ASSERT_GT(plan.launches().size(), 0u);
        for (const Launch& l : plan.launches())
          EXPECT_LE(std::uint64_t{l.shape.grid_x} * l.shape.threads, 0xffffffffu)
              << kernel::kernel_name(l.kernel);
        const auto slopes = plan.arguments<Op::backward_dalibi_reduce>();
        EXPECT_LE(slopes.work.workgroups, 1 << 12);
      }
    }
  }
  // More workgroups than a launch can have are rejected.
  Given g(DType::f32, 64, 64);
  g.p.lengths = {.batch = many << 8, .rows_q = 1, .rows_k = 1};
  g.p.max_q = g.p.max_k = 1;
  for (const Family family : families) {
    Plan plan;
    EXPECT_THROW(plan_forward(plan, g.p, g.o, {family, 100, 99 << 10}), Refusal);
    EXPECT_THROW(plan_backward(plan, g.p, g.t, nullptr, {family, 100, 99 << 10}), Refusal);
  }
}

// NVIDIA's static shared memory is at most 48 KiB: double-buffered operands and the P tile.
TEST(Fp32Plan, SharedMemoryHoldsTheTiles) {
  for (const Family family : families) {
    for (const int head_dim : {64, 512}) {
      const kernel::Fp32Tile tile =
          kernel::fp32_tile(family, kernel::fp32_spec(Op::forward, head_dim));
      const int operands = 2 * tile.depth * (tile.owned + tile.streamed + 8);
      const int p_tile = tile.streamed * (tile.owned + 4);
      const int limit = kernel::vendor_of(family) == kernel::Vendor::nvidia ? 48 << 10 : 64 << 10;
      EXPECT_LE(4 * (operands + p_tile) + 20 * tile.owned, limit);
      EXPECT_LE(tile.slice + 4, tile.owned + tile.streamed + 8);  // V reuses the operands' storage
    }
  }
}

}  // namespace
}  // namespace rocflash::gpu
