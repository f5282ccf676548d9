// Every mnemonic that LLVM encodes for a target has semantics or is explicitly unsupported with a
// reason.
#include <gtest/gtest.h>

#include "core/disassemble.h"
#include "core/op.h"
#include "harness.h"

namespace rocflash::sim::test {
namespace {

class Coverage : public testing::TestWithParam<const char*> {};

TEST_P(Coverage, EveryMnemonicIsSupportedOrExplicitlyUnsupported) {
  int simulated = 0;
  std::string missing;
  for (const std::string& mnemonic : known_mnemonics(GetParam())) {
    if (find_semantics(mnemonic) != nullptr) {
      ++simulated;
      EXPECT_TRUE(unsupported_reason(mnemonic).empty() || mnemonic.starts_with("v_")) << mnemonic;
    } else if (unsupported_reason(mnemonic).empty()) {
      missing += " " + mnemonic;
    }
  }
  EXPECT_EQ(missing, "");
  EXPECT_GT(simulated, 900);
}

INSTANTIATE_TEST_SUITE_P(Targets, Coverage, testing::ValuesIn(kMainTargets),
                         [](const auto& info) { return std::string(info.param); });

TEST(Coverage, UnknownInstructionStopsTheLaunchByName) {
  AsmKernel k;
  k.target = "gfx942";
  k.body = "  v_smfmac_f32_16x16x32_f16 v[0:3], v[8:9], v[10:13], v14\n";
  const auto module = build(k);
  const auto result = launch(*module, "k", Shape{}, Arguments(u64{0}, u64{0}, u64{0}, u64{0}));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.report->fault, Fault::UnknownInstruction);
  EXPECT_NE(result.report->message.find("v_smfmac_f32_16x16x32_f16"), std::string::npos);
  EXPECT_EQ(result.report->kernel, "k");
  EXPECT_EQ(result.report->location, "k+0x0");
}

}  // namespace
}  // namespace rocflash::sim::test
