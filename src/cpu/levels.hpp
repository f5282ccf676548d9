// Which instruction sets a CPU can run, and which of them serves it best: pure functions of what
// the CPU says about itself.
#pragma once

#include <cstdint>
#include <string_view>

namespace rocflash::cpu {

enum class Level : std::uint8_t { baseline, avx2, avx512, avx512_bf16, amx };

// Best first, as far as there is an order.
inline constexpr Level levels[] = {Level::amx, Level::avx512_bf16, Level::avx512, Level::avx2,
                                   Level::baseline};

struct CpuTraits {
  std::string_view vendor;  // CPUID's twelve letters
  bool avx2 = false;        // with FMA and F16C
  bool avx512 = false;      // F, DQ, BW and VL; implies avx2
  bool bf16_pairs = false;  // the dot product of bf16 pairs, AVX512-BF16
  bool tiles = false;       // AMX with bf16, and the operating system lets this process use it
};

constexpr bool can_run(const CpuTraits& cpu, Level level) {
  switch (level) {
    case Level::amx:
      return cpu.avx512 && cpu.bf16_pairs && cpu.tiles;
    case Level::avx512_bf16:
      return cpu.avx512 && cpu.bf16_pairs;
    case Level::avx512:
      return cpu.avx512;
    case Level::avx2:
      return cpu.avx2;
    case Level::baseline:
      break;
  }
  return true;
}

// The dot product of pairs does two multiply-adds in each lane. AMD's CPUs issue as many of them as
// of the ordinary ones in f32, which makes it twice as fast; Intel's issue a quarter as many, which
// makes it half as fast as converting to f32. Measuring would tell them apart as well, but not with
// the same answer in every run, and results must not change from run to run.
constexpr bool has_fast_pairs(const CpuTraits& cpu) { return cpu.vendor == "AuthenticAMD"; }

constexpr Level best_level(const CpuTraits& cpu) {
  for (const Level level : levels) {
    if (level == Level::avx512_bf16 && !has_fast_pairs(cpu)) continue;
    if (can_run(cpu, level)) return level;
  }
  return Level::baseline;
}

}  // namespace rocflash::cpu
