// Selection of an instruction set from CPUID.
#include "cpu/isa_levels.hpp"

#include <gtest/gtest.h>

namespace rocflash::cpu {
namespace {

constexpr CpuTraits old{"GenuineIntel", false, false, false};
constexpr CpuTraits haswell{"GenuineIntel", true, false, false};
constexpr CpuTraits skylake{"GenuineIntel", true, true, false};
constexpr CpuTraits cooper_lake{"GenuineIntel", true, true, true};
constexpr CpuTraits sapphire_rapids{"GenuineIntel", true, true, true, true};
constexpr CpuTraits zen_4{"AuthenticAMD", true, true, true};

TEST(Levels, SelectsTheFastestSupportedLevel) {
  EXPECT_EQ(best_level(old), Level::baseline);
  EXPECT_EQ(best_level(haswell), Level::avx2);
  EXPECT_EQ(best_level(skylake), Level::avx512);
  EXPECT_EQ(best_level(zen_4), Level::avx512_bf16);
  EXPECT_EQ(best_level(sapphire_rapids), Level::amx);
}

// VDPBF16PS is slower there than conversion to f32, but can be selected by name.
TEST(Levels, AvoidsSlowBf16Dot) {
  EXPECT_EQ(best_level(cooper_lake), Level::avx512);
  EXPECT_TRUE(can_run(cooper_lake, Level::avx512_bf16));
}

TEST(Levels, RunsOnlySupportedLevels) {
  for (const CpuTraits& cpu : {old, haswell, skylake, cooper_lake, sapphire_rapids, zen_4}) {
    EXPECT_TRUE(can_run(cpu, Level::baseline));
    EXPECT_TRUE(can_run(cpu, best_level(cpu)));
    EXPECT_EQ(can_run(cpu, Level::avx2), cpu.avx2);
    EXPECT_EQ(can_run(cpu, Level::avx512), cpu.avx512);
    EXPECT_EQ(can_run(cpu, Level::avx512_bf16), cpu.avx512 && cpu.bf16_dot);
    EXPECT_EQ(can_run(cpu, Level::amx), cpu.avx512 && cpu.bf16_dot && cpu.tiles);
  }
}

}  // namespace
}  // namespace rocflash::cpu
