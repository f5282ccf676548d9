// Which of NVIDIA's backward kernels a plan takes, and how much room it asks for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "given.hpp"
#include "gpu/plan/backward.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;

struct Given {
  Problem p;
  BackwardTensors t;
  explicit Given(int d, DType dtype = DType::bf16) {
    const Sizes sizes{d, d, 2, 1000, 1000, 4, 4};
    p = dense_problem(dtype, sizes);
    t = gradients(dtype, sizes);
  }
};

Names kernels_of(const Given& g, int group_shared) {
  Plan plan;
  plan_backward(plan, g.p, g.t, nullptr, {Family::sm80, 132, group_shared});
  for (const Launch& launch : plan.launches())
    EXPECT_LE(launch.shape.dynamic_shared, static_cast<unsigned>(group_shared));
  return names_of(plan);
}

TEST(Sm80Backward, LargeTilesServeGpusThatHaveRoomForThem) {
  for (const int d : {40, 64, 80, 128, 160, 256}) {
    const std::string bucket = d <= 64 ? "64" : d <= 128 ? "128" : "256";
    const std::string tail = "_bf16_" + bucket + "_plain";
    const Names narrow{"backward_delta_bf16", "backward_fused" + tail, "backward_round_bf16"},
        large{"backward_delta_bf16", "backward_fused_large" + tail, "backward_round_bf16"};
    EXPECT_EQ(kernels_of(Given(d), 99 << 10), narrow) << d;
    EXPECT_EQ(kernels_of(Given(d), 227 << 10), large) << d;
  }
}

TEST(Sm80Backward, SameBitsEveryTimeNeedNoSums) {
  Given g(128);
  g.p.deterministic = true;
  EXPECT_EQ(kernels_of(g, 227 << 10),
            (Names{"backward_delta_bf16", "backward_queries_bf16_128_plain",
                   "backward_keys_bf16_128_plain"}));
}

// f32 has one kernel for all gradients; where bits may not depend on an order, heads are large or sums short, those
// without matrix instructions serve.
TEST(Sm80Backward, F32IsFusedUpToHeadSize128) {
  for (const int d : {40, 64, 65, 128}) {
    const std::string bucket = d <= 64 ? "64" : "128";
    const std::string variant = d % 8 == 0 ? "_plain" : "_full";
    Given g(d, DType::f32);
    EXPECT_EQ(kernels_of(g, 99 << 10),
              (Names{"backward_delta_f32", "backward_fused_f32_" + bucket + variant,
                     "backward_round_f32"}));
    const std::string wide_tail = d <= 64 ? "_f32_64" : "_f32_576";
    const Names wide{"backward_wide_delta_f32", "backward_wide_queries" + wide_tail,
                     "backward_wide_dk" + wide_tail, "backward_wide_dv" + wide_tail};
    g.p.deterministic = true;
    EXPECT_EQ(kernels_of(g, 99 << 10), wide);
    g.p.deterministic = false;
    g.p.max_q = 32;
    EXPECT_EQ(kernels_of(g, 99 << 10), wide);
    g.p.max_q = 1000;
    g.p.scale = 0x1p-97f;
    EXPECT_EQ(kernels_of(g, 99 << 10), wide);
  }
}

TEST(Sm80Backward, SumsOfDqLieInWholeBlocksPerSequence) {
  constexpr std::int32_t starts[] = {0, 7, 1000};
  Given dense(128), packed(128);
  packed.p.lengths.cu_q = packed.p.lengths.cu_k = starts;  // not read
  const auto floats = [](const Given& g) {
    Plan plan;
    plan_backward(plan, g.p, g.t, nullptr, {Family::sm80, 132, 99 << 10});
    return plan.workspace.value() / 4;
  };
  EXPECT_EQ(floats(dense), 2 * 4 * 1000 + 2 * 4 * 1008 * 128);
  // The second sequence starts with block 0 + 1 and has 63 of them.
  EXPECT_GE(floats(packed), 4 * 1000 + 4 * (1 + 63) * 16 * 128);
}

}  // namespace
}  // namespace rocflash::gpu
