// ISA levels that a CPU supports, and the fastest of them: pure functions of CPUID's results.
#pragma once

#include <cstdint>
#include <string_view>

namespace rocflash::cpu {

enum class Level : std::uint8_t { baseline, avx2, avx512, avx512_bf16, amx };

// Best first.
inline constexpr Level levels[] = {Level::amx, Level::avx512_bf16, Level::avx512, Level::avx2,
                                   Level::baseline};

struct CpuTraits {
  std::string_view vendor;  // CPUID vendor string
  bool avx2 = false;        // with FMA and F16C
  bool avx512 = false;      // F, DQ, BW and VL; implies avx2
  bool bf16_dot = false;    // AVX512-BF16: VDPBF16PS
  bool tiles = false;       // AMX with bf16, permitted by the operating system
};

constexpr bool can_run(const CpuTraits& cpu, Level level) {
  switch (level) {
    case Level::amx:
      return cpu.avx512 && cpu.bf16_dot && cpu.tiles;
    case Level::avx512_bf16:
      return cpu.avx512 && cpu.bf16_dot;
    case Level::avx512:
      return cpu.avx512;
    case Level::avx2:
      return cpu.avx2;
    case Level::baseline:
      break;
  }
  return true;
}

// VDPBF16PS does two multiply-adds per lane. AMD CPUs issue it at the rate of f32 FMA, which
// doubles throughput. Intel CPUs issue a quarter as many, half the throughput of converting to f32.
// A measurement could tell them apart too, but not reproducibly, and results must not change from
// run to run.
constexpr bool has_fast_bf16_dot(const CpuTraits& cpu) { return cpu.vendor == "AuthenticAMD"; }

constexpr Level best_level(const CpuTraits& cpu) {
  for (const Level level : levels) {
    if (level == Level::avx512_bf16 && !has_fast_bf16_dot(cpu)) continue;
    if (can_run(cpu, level)) return level;
  }
  return Level::baseline;
}

}  // namespace rocflash::cpu
