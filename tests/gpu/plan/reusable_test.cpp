// Reusable plans: patched arguments are those of a plan for the same addresses.
#include "gpu/plan/reusable.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "listing.hpp"
#include "problems.hpp"

namespace rocflash::gpu {
namespace {

// A sample of all calls and devices; ROCFLASH_ALL_PLANS=1 takes all.
TEST(ReusablePlan, ArgumentsEqualThoseOfAPlan) {
  const bool all = std::getenv("ROCFLASH_ALL_PLANS") != nullptr;
  const std::vector<ListedChip> chips = listed_chips();
  std::size_t n = 0, launches = 0;
  for (const ListedCall& call : listed_calls()) {
    for (const ListedChip& chip : chips) {
      constexpr std::size_t step = 23;  // a prime: it visits all calls and devices
      if (!all && n++ % step != 0) continue;
      const auto [reused, planned] = reused_plan_texts(call, chip.chip);
      EXPECT_EQ(reused, planned) << call.name << " on " << chip.name;
      launches += planned.find('[') != planned.npos;
    }
  }
  EXPECT_GT(launches, 500u);
}

TEST(ReusablePlan, DropoutSeedsAndWorkspaceAreValuesOfARun) {
  Problem p = dense_problem(DType::bf16, {});
  p.dropout = {.p = 0.5f, .threshold = 1 << 15, .seed = 1, .offset = 2};
  const BackwardTensors t = gradients(DType::bf16, {});
  const Chip chip{kernel::Family::cdna3, 304, 65536};
  const ReusablePlan plan(BackwardCall{p, t, {}}, {}, chip);
  ArgumentValues values;
  values[Argument::dropout_seed] = 0x123456789abcdef0;
  values[Argument::dropout_offset] = 0xfedcba9876543210;
  values[Argument::workspace] = 0x40;
  int launches = 0;
  plan.for_each_launch(values, [&](const Launch& launch) {
    const auto& a = *static_cast<const kernel::BackwardArguments*>(launch.arguments);
    EXPECT_EQ(a.problem.dropout.seed, 0x123456789abcdef0u);
    EXPECT_EQ(a.problem.dropout.offset, 0xfedcba9876543210u);
    EXPECT_EQ(a.problem.dropout.p, 0.5f);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.delta.data), 0x40u);
    EXPECT_GT(reinterpret_cast<std::uintptr_t>(a.row_max.data), 0x40u);
    EXPECT_LT(reinterpret_cast<std::uintptr_t>(a.row_max.data),
              0x40u + static_cast<std::uintptr_t>(plan.workspace().value()));
    EXPECT_EQ(a.problem.q.data, nullptr);
    ++launches;
  });
  EXPECT_GT(launches, 1);
}

}  // namespace
}  // namespace rocflash::gpu
