// What is planned for kernels without matrix instructions: f32, large head sizes, and the gradients of
// the bias and of ALiBi's slopes.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.hpp"
#include "given.hpp"
#include "gpu/plan/backward.hpp"
#include "gpu/plan/forward.hpp"
#include "gpu/plan/refusal.hpp"
#include "table/wide.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Operation;

struct Given {
  Given(DType dtype, int d, int dv) {
    const Sizes sizes{d, dv, 2, 200, 300, 6, 2};
    p = dense_problem(dtype, sizes);
    o.out = output(dtype, sizes);
    t = gradients(dtype, sizes);
  }

  struct Step {
    std::string kernel;
    std::uint32_t groups;
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
      found.push_back({kernel::kernel_name(l.kernel), l.shape.groups});
    return found;
  }

  Problem p;
  ForwardOutputs o;
  BackwardTensors t;
};

constexpr Family families[] = {Family::gcn5,  Family::cdna1, Family::cdna2,
                               Family::cdna3, Family::cdna4, Family::rdna2,
                               Family::rdna3, Family::rdna4, Family::sm80};

TEST(WidePlan, ServesF32AndLargeHeads) {
  for (const Family family : families) {
    const bool matrix = family == Family::sm80;  // the family computes f32 with its matrix unit
    EXPECT_EQ(is_wide(Given(DType::f32, 33, 33).p, family), !matrix);
    EXPECT_EQ(is_wide(Given(DType::f32, 128, 128).p, family), !matrix);
    EXPECT_TRUE(is_wide(Given(DType::f32, 64, 129).p, family));
    EXPECT_TRUE(is_wide(Given(DType::f16, 257, 8).p, family));
    EXPECT_TRUE(is_wide(Given(DType::bf16, 8, 512).p, family));
    EXPECT_FALSE(is_wide(Given(DType::bf16, 256, 256).p, family));
    Given small_scale(DType::f32, 64, 64);
    small_scale.p.scale = 0x1p-97f;
    EXPECT_TRUE(is_wide(small_scale.p, family));
    // Sums of few products, over columns, keys, or what a window or chunk leaves of them.
    EXPECT_TRUE(is_wide(Given(DType::f32, 32, 64).p, family));
    EXPECT_TRUE(is_wide(Given(DType::f32, 64, 32).p, family));
    EXPECT_FALSE(is_wide(Given(DType::bf16, 8, 8).p, family));
    Given few(DType::f32, 64, 64);
    few.p.max_k = 32;
    EXPECT_TRUE(is_wide(few.p, family));
    few.p.max_k = 300;
    few.p.visibility = {.left = 31, .right = 0};
    EXPECT_TRUE(is_wide(few.p, family));
    few.p.visibility = {.left = 32, .right = 0};
    EXPECT_EQ(is_wide(few.p, family), !matrix);
    few.p.visibility = {.chunk = 32};
    EXPECT_TRUE(is_wide(few.p, family));
    Given mixed(DType::f32, 64, 64);
    mixed.p.k.dtype = mixed.p.v.dtype = DType::bf16;
    EXPECT_TRUE(is_wide(mixed.p, family));
  }
}

// Blocks of 128 queries, and slices of 128 columns.
TEST(WidePlan, ForwardTakesAWorkgroupPerBlockAndSlice) {
  using Step = Given::Step;
  for (const Family family : families) {
    if (family != Family::sm80) {
      EXPECT_EQ(Given(DType::f32, 64, 40).forward(family),
                (std::vector<Step>{{"forward_wide_f32_64", 2 * 6 * 2}}));
    }
    EXPECT_EQ(Given(DType::f32, 64, 300).forward(family),
              (std::vector<Step>{{"forward_wide_f32_576", 2 * 6 * 2 * 3}}));
    EXPECT_EQ(Given(DType::bf16, 512, 512).forward(family),
              (std::vector<Step>{{"forward_wide_f32_576", 2 * 6 * 2 * 4}}));
  }
}

TEST(WidePlan, BackwardTakesOneKernelPerResult) {
  using Step = Given::Step;
  Given g(DType::f32, 512, 130);
  for (const Family family : families) {
    // 64 rows of a kind per workgroup; 128 where matrix instructions multiply f32 and registers hold two waves.
    const bool large = kernel::multiplies_floats(family) && family != Family::cdna1;
    const std::uint32_t query_blocks = large ? 2 : 4, key_blocks = large ? 3 : 5;
    EXPECT_EQ(g.backward(family),
              (std::vector<Step>{{"backward_wide_delta_f32", 2 * 6 * 1},
                                 {"backward_wide_queries_f32_576", 2 * 6 * query_blocks * 4},
                                 {"backward_wide_dk_f32_576", 2 * 2 * key_blocks * 4},
                                 {"backward_wide_dv_f32_576", 2 * 2 * key_blocks * 2}}));
    EXPECT_EQ(refusal(BackwardCall{g.p, g.t, {}}, family), "");
  }
  g.t.dq = g.t.dk = {};
  EXPECT_EQ(g.backward(Family::cdna3).size(), 2u);
}

// Tiles of 64x64 elements; a dimension with one element for all takes one tile.
TEST(WidePlan, GradientsOfOptionsComeBehindDelta) {
  Given g(DType::f32, 64, 64);
  g.p.bias = {at(0x200000), DType::f32, 360000, 60000, 300, 1};
  g.p.alibi = {at(0x300000), DType::f32, 0, 1};
  g.t.dbias = {at(0x400000), DType::f32, 0, 60000, 300, 1};
  g.t.dalibi = {at(0x500000), DType::f32, 0, 1};
  const std::vector<Given::Step> steps = g.backward(Family::rdna3);
  ASSERT_EQ(steps.size(), 7u);
  EXPECT_EQ(steps[0].kernel, "backward_wide_delta_f32");
  EXPECT_EQ(steps[1], (Given::Step{"backward_bias_f32", 6 * 4 * 5}));
  EXPECT_EQ(steps[2], (Given::Step{"backward_alibi_f32", 2 * 6 * 4}));
  EXPECT_EQ(steps[3], (Given::Step{"backward_slopes_f32", 6}));
  g.t.dbias.query_stride = 0;
  g.t.dalibi.batch_stride = 6;
  EXPECT_EQ(g.backward(Family::rdna3)[1].groups, 6u * 5);
  EXPECT_EQ(g.backward(Family::rdna3)[3].groups, 2u * 6);

  // One number per sequence, head and block of queries.
  Plan with, without;
  plan_backward(with, g.p, g.t, nullptr, {Family::sm80, 100});
  g.t.dalibi = {};
  plan_backward(without, g.p, g.t, nullptr, {Family::sm80, 100});
  EXPECT_GE(with.workspace.value() - without.workspace.value(), 2 * 6 * 4 * 4);
}

// They are computed without matrix instructions, whose sums have other last bits: delta is made for them, then again for
// the kernels of dq, dk and dv.
TEST(WidePlan, GradientsOfOptionsHaveADeltaOfTheirOwn) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Given g(dtype, 64, 64);
    g.p.bias = {at(0x200000), DType::f32, 360000, 60000, 300, 1};
    EXPECT_EQ(g.backward(Family::sm80)[0].kernel,
              dtype == DType::f32 ? "backward_delta_f32" : "backward_delta_bf16");
    g.t.dbias = {at(0x400000), DType::f32, 0, 60000, 300, 1};
    const std::vector<Given::Step> steps = g.backward(Family::sm80);
    EXPECT_EQ(steps[0].kernel, "backward_wide_delta_f32");
    EXPECT_EQ(steps[1].kernel, "backward_bias_f32");
    EXPECT_EQ(steps[2].kernel, dtype == DType::f32 ? "backward_delta_f32" : "backward_delta_bf16");
  }
}

// A launch has one dimension, whose workgroups times their threads fit into 32 bits on AMD. Kernels with one
// number per sequence and head stride over them, so that batches of any size need no more.
TEST(WidePlan, LaunchesOfManySequencesAreBounded) {
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
          EXPECT_LE(std::uint64_t{l.shape.groups} * l.shape.threads, 0xffffffffu)
              << kernel::kernel_name(l.kernel);
        const auto slopes = plan.arguments<Operation::backward_slopes>();
        EXPECT_LE(slopes.work.groups, 1 << 12);
      }
    }
  }
  // More blocks than a launch can have are refused, and the message says how many there are.
  Given g(DType::f32, 64, 64);
  g.p.lengths = {.batch = many << 8, .rows_q = 1, .rows_k = 1};
  g.p.max_q = g.p.max_k = 1;
  for (const Family family : families) {
    Plan plan;
    EXPECT_THROW(plan_forward(plan, g.p, g.o, {family, 100, 99 << 10}), Refusal);
    EXPECT_THROW(plan_backward(plan, g.p, g.t, nullptr, {family, 100, 99 << 10}), Refusal);
  }
}

// NVIDIA kernels may declare 48 KiB; a workgroup holds two sets of lines, and the weights of a tile.
TEST(WidePlan, SharedMemoryHoldsTheTiles) {
  for (const Family family : families) {
    for (const int head_size : {64, 512}) {
      const kernel::WideTile tile =
          kernel::wide_tile(family, kernel::wide_spec(Operation::forward_wide, head_size));
      const int lines = 2 * tile.depth * (tile.owned + tile.streamed + 8);
      const int weights = tile.streamed * (tile.owned + 4);
      const int most = kernel::vendor_of(family) == kernel::Vendor::nvidia ? 48 << 10 : 64 << 10;
      EXPECT_LE(4 * (lines + weights) + 20 * tile.owned, most);
      EXPECT_LE(tile.slice + 4, tile.owned + tile.streamed + 8);  // rows of v take the lines' place
    }
  }
}

}  // namespace
}  // namespace rocflash::gpu
