// Which kernels backward launches: the fast ones, which add to dq in any order, or those whose bits are the
// same every time.
#include "gpu/plan/backward.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "given.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Operation;

struct Given {
  explicit Given(int d = 128, std::int64_t b = 2, std::int64_t sq = 1000, std::int64_t sk = 900,
                 std::int64_t h = 8, std::int64_t hk = 2) {
    const Sizes sizes{d, d, b, sq, sk, h, hk};
    p = dense_problem(DType::bf16, sizes);
    t = gradients(DType::bf16, sizes);
  }
  Names kernels(Family family = Family::cdna3) {
    Plan plan;
    plan_backward(plan, p, t, at(0x100000), {family, 304});
    bytes = plan.workspace.value();
    return names_of(plan);
  }

  Problem p;
  BackwardTensors t;
  std::int64_t bytes = 0;
};

const Names fast{"backward_delta_bf16", "backward_fused_bf16_128_plain", "backward_round_bf16"};
const Names same_bits{"backward_delta_bf16", "backward_queries_bf16_128_plain",
                      "backward_keys_bf16_128_plain"};

TEST(FusedPlan, OneKernelForAllGradientsUnlessBitsMustBeTheSame) {
  Given g;
  EXPECT_EQ(g.kernels(), fast);
  g.p.deterministic = true;
  EXPECT_EQ(g.kernels(), same_bits);
}

TEST(FusedPlan, DeterministicNeverAddsInAnyOrder) {
  for (const Family family :
       {Family::cdna2, Family::cdna3, Family::cdna4, Family::rdna3, Family::rdna4}) {
    for (const int d : {8, 40, 64, 96, 128, 192, 256}) {
      for (const float softcap : {0.0f, 3.0f}) {
        Given g(d);
        g.p.softcap = softcap;
        g.p.deterministic = true;
        for (const std::string& name : g.kernels(family))
          EXPECT_TRUE(name.find("fused") == name.npos && name.find("round") == name.npos) << name;
      }
    }
  }
}

// gfx906 cannot add f32 to memory; gfx11 and gfx12 can.
TEST(FusedPlan, FamiliesThatAddInMemoryFuse) {
  for (const Family family :
       {Family::cdna2, Family::cdna3, Family::cdna4, Family::rdna3, Family::rdna4}) {
    Given g;
    EXPECT_EQ(g.kernels(family), fast);
    g.p.softcap = 3;
    EXPECT_EQ(g.kernels(family)[1], "backward_fused_bf16_128_full");
  }
  for (const Family family : {Family::gcn5, Family::cdna1}) {
    Given g;
    for (const std::string& name : g.kernels(family))
      EXPECT_EQ(name.find("fused"), name.npos) << name;
  }
}

// gfx10's workgroups add to dq one after the other: the same bits every time, for whatever is wanted.
TEST(FusedPlan, InTurnOneKernelServesAll) {
  for (const bool deterministic : {false, true}) {
    for (int wanted = 1; wanted < 8; ++wanted) {
      Given g;
      g.p.deterministic = deterministic;
      if ((wanted & 1) == 0) g.t.dq = {};
      if ((wanted & 2) == 0) g.t.dk = {};
      if ((wanted & 4) == 0) g.t.dv = {};
      Names names = fast;
      if (!g.t.dq) names.pop_back();
      EXPECT_EQ(g.kernels(Family::rdna2), names) << wanted;
      g.p.softcap = 3;
      names[1] = "backward_fused_bf16_128_full";
      EXPECT_EQ(g.kernels(Family::rdna2), names) << wanted;
    }
  }
  EXPECT_EQ(Given(192).kernels(Family::rdna2),
            Names({"backward_delta_bf16", "backward_queries_bf16_256_plain",
                   "backward_dk_bf16_256_plain", "backward_dv_bf16_256_plain"}));
}

// Sums, a counter per 16 queries, and how many workgroups have started. Blocks of several planes start together.
TEST(FusedPlan, InTurnThereAreCounters) {
  Given g;
  const std::int64_t sums = 2 * 8 * 1008 * 128, counters = 2 * 8 * 1008 / 16,
                     delta = 4 * 2 * 8 * 1000;
  Plan plan;
  plan_backward(plan, g.p, g.t, at(0x100000), {Family::rdna2, 40});
  EXPECT_EQ(plan.workspace.value(), delta + (4 * (sums + counters) + 63) / 64 * 64 + 64);
  const auto& a = plan.arguments<Operation::backward_fused>();
  EXPECT_EQ(a.sums_by_lane, kernel::sums_in_turn);
  EXPECT_EQ(reinterpret_cast<std::byte*>(a.planes), at(0x100000) + plan.workspace.value() - 64);
  EXPECT_EQ(a.work.planes_together, 4);
  Plan asked;  // a question about the size, before there is memory
  plan_backward(asked, g.p, g.t, nullptr, {Family::rdna2, 40});
  EXPECT_EQ(asked.workspace.value(), plan.workspace.value());
  Given keys;  // nobody takes turns at nothing
  keys.t.dq = {};
  Plan of_keys;
  plan_backward(of_keys, keys.p, keys.t, at(0x100000), {Family::rdna2, 40});
  EXPECT_EQ(of_keys.workspace.value(), delta);
  EXPECT_EQ(of_keys.arguments<Operation::backward_fused>().planes, nullptr);
}

// Without dq there is nothing to share, and without dk and dv nothing to share it with.
TEST(FusedPlan, AllGradientsAreWantedForTheFusedKernel) {
  Given keys;
  keys.t.dq = {};
  EXPECT_EQ(keys.kernels(), Names({"backward_delta_bf16", "backward_keys_bf16_128_plain"}));
  Given queries;
  queries.t.dk = queries.t.dv = {};
  EXPECT_EQ(queries.kernels(), Names({"backward_delta_bf16", "backward_queries_bf16_128_plain"}));
  Given one;
  one.t.dv = {};
  EXPECT_EQ(one.kernels(), fast);
}

// gfx950's LDS is larger.
TEST(FusedPlan, LargeHeadsHaveDvOfItsOwn) {
  const Names both{"backward_delta_bf16", "backward_fused_bf16_256_plain",
                   "backward_dv_bf16_256_plain", "backward_round_bf16"};
  for (const Family family : {Family::cdna2, Family::cdna3}) {
    for (const int d : {136, 192, 256}) EXPECT_EQ(Given(d).kernels(family), both);
  }
  EXPECT_EQ(Given(192).kernels(Family::cdna4),
            Names({"backward_delta_bf16", "backward_fused_bf16_256_plain", "backward_round_bf16"}));
  // It shares the products of dq and dk: without one of them there is nothing to share.
  Given no_dv(192);
  no_dv.t.dv = {};
  EXPECT_EQ(no_dv.kernels(),
            Names({"backward_delta_bf16", "backward_fused_bf16_256_plain", "backward_round_bf16"}));
  Given no_dk(192);
  no_dk.t.dk = {};
  EXPECT_EQ(no_dk.kernels(), Names({"backward_delta_bf16", "backward_queries_bf16_256_plain",
                                    "backward_dv_bf16_256_plain"}));
}

TEST(FusedPlan, LargeHeadsWithOptionsHaveOneKernelPerResult) {
  Given g(192);
  g.p.softcap = 3;
  for (const Family family : {Family::cdna2, Family::cdna3})
    EXPECT_EQ(g.kernels(family), Names({"backward_delta_bf16", "backward_queries_bf16_256_full",
                                        "backward_dk_bf16_256_full", "backward_dv_bf16_256_full"}));
}

// delta, a float per query and head; and sums of dq, floats for all columns of the bucket.
TEST(FusedPlan, SumsOfDqTakeWorkspace) {
  Given g;
  g.kernels();
  const std::int64_t queries = 2 * 8 * 1000;
  EXPECT_EQ(g.bytes, 4 * queries + 4 * 128 * queries);
  g.p.deterministic = true;
  g.kernels();
  EXPECT_EQ(g.bytes, 4 * queries);
  Given narrow(40);
  narrow.kernels();
  EXPECT_EQ(narrow.bytes, 4 * queries + 4 * 64 * queries);
}

// On RDNA in blocks of 16 queries: those of a head end with a whole one, and packed sequences start one each.
TEST(FusedPlan, SumsInBlocksOfQueries) {
  Given g;
  g.kernels(Family::rdna3);
  const std::int64_t delta = 4 * 2 * 8 * 1000;
  EXPECT_EQ(g.bytes, delta + 4 * 128 * 2 * 8 * 1008);
  Given packed;
  packed.p.lengths.cu_q = packed.p.lengths.cu_k = reinterpret_cast<const std::int32_t*>(0x100);
  packed.kernels(Family::rdna4);
  EXPECT_EQ(packed.bytes, delta / 2 + 4 * 128 * 8 * (1008 + 3 * 16));
}

}  // namespace
}  // namespace rocflash::gpu
