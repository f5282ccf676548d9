// Kernel selection of backward: the fused kernel, with atomic or ordered dQ accumulation, or the
// deterministic kernels.
#include "gpu/plan/backward.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "problems.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Op;
using kernel::Schedule;

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

const Names atomic{"backward_preprocess_bf16", "backward_fused_bf16_128_specialized",
                   "backward_postprocess_bf16"};
const Names deterministic_kernels{"backward_preprocess_bf16", "backward_dq_bf16_128_specialized",
                                  "backward_dkdv_bf16_128_specialized"};

TEST(FusedPlan, FusedUnlessDeterministic) {
  Given g;
  EXPECT_EQ(g.kernels(), atomic);
  g.p.deterministic = true;
  EXPECT_EQ(g.kernels(), deterministic_kernels);
}

TEST(FusedPlan, DeterministicNeverAccumulatesAtomically) {
  for (const Family family :
       {Family::cdna2, Family::cdna3, Family::cdna4, Family::rdna3, Family::rdna4}) {
    for (const int d : {8, 40, 64, 96, 128, 192, 256}) {
      for (const float softcap : {0.0f, 3.0f}) {
        Given g(d);
        g.p.softcap = softcap;
        g.p.deterministic = true;
        for (const std::string& name : g.kernels(family))
          EXPECT_TRUE(name.find("fused") == name.npos && name.find("postprocess") == name.npos)
              << name;
      }
    }
  }
}

// gfx906 and gfx908 have no f32 atomic add with return to memory; gfx90a and later, gfx11, gfx12
// do.
TEST(FusedPlan, FamiliesWithF32AtomicsFuse) {
  for (const Family family :
       {Family::cdna2, Family::cdna3, Family::cdna4, Family::rdna3, Family::rdna4}) {
    Given g;
    EXPECT_EQ(g.kernels(family), atomic);
    g.p.softcap = 3;
    EXPECT_EQ(g.kernels(family)[1], "backward_fused_bf16_128_generic");
  }
  for (const Family family : {Family::gcn5, Family::cdna1}) {
    Given g;
    for (const std::string& name : g.kernels(family))
      EXPECT_EQ(name.find("fused"), name.npos) << name;
  }
}

// gfx10 accumulates dQ in order: deterministic, for any subset of gradients.
TEST(FusedPlan, OrderedAccumulationServesAnySubset) {
  for (const bool deterministic : {false, true}) {
    for (int outputs = 1; outputs < 8; ++outputs) {
      Given g;
      g.p.deterministic = deterministic;
      if ((outputs & 1) == 0) g.t.dq = {};
      if ((outputs & 2) == 0) g.t.dk = {};
      if ((outputs & 4) == 0) g.t.dv = {};
      Names names = atomic;
      if (!g.t.dq) names.pop_back();
      EXPECT_EQ(g.kernels(Family::rdna2), names) << outputs;
      g.p.softcap = 3;
      names[1] = "backward_fused_bf16_128_generic";
      EXPECT_EQ(g.kernels(Family::rdna2), names) << outputs;
    }
  }
  EXPECT_EQ(Given(192).kernels(Family::rdna2),
            Names({"backward_preprocess_bf16", "backward_dq_bf16_256_specialized",
                   "backward_dk_bf16_256_specialized", "backward_dv_bf16_256_specialized"}));
}

// The dQ accumulator, a counter per 16 queries, and the number of started workgroups. Several
// (batch, head) slices are interleaved.
TEST(FusedPlan, OrderedAccumulationNeedsCounters) {
  Given g;
  const std::int64_t sums = 2 * 8 * 1008 * 128, counters = 2 * 8 * 1008 / 16,
                     statistics = 3 * 4 * 2 * 8 * 1000;
  Plan plan;
  plan_backward(plan, g.p, g.t, at(0x100000), {Family::rdna2, 40});
  EXPECT_EQ(plan.workspace.value(), statistics + (4 * (sums + counters) + 63) / 64 * 64 + 64);
  const auto& a = plan.arguments<Op::backward, Schedule::fused>();
  EXPECT_EQ(a.dq_accum_layout, kernel::dq_accum_ordered);
  EXPECT_EQ(reinterpret_cast<std::byte*>(a.bh_counters),
            at(0x100000) + plan.workspace.value() - 64);
  EXPECT_EQ(a.work.bh_interleave, 4);
  Plan size_query;
  plan_backward(size_query, g.p, g.t, nullptr, {Family::rdna2, 40});
  EXPECT_EQ(size_query.workspace.value(), plan.workspace.value());
  Given keys;  // without dq nothing is accumulated
  keys.t.dq = {};
  Plan of_keys;
  plan_backward(of_keys, keys.p, keys.t, at(0x100000), {Family::rdna2, 40});
  EXPECT_EQ(of_keys.workspace.value(), statistics);
  EXPECT_EQ((of_keys.arguments<Op::backward, Schedule::fused>().bh_counters), nullptr);
}

// Without dq, or without both dk and dv, fusing saves no recomputation.
TEST(FusedPlan, FusedNeedsDqAndDkOrDv) {
  Given keys;
  keys.t.dq = {};
  EXPECT_EQ(keys.kernels(),
            Names({"backward_preprocess_bf16", "backward_dkdv_bf16_128_specialized"}));
  Given queries;
  queries.t.dk = queries.t.dv = {};
  EXPECT_EQ(queries.kernels(),
            Names({"backward_preprocess_bf16", "backward_dq_bf16_128_specialized"}));
  Given one;
  one.t.dv = {};
  EXPECT_EQ(one.kernels(), atomic);
}

// gfx950's LDS is larger.
TEST(FusedPlan, LargeHeadsHaveASeparateDvKernel) {
  const Names both{"backward_preprocess_bf16", "backward_fused_bf16_256_specialized",
                   "backward_dv_bf16_256_specialized", "backward_postprocess_bf16"};
  for (const Family family : {Family::cdna2, Family::cdna3}) {
    for (const int d : {136, 192, 256}) EXPECT_EQ(Given(d).kernels(family), both);
  }
  EXPECT_EQ(Given(192).kernels(Family::cdna4),
            Names({"backward_preprocess_bf16", "backward_fused_bf16_256_specialized",
                   "backward_postprocess_bf16"}));
  // dq and dk share dS: without one of them fusing saves nothing.
  Given no_dv(192);
  no_dv.t.dv = {};
  EXPECT_EQ(no_dv.kernels(),
            Names({"backward_preprocess_bf16", "backward_fused_bf16_256_specialized",
                   "backward_postprocess_bf16"}));
  Given no_dk(192);
  no_dk.t.dk = {};
  EXPECT_EQ(no_dk.kernels(), Names({"backward_preprocess_bf16", "backward_dq_bf16_256_specialized",
                                    "backward_dv_bf16_256_specialized"}));
}

TEST(FusedPlan, LargeHeadsWithOptionsHaveOneKernelPerGradient) {
  Given g(192);
  g.p.softcap = 3;
  for (const Family family : {Family::cdna2, Family::cdna3})
    EXPECT_EQ(g.kernels(family),
              Names({"backward_preprocess_bf16", "backward_dq_bf16_256_generic",
                     "backward_dk_bf16_256_generic", "backward_dv_bf16_256_generic"}));
}

// Three row statistics of one float per query and head, and the dQ accumulator with the bucket's
// columns.
TEST(FusedPlan, DqAccumulatorTakesWorkspace) {
  Given g;
  g.kernels();
  const std::int64_t queries = 2 * 8 * 1000;
  EXPECT_EQ(g.bytes, 3 * 4 * queries + 4 * 128 * queries);
  g.p.deterministic = true;
  g.kernels();
  EXPECT_EQ(g.bytes, 3 * 4 * queries);
  Given narrow(40);
  narrow.kernels();
  EXPECT_EQ(narrow.bytes, 3 * 4 * queries + 4 * 64 * queries);
}

// RDNA accumulates in blocks of 16 queries: heads are padded to whole blocks, and each packed
// sequence starts a block.
TEST(FusedPlan, DqAccumulatorOfRdnaIsInBlocks) {
  Given g;
  g.kernels(Family::rdna3);
  const std::int64_t statistics = 3 * 4 * 2 * 8 * 1000;
  EXPECT_EQ(g.bytes, statistics + 4 * 128 * 2 * 8 * 1008);
  Given packed;
  packed.p.lengths.cu_q = packed.p.lengths.cu_k = reinterpret_cast<const std::int32_t*>(0x100);
  packed.kernels(Family::rdna4);
  EXPECT_EQ(packed.bytes, statistics / 2 + 4 * 128 * 8 * (1008 + 3 * 16));
}

}  // namespace
}  // namespace rocflash::gpu
