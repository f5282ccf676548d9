// How many waves a SIMD of an AMD GPU can hold of a kernel. The sizes are LLVM's (AMDGPUBaseInfo)
// and the ISA manuals'.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>

namespace rocflash::kernel {

// What a compute unit of CDNA has, or half a workgroup processor of RDNA.
struct Machine {
  int wave;              // lanes that the register figures are for
  int registers;         // vector registers of a SIMD, for each of those lanes
  int register_granule;  // they are given out in
  int scalars;           // scalar registers of a SIMD; 0: as many as all waves want
  int waves;             // most that a SIMD holds
  int simds;
  int shared;          // bytes of LDS
  int shared_granule;  // they are given out in
  int group_shared;    // most that one workgroup may have
};

constexpr std::optional<Machine> machine_of(std::string_view arch) {
  constexpr int kilobyte = 1024;
  if (arch == "gfx90a" || arch == "gfx942") {
    return Machine{64, 512, 8, 800, 8, 4, 64 * kilobyte, 512, 64 * kilobyte};
  }
  if (arch == "gfx950") return Machine{64, 512, 8, 800, 8, 4, 160 * kilobyte, 1280, 160 * kilobyte};
  if (!arch.starts_with("gfx1")) return std::nullopt;
  // RDNA3 and 4 come with two sizes of the register file.
  const bool large =
      arch == "gfx1100" || arch == "gfx1101" || arch == "gfx1151" || arch.starts_with("gfx120");
  if (!large && !arch.starts_with("gfx103") && !arch.starts_with("gfx11")) return std::nullopt;
  return Machine{32,   large ? 1536 : 1024, large ? 24 : 16, 0, 16, 2, 64 * kilobyte,
                 1024, 64 * kilobyte};
}

struct Usage {
  int wave;              // lanes
  int threads;           // of a workgroup
  int vector_registers;  // of a lane, accumulation registers counted in
  int scalar_registers;  // of a wave
  int shared;            // bytes of LDS of a workgroup
  bool both_units;  // RDNA: the workgroup runs on a whole workgroup processor, two of the units
                    // above
};

// Waves a SIMD, rounded down where a workgroup leaves SIMDs unequal; at least 1 if a workgroup fits
// at all, else 0.
constexpr int waves_per_simd(const Machine& machine, const Usage& usage) {
  const auto rounded_up = [](int x, int step) { return (x + step - 1) / step * step; };
  // A wave of twice the lanes takes two rows of the register file for each register.
  const int rows = usage.wave / machine.wave;
  const int registers =
      rounded_up(std::max(usage.vector_registers, 1) * rows, machine.register_granule);
  int waves = std::min(machine.waves, machine.registers / registers);
  if (machine.scalars > 0) {
    waves = std::min(waves, machine.scalars / rounded_up(std::max(usage.scalar_registers, 1), 16));
  }

  const int units = usage.both_units ? 2 : 1;
  const int group_waves = rounded_up(usage.threads, usage.wave) / usage.wave;
  int groups = waves * machine.simds * units / group_waves;
  if (usage.shared > machine.group_shared) return 0;
  if (usage.shared > 0) {
    groups =
        std::min(groups, machine.shared * units / rounded_up(usage.shared, machine.shared_granule));
  }
  // A unit keeps track of 16 barriers; a workgroup of one wave needs none.
  if (group_waves > 1) groups = std::min(groups, 16 * units);
  if (groups == 0) return 0;
  return std::clamp(groups * group_waves / (machine.simds * units), 1, machine.waves);
}

}  // namespace rocflash::kernel
