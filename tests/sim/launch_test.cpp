// The contract of a launch: ids, partial waves, arguments, dynamic LDS, global variables,
// workgroups that wait for each other, preloaded arguments and offload bundles.
#include <gtest/gtest.h>

#include "harness.h"

namespace rocflash::sim::test {
namespace {

class Launch : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Module> module(const std::string& flags = "-O2") {
    return load(compile_hip(ROCFLASH_SIM_TEST_SOURCE "/kernels/launch.hip", GetParam(), flags),
                GetParam());
  }
};

TEST_P(Launch, GivesEveryWorkItemItsIds) {
  // 7 * 5 * 3 = 105 work-items: the last wave is partial on every target.
  for (const char* flags : {"-O0", "-O2"}) {
    const auto m = module(flags);
    constexpr u32 kItems = 105;
    Buffer<u32> out(kItems * 12);
    Shape shape{{3, 2, 2}, {7, 5, 3}, 0};
    const auto result = launch(*m, "identities", shape, Arguments(out.data()));
    ASSERT_TRUE(result.ok()) << result.report->text();
    for (u32 group = 0; group < 12; ++group) {
      for (u32 item = 0; item < kItems; ++item) {
        const u32 want = group % 3 | group / 3 % 2 << 4 | group / 6 << 8 | item % 7 << 12 |
                         item / 7 % 5 << 20 | item / 35 << 28;
        ASSERT_EQ(out[group * kItems + item], want) << group << " " << item;
      }
    }
  }
}

TEST_P(Launch, HasDynamicLds) {
  const auto m = module();
  Buffer<u32> out(100);
  Shape shape{{1, 1, 1}, {100, 1, 1}, 400};
  auto result = launch(*m, "dynamic_lds", shape, Arguments(out.data()));
  ASSERT_TRUE(result.ok()) << result.report->text();
  for (u32 i = 0; i < 100; ++i) ASSERT_EQ(out[i], (99 - i) * 3);
  shape.dynamic_lds = 396;
  result = launch(*m, "dynamic_lds", shape, Arguments(out.data()));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.report->fault, Fault::LdsOutOfBounds);
  shape.dynamic_lds = 1 << 20;
  EXPECT_THROW(launch(*m, "dynamic_lds", shape, Arguments(out.data())), std::invalid_argument);
}

TEST_P(Launch, WorkgroupsMayWaitForLaterOnes) {
  const auto m = module();
  constexpr u32 kGroups = 9;
  Buffer<u32> counter(1), out(kGroups * 64);
  counter.fill(0);
  Shape shape{{kGroups, 1, 1}, {64, 1, 1}, 0};
  const auto result =
      launch(*m, "grid_barrier", shape, Arguments(counter.data(), out.data(), kGroups));
  ASSERT_TRUE(result.ok()) << result.report->text();
  for (u32 i = 0; i < kGroups * 64; ++i) ASSERT_EQ(out[i], kGroups);
}

TEST_P(Launch, LaysArgumentsOut) {
  for (const char* flags : {"-O2", "-O2 -mllvm -amdgpu-kernarg-preload-count=8"}) {
    const auto m = module(flags);
    Buffer<u32> out(6);
    const auto result = launch(
        *m, "many_arguments", Shape{},
        Arguments(out.data(), u8{200}, u16{60000}, u32{123456789}, u64{77} << 32, 9.5f, 1000.25));
    ASSERT_TRUE(result.ok()) << flags << "\n" << result.report->text();
    EXPECT_EQ(out.values(), (std::vector<u32>{200, 60000, 123456789, 77, 9, 1000})) << flags;
  }
}

TEST_P(Launch, ReachesGlobalVariables) {
  const auto m = module();
  Buffer<u32> out(64);
  auto result = launch(*m, "globals", Shape{}, Arguments(out.data()));
  ASSERT_TRUE(result.ok()) << result.report->text();
  for (u32 i = 0; i < 64; ++i) ASSERT_EQ(out[i], (i & 3) * 11 + 11 + 5 + (i >> 2 & 3));
  const Symbol* symbol = m->object().find_variable("table");
  ASSERT_NE(symbol, nullptr);
  reinterpret_cast<u32*>(symbol->address)[2] = 1000;
  result = launch(*m, "globals", Shape{}, Arguments(out.data()));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(out[2], 1005u);
}

INSTANTIATE_TEST_SUITE_P(Targets, Launch, testing::ValuesIn(kMainTargets),
                         [](const auto& info) { return std::string(info.param); });

TEST(LaunchErrors, InvalidConfigurationsAreRejected) {
  AsmKernel k;
  k.body = "  s_nop 0\n";
  const auto module = build(k);
  Shape shape;
  shape.block[0] = 2048;
  const Arguments none(u64{0}, u64{0}, u64{0}, u64{0});
  EXPECT_THROW(launch(*module, "k", shape, none), std::invalid_argument);
  shape.block[0] = 64;
  shape.grid[1] = 0;
  EXPECT_THROW(launch(*module, "k", shape, none), std::invalid_argument);
}

}  // namespace
}  // namespace rocflash::sim::test
