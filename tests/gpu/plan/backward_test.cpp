// Launch plans of backward, without a device: kernels in order, workgroups, workspace.
#include "gpu/plan/backward.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "gpu/dispatch/matrix_path.hpp"
#include "gpu/plan/refusal.hpp"
#include "problems.hpp"
#include "table/backward.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Op;
using kernel::Variant;

struct Given {
  explicit Given(DType dtype = DType::bf16, int d = 128, int dv = 128, std::int64_t b = 2,
                 std::int64_t sq = 1000, std::int64_t sk = 900, std::int64_t h = 8,
                 std::int64_t hk = 4) {
    const Sizes sizes{d, dv, b, sq, sk, h, hk};
    p = dense_problem(dtype, sizes);
    p.deterministic = true;
    t = gradients(dtype, sizes);
  }
  void fill(Plan& plan, Family family, std::byte* workspace = at(0x100000)) const {
    plan_backward(plan, p, t, workspace, {family, 304});
  }
  Names kernels(Family family = Family::cdna3) const {
    Plan plan;
    fill(plan, family);
    return names_of(plan);
  }
  Variant variant() const { return variant_for(Op::backward_dq, p.dtype, features_of(p, t)); }

  Problem p;
  BackwardTensors t;
};

TEST(BackwardPlan, DeterministicRunsPreprocessDqAndDkdv) {
  EXPECT_EQ(Given().kernels(),
            (Names{"backward_preprocess_bf16", "backward_dq_bf16_128_specialized",
                   "backward_dkdv_bf16_128_specialized"}));
  EXPECT_EQ(Given(DType::f16, 40, 17).kernels(),
            (Names{"backward_preprocess_f16", "backward_dq_f16_64_generic",
                   "backward_dkdv_f16_64_generic"}));
  EXPECT_EQ(Given(DType::f16, 64, 64).kernels(Family::rdna3).back(),
            "backward_dkdv_f16_64_specialized");
}

TEST(BackwardPlan, SeparateDkAndDvUnderRegisterPressure) {
  EXPECT_EQ(Given(DType::f16, 192, 136).kernels(),
            (Names{"backward_preprocess_f16", "backward_dq_f16_256_specialized",
                   "backward_dk_f16_256_specialized", "backward_dv_f16_256_specialized"}));
  EXPECT_EQ(Given().kernels(Family::rdna4),
            (Names{"backward_preprocess_bf16", "backward_dq_bf16_128_specialized",
                   "backward_dk_bf16_128_specialized", "backward_dv_bf16_128_specialized"}));
}

TEST(BackwardPlan, GradientsThatAreNotRequestedAreNotComputed) {
  Given g;
  g.t.dk = g.t.dv = {};
  EXPECT_EQ(g.kernels(), (Names{"backward_preprocess_bf16", "backward_dq_bf16_128_specialized"}));
  g = Given();
  g.t.dq = g.t.dk = {};
  EXPECT_EQ(g.kernels(), (Names{"backward_preprocess_bf16", "backward_dkdv_bf16_128_specialized"}));
  g = Given(DType::f16, 256, 256);
  g.t.dq = g.t.dk = {};
  EXPECT_EQ(g.kernels(), (Names{"backward_preprocess_f16", "backward_dv_f16_256_specialized"}));
}

TEST(BackwardPlan, ZeroFillAndDsinksAreSeparateKernels) {
  Given g;
  g.p.lengths.used_k = reinterpret_cast<const std::int32_t*>(0x100);
  g.t.dsinks.data = at(0x200);
  const Names names = g.kernels();
  ASSERT_EQ(names.size(), 5u);
  EXPECT_EQ(names[0], "backward_zero_fill_f32");
  EXPECT_EQ(names[2], "backward_dsinks_f32");
}

TEST(BackwardPlan, OptionsAndUnalignedRowsSelectTheGenericKernel) {
  const std::function<void(Given&)> changes[] = {
      [](Given& g) { g.p.mask.data = at(0x100); },  [](Given& g) { g.p.bias.data = at(0x100); },
      [](Given& g) { g.p.alibi.data = at(0x100); }, [](Given& g) { g.p.softcap = 3; },
      [](Given& g) { g.p.dropout.p = 0.1f; },       [](Given& g) { g.p.scale = 0; },
      [](Given& g) { g.t.dout.data += 2; },         [](Given& g) { g.t.dq.row_stride += 4; },
      [](Given& g) { g.t.dk.head_stride += 1; },    [](Given& g) { g.t.dv.batch_stride += 7; },
      [](Given& g) { g.p.q.row_stride *= -1; },
  };
  const Given base;
  EXPECT_EQ(base.variant(), Variant::specialized);
  int n = 0;
  for (const auto& change : changes) {
    Given g;
    change(g);
    EXPECT_EQ(g.variant(), Variant::generic) << n;
    ++n;
  }
  Given sinks;  // the lse includes them
  sinks.p.sinks.data = at(0x100);
  EXPECT_EQ(sinks.variant(), Variant::specialized);
}

TEST(BackwardPlan, GridCoversTheRowsThatAKernelOwns) {
  for (const Family family : {Family::gcn5, Family::cdna1, Family::cdna2, Family::cdna3,
                              Family::cdna4, Family::rdna2, Family::rdna3, Family::rdna4}) {
    for (const int d : {64, 128, 256}) {
      const Given g(DType::f16, d, d);
      Plan plan;
      g.fill(plan, family);
      for (const Launch& launch : plan.launches()) {
        const kernel::KernelSpec& spec = kernel::kernel_spec(launch.kernel);
        EXPECT_TRUE(kernel::has_kernel(family, launch.kernel))
            << kernel::kernel_name(launch.kernel);
        const kernel::BackwardTile tile = kernel::backward_tile(family, spec);
        const bool keys = kernel::owns_keys(spec.op);
        const std::int64_t count = keys ? 900 : 1000, heads = keys ? 4 : 8;
        EXPECT_EQ(launch.shape.grid_x, (count + tile.owned - 1) / tile.owned * 2 * heads);
        EXPECT_EQ(launch.shape.threads, static_cast<std::uint32_t>(tile.threads));
      }
    }
  }
}

// delta, row max and row share: one float per query and head each, for any set of gradients.
TEST(BackwardPlan, WorkspaceHoldsTheRowStatistics) {
  Plan plan;
  const Given g(DType::f16, 64, 64, 3, 7, 5, 2, 1);
  g.fill(plan, Family::cdna3);
  EXPECT_EQ(plan.workspace.value(), 3 * ((3 * 2 * 7 * 4 + 63) / 64 * 64));
  const RowStatistic& delta = plan.arguments<Op::backward_dq>().delta;
  EXPECT_EQ(reinterpret_cast<std::byte*>(delta.data), at(0x100000));
  EXPECT_EQ(delta.batch_stride, 2 * 7);
  EXPECT_EQ(delta.head_stride, 7);
  Plan size_query;
  g.fill(size_query, Family::cdna3, nullptr);
  EXPECT_EQ(size_query.workspace.value(), plan.workspace.value());

  Given packed(DType::f16, 64, 64, 3, 7, 5, 2, 1);
  packed.p.lengths.cu_q = packed.p.lengths.cu_k = reinterpret_cast<const std::int32_t*>(0x100);
  Plan of_packed;
  packed.fill(of_packed, Family::cdna3);
  EXPECT_EQ(of_packed.workspace.value(), 3 * 64);
  EXPECT_EQ(of_packed.arguments<Op::backward_dq>().delta.batch_stride, 0);
}

// At most two floats per element of q with all gradients: never O(sq * sk).
TEST(BackwardPlan, WorkspaceIsLinearInQueries) {
  constexpr Chip chips[] = {
      {Family::gcn5, 60},   {Family::cdna1, 120},         {Family::cdna2, 104},
      {Family::cdna3, 304}, {Family::cdna4, 256},         {Family::rdna2, 80},
      {Family::rdna3, 96},  {Family::rdna4, 64},          {Family::sm80, 108, 99 << 10},
      {Family::sm80, 132},  {Family::sm80, 132, 0, true},
  };
  for (const Chip& chip : chips) {
    for (const DType dtype : {DType::f16, DType::f32}) {
      for (const int d : {64, 128, 256, 512}) {
        for (const bool deterministic : {false, true}) {
          std::int64_t before = 0;
          for (const std::int64_t s : {1 << 12, 1 << 13, 1 << 20}) {
            Given g(dtype, d, d, 2, s, s);
            g.p.deterministic = deterministic;
            g.p.alibi.data = g.p.bias.data = at(0x100);
            g.t.dalibi.data = g.t.dbias.data = g.t.dsinks.data = at(0x200);
            g.t.dbias.query_stride = s;
            g.t.dbias.key_stride = 1;
            Plan plan;
            plan_backward(plan, g.p, g.t, nullptr, chip);
            const std::int64_t bytes = plan.workspace.value();
            EXPECT_LE(bytes, 2 * 8 * s * d * 4 * 2) << s;
            if (s == 1 << 13) EXPECT_LE(bytes, 2 * before + 4096);
            before = bytes;
          }
        }
      }
    }
  }
}

TEST(BackwardPlan, DeterministicIsNotFused) {
  for (const Family family : {Family::gcn5, Family::cdna1, Family::cdna2, Family::cdna3,
                              Family::cdna4, Family::rdna3, Family::rdna4, Family::sm80}) {
    const Given g;
    EXPECT_FALSE(select(g.p, g.t, Chip{family, 304}).accumulates_dq);
  }
}

TEST(BackwardPlan, EmptyOutputsNeedNoLaunch) {
  EXPECT_TRUE(Given(DType::f16, 64, 64, 0).kernels().empty());
}

TEST(BackwardPlan, RefusalsNameTheArgument) {
  const auto why = [](const Given& g) {
    return refusal(BackwardCall{g.p, g.t, {}}, Family::rdna3);
  };
  EXPECT_EQ(why(Given()), "");
  EXPECT_EQ(why(Given(DType::f16, 256, 1)), "");
  EXPECT_EQ(why(Given(DType::f64)).substr(0, 15), "q has dtype f64");
  Given long_keys(DType::f16, 64, 64, 1, 1, std::int64_t{1} << 31);
  EXPECT_EQ(why(long_keys),
            "k has a sequence of 2147483648 rows; GPU kernels take up to 2147483647");
}

}  // namespace
}  // namespace rocflash::gpu
