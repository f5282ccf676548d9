// A matrix product written with each family's builtins, at three optimization levels: small
// integers make the result exact in any summation order.
#include <gtest/gtest.h>

#include <random>

#include "harness.h"

namespace rocflash::sim::test {
namespace {

constexpr const char* kSource = ROCFLASH_SIM_TEST_SOURCE "/kernels/gemm.hip";

void multiply(const std::vector<u8>& code, const std::string& target) {
  constexpr u32 kN = 48;
  constexpr u32 kK = 64;
  const auto module = load(code, target);
  std::mt19937 random(17);
  std::vector<f16> a(kN * kK);
  std::vector<f16> b(kN * kK);
  for (f16& x : a) x = f16(int(random() % 21) - 10);
  for (f16& x : b) x = f16(int(random() % 21) - 10);
  Buffer<f16> ab(a);
  Buffer<f16> bb(b);
  Buffer<float> c(kN * kN);
  Shape shape;
  shape.grid[0] = shape.grid[1] = kN / 16;
  shape.block[0] = target.starts_with("gfx9") ? 64 : 32;
  const auto result =
      launch(*module, "gemm", shape, Arguments(ab.data(), bb.data(), c.data(), i32(kN), i32(kK)));
  ASSERT_TRUE(result.ok()) << result.report->text();
  for (u32 i = 0; i < kN; ++i) {
    for (u32 j = 0; j < kN; ++j) {
      float sum = 0;
      for (u32 k = 0; k < kK; ++k) sum += float(a[i * kK + k]) * float(b[j * kK + k]);
      ASSERT_EQ(c[i * kN + j], sum) << i << " " << j;
    }
  }
}

class Gemm : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(Gemm, IsExactOnIntegers) {
  const auto [target, level] = GetParam();
  multiply(compile_hip(kSource, target, level), target);
}

// Every member of the families: WMMA or dot products from the family's assembly.
TEST(Gemm, IsExactOnEveryFamilyMember) {
  for (const char* member : kRdnaMembers) {
    SCOPED_TRACE(member);
    multiply(compile_member(kSource, member, "-O3"), member);
  }
}

std::string gemm_name(const testing::TestParamInfo<std::tuple<const char*, const char*>>& info) {
  return std::string(std::get<0>(info.param)) + "_" + (std::get<1>(info.param) + 1);
}
INSTANTIATE_TEST_SUITE_P(All, Gemm,
                         testing::Combine(testing::ValuesIn(kMainTargets),
                                          testing::Values("-O0", "-O1", "-O3")),
                         gemm_name);

}  // namespace
}  // namespace rocflash::sim::test
