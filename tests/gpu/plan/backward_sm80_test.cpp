// Kernel selection and workspace of backward on NVIDIA GPUs before Hopper.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/plan/backward.hpp"
#include "problems.hpp"

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

Names kernels_of(const Given& g, int workgroup_shared) {
  Plan plan;
  plan_backward(plan, g.p, g.t, nullptr, {Family::sm80, 132, workgroup_shared});
  for (const Launch& launch : plan.launches())
    EXPECT_LE(launch.shape.dynamic_shared, static_cast<unsigned>(workgroup_shared));
  return names_of(plan);
}

TEST(Sm80Backward, LargeTilesNeedTheirSharedMemory) {
  for (const int d : {40, 64, 80, 128, 160, 256}) {
    const std::string bucket = d <= 64 ? "64" : d <= 128 ? "128" : "256";
    const std::string tail = "_bf16_" + bucket + "_specialized";
    const Names small{"backward_preprocess_bf16", "backward_fused" + tail,
                      "backward_postprocess_bf16"},
        large{"backward_preprocess_bf16", "backward_fused_large_smem" + tail,
              "backward_postprocess_bf16"};
    EXPECT_EQ(kernels_of(Given(d), 99 << 10), small) << d;
    EXPECT_EQ(kernels_of(Given(d), 227 << 10), large) << d;
  }
}

TEST(Sm80Backward, DeterministicNeedsNoDqAccumulator) {
  Given g(128);
  g.p.deterministic = true;
  EXPECT_EQ(kernels_of(g, 227 << 10),
            (Names{"backward_preprocess_bf16", "backward_dq_bf16_128_specialized",
                   "backward_dkdv_bf16_128_specialized"}));
}

// f32 is fused with matrix cores. Deterministic mode, large heads and short sums take the FP32
// path.
TEST(Sm80Backward, F32IsFusedUpToHeadDim128) {
  for (const int d : {40, 64, 65, 128}) {
    const std::string bucket = d <= 64 ? "64" : "128";
    const std::string variant = d % 8 == 0 ? "_specialized" : "_generic";
    Given g(d, DType::f32);
    EXPECT_EQ(kernels_of(g, 99 << 10),
              (Names{"backward_preprocess_f32", "backward_fused_f32_" + bucket + variant,
                     "backward_postprocess_f32"}));
    const std::string fp32_tail = d <= 64 ? "_f32_64" : "_f32_576";
    const Names fp32{"backward_preprocess_fp32_f32", "backward_dq_fp32" + fp32_tail,
                     "backward_dk_fp32" + fp32_tail, "backward_dv_fp32" + fp32_tail};
    g.p.deterministic = true;
    EXPECT_EQ(kernels_of(g, 99 << 10), fp32);
    g.p.deterministic = false;
    g.p.max_q = 32;
    EXPECT_EQ(kernels_of(g, 99 << 10), fp32);
    g.p.max_q = 1000;
    g.p.scale = 0x1p-97f;
    EXPECT_EQ(kernels_of(g, 99 << 10), fp32);
  }
}

TEST(Sm80Backward, DqAccumulatorHasWholeBlocksPerSequence) {
  constexpr std::int32_t cu_seqlens[] = {0, 7, 1000};
  Given dense(128), packed(128);
  packed.p.lengths.cu_q = packed.p.lengths.cu_k = cu_seqlens;  // not read
  const auto floats = [](const Given& g) {
    Plan plan;
    plan_backward(plan, g.p, g.t, nullptr, {Family::sm80, 132, 99 << 10});
    return plan.workspace.value() / 4;
  };
  EXPECT_EQ(floats(dense), 3 * 2 * 4 * 1000 + 2 * 4 * 1008 * 128);
  // The second sequence starts at block 1 and has 63 blocks.
  EXPECT_GE(floats(packed), 3 * 4 * 1000 + 4 * (1 + 63) * 16 * 128);
}

}  // namespace
}  // namespace rocflash::gpu
