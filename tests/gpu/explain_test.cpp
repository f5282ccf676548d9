// Explanations of kernel selection: launches in order, and a reason for each rejected candidate.
#include "gpu/explain.hpp"

#include <gtest/gtest.h>

#include <string>

#include "core/calls.hpp"
#include "gpu/dispatch/candidates.hpp"
#include "gpu/plan/listing.hpp"
#include "gpu/plan/problems.hpp"

namespace rocflash::gpu {
namespace {

struct Given {
  explicit Given(const Sizes& sizes = {}, DType dtype = DType::bf16) {
    p = dense_problem(dtype, sizes);
    p.caches = sizes.b;
    o.out = output(dtype, sizes);
    t = gradients(dtype, sizes);
  }
  Explanation forward(const char* arch) const {
    return explain(ForwardCall{p, o, {}}, *chip_of(arch));
  }
  Explanation decode(const char* arch) const {
    return explain(DecodeCall{{p, o, {}}, {}}, *chip_of(arch));
  }
  Explanation backward(const char* arch) const {
    return explain(BackwardCall{p, t, {}}, *chip_of(arch));
  }
  Problem p;
  ForwardOutputs o;
  BackwardTensors t;
};

std::string reason_of(const Explanation& e, const std::string& kernel) {
  for (const ExplainedRejection& r : e.rejected)
    if (r.kernel.name == kernel) return r.reason;
  return {};
}

TEST(Explain, SpecializedKernelsAreRejectedForOptions) {
  Given g;
  g.p.softcap = 3;
  g.p.dropout.p = 0.5f;
  const Explanation e = g.forward("gfx942");
  ASSERT_EQ(e.launches.size(), 1u);
  EXPECT_EQ(e.launches[0].kernel.name, "forward_bf16_128_generic");
  EXPECT_EQ(e.launches[0].family, "cdna3");
  EXPECT_EQ(e.launches[0].threads, 256u);
  EXPECT_EQ(reason_of(e, "forward_bf16_128_specialized"), "does not support softcap, dropout");
  EXPECT_EQ(reason_of(e, "decode_bf16_128"),
            "more than 64 queries: forward reads K and V less often");
}

TEST(Explain, DecodeHasSplitsAndWorkspace) {
  const Given g({.b = 1, .sq = 1, .sk = 131072, .h = 32, .hk = 8});
  const Explanation e = g.decode("sm_90");
  ASSERT_EQ(e.launches.size(), 2u);
  EXPECT_EQ(e.launches[0].kernel.name, "decode_splitkv_bf16_128");
  EXPECT_EQ(e.launches[0].family, "hopper");
  EXPECT_EQ(e.launches[1].kernel.name, "combine_pdl_f32");
  EXPECT_EQ(e.launches[1].kernel.operation, "combine");
  EXPECT_EQ(e.launches[1].kernel.schedule, "pdl");
  EXPECT_EQ(e.splits, 33);
  EXPECT_EQ(e.workspace, 33 * 32 * (128 + 1) * 4);
  EXPECT_FALSE(reason_of(e, "decode_cluster_bf16_128").empty());
}

TEST(Explain, OlderNvidiaDevicesLackSm90) {
  const Given g, few({.b = 1, .sq = 1, .sk = 4096, .h = 32, .hk = 8});
  const std::string reason = "needs an sm_90 device";
  EXPECT_EQ(reason_of(g.forward("sm_80"), "forward_warp_specialized_bf16_128_specialized"), reason);
  EXPECT_EQ(reason_of(g.backward("sm_80"), "backward_warp_specialized_bf16_128_specialized"),
            reason);
  EXPECT_EQ(reason_of(few.decode("sm_80"), "decode_cluster_bf16_128"), reason);
}

TEST(Explain, DeterministicRejectsAtomicAccumulation) {
  Given g;
  g.p.deterministic = true;
  const Explanation e = g.backward("gfx942");
  ASSERT_EQ(e.launches.size(), 3u);
  EXPECT_EQ(reason_of(e, "backward_fused_bf16_128_specialized"),
            "accumulates dq with atomics, which is not deterministic");
}

TEST(Explain, RefusedCallsHaveNoLaunches) {
  Given g({}, DType::f64);
  const Explanation e = g.forward("gfx942");
  EXPECT_EQ(e.refusal.substr(0, 15), "q has dtype f64");
  EXPECT_TRUE(e.launches.empty());
}

TEST(Explain, ArchitecturesWithoutHardware) {
  EXPECT_EQ(chip_of("gfx942")->units, 304);
  EXPECT_EQ(chip_of("gfx942:sramecc+:xnack-")->family, kernel::Family::cdna3);
  EXPECT_EQ(chip_of("gfx1100")->units, 48);  // WGPs
  EXPECT_EQ(chip_of("gfx942", 20)->units, 20);
  EXPECT_TRUE(chip_of("sm_90")->has_sm90);
  EXPECT_EQ(chip_of("sm_90")->family, kernel::Family::sm80);
  EXPECT_FALSE(chip_of("sm_80")->has_sm90);
  EXPECT_EQ(chip_of("sm_89", 128)->family, kernel::Family::sm80);
  for (const char* arch : {"", "gfx000", "sm_70", "sm_89"}) EXPECT_FALSE(chip_of(arch)) << arch;
}

// Every listed call on every family: a plan, or a refusal, and no rejection without text.
TEST(Explain, EveryOperationOnEveryFamily) {
  const std::vector<ListedChip> chips = listed_chips();
  int n = 0;
  for (const ListedCall& c : listed_calls()) {
    if (++n % 16 != 0) continue;  // a sample
    for (const ListedChip& chip : chips) {
      const ForwardCall forward{c.problem, c.outputs, {}};
      const Explanation e = c.call == Call::forward ? explain(forward, chip.chip)
                            : c.call == Call::decode
                                ? explain(DecodeCall{forward, c.append}, chip.chip)
                                : explain(BackwardCall{c.problem, c.tensors, {}}, chip.chip);
      for (const ExplainedRejection& r : e.rejected) {
        EXPECT_FALSE(r.kernel.name.empty()) << c.name;
        EXPECT_FALSE(r.reason.empty()) << c.name;
        EXPECT_NE(r.reason, "does not support ") << c.name << " on " << chip.name << r.kernel.name;
        EXPECT_NE(r.reason, text_of(Reason::preferred)) << c.name;
        for (const ExplainedLaunch& launch : e.launches)
          EXPECT_NE(launch.kernel.name, r.kernel.name) << c.name << " on " << chip.name;
      }
    }
  }
}

}  // namespace
}  // namespace rocflash::gpu
