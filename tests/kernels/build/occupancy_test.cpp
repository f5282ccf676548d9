// Waves per SIMD, against LLVM's figures and against counts by hand.
#include "build/occupancy.hpp"

#include <gtest/gtest.h>

namespace rocflash::kernel {
namespace {

constexpr Usage small{64, 64, 24, 16, 0, false};

int waves(std::string_view arch, Usage usage) { return waves_per_simd(*machine_of(arch), usage); }

Usage with_registers(int wave, int registers) { return {wave, wave, registers, 16, 0, false}; }

// "; Occupancy:" of clang 22 for a kernel of 168 registers.
TEST(Occupancy, RegistersAsTheCompilerCounts) {
  for (const char* arch : {"gfx90a", "gfx942", "gfx950"}) {
    EXPECT_EQ(waves(arch, with_registers(64, 168)), 3) << arch;
  }
  EXPECT_EQ(waves("gfx906", with_registers(64, 168)), 1);
  EXPECT_EQ(waves("gfx908", with_registers(64, 84)), 3);
  EXPECT_EQ(waves("gfx1030", with_registers(32, 168)), 5);
  EXPECT_EQ(waves("gfx1100", with_registers(32, 168)), 9);
  EXPECT_EQ(waves("gfx1201", with_registers(32, 168)), 9);
  EXPECT_EQ(waves("gfx1102", with_registers(32, 168)), 5);
}

TEST(Occupancy, RegistersAreAllocatedInGranules) {
  EXPECT_EQ(waves("gfx942", with_registers(64, 128)), 4);
  EXPECT_EQ(waves("gfx942", with_registers(64, 129)), 3);
  EXPECT_EQ(waves("gfx942", with_registers(64, 512)), 1);
  EXPECT_EQ(waves("gfx1100", with_registers(32, 192)), 8);
  EXPECT_EQ(waves("gfx1100", with_registers(32, 193)), 7);
  EXPECT_EQ(waves("gfx1030", with_registers(32, 256)), 4);
}

TEST(Occupancy, Wave64TakesTwiceTheRegisters) {
  EXPECT_EQ(waves("gfx1100", with_registers(64, 96)), waves("gfx1100", with_registers(32, 192)));
}

TEST(Occupancy, WavesPerSimdAreLimited) {
  EXPECT_EQ(waves("gfx942", with_registers(64, 8)), 8);
  EXPECT_EQ(waves("gfx906", with_registers(64, 8)), 10);
  EXPECT_EQ(waves("gfx1100", with_registers(32, 8)), 16);
}

TEST(Occupancy, SgprsCountOnCdnaOnly) {
  Usage usage = small;
  usage.scalar_registers = 102;  // 112 of 800 are allocated
  EXPECT_EQ(waves("gfx942", usage), 7);
  usage.wave = usage.threads = 32;
  EXPECT_EQ(waves("gfx1030", usage), 16);
}

TEST(Occupancy, LdsLimitsWorkgroups) {
  // Eight waves per workgroup, two per SIMD: one workgroup in 64 KiB, four in 160 KiB.
  const Usage usage{64, 512, 64, 16, 40 * 1024, false};
  EXPECT_EQ(waves("gfx942", usage), 2);
  EXPECT_EQ(waves("gfx950", usage), 8);
  // Four waves per workgroup: one workgroup per compute unit, three per workgroup processor.
  EXPECT_EQ(waves("gfx1100", {32, 128, 64, 16, 40 * 1024, false}), 2);
  EXPECT_EQ(waves("gfx1100", {32, 128, 64, 16, 40 * 1024, true}), 3);
}

TEST(Occupancy, WorkgroupsThatDoNotFitHaveNone) {
  EXPECT_EQ(waves("gfx942", {64, 256, 64, 16, 64 * 1024, false}), 1);
  EXPECT_EQ(waves("gfx942", {64, 256, 64, 16, 64 * 1024 + 4, false}), 0);
  EXPECT_EQ(waves("gfx950", {64, 256, 64, 16, 64 * 1024 + 4, false}), 2);
  // 16 waves of 160 registers: a SIMD holds three, the workgroup needs four.
  EXPECT_EQ(waves("gfx942", {64, 1024, 160, 16, 0, false}), 0);
}

TEST(Occupancy, BarriersLimitSmallWorkgroups) {
  EXPECT_EQ(waves("gfx1030", {32, 64, 16, 16, 0, false}), 16);
  EXPECT_EQ(waves("gfx942", {64, 64, 16, 16, 0, false}), 8);
  EXPECT_EQ(waves("gfx942", {64, 128, 16, 16, 0, false}), 8);
}

TEST(Occupancy, KnowsTheTargetsOfTheBuild) {
  EXPECT_FALSE(machine_of("sm_80"));
  EXPECT_FALSE(machine_of("gfx900"));
  EXPECT_FALSE(machine_of("gfx1010"));
  EXPECT_FALSE(machine_of("gfx1250"));
  EXPECT_EQ(machine_of("gfx1151")->registers, 1536);
  EXPECT_EQ(machine_of("gfx1150")->registers, 1024);
}

}  // namespace
}  // namespace rocflash::kernel
