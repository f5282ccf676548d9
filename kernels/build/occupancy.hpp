// Occupancy of a kernel on an AMD GPU in waves per SIMD, from the limits in table/devices.inc.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>

#include "table/families.hpp"

namespace rocflash::kernel {

// Empty for architectures that devices.inc does not list, and for NVIDIA, where the driver decides
// on registers.
constexpr std::optional<Machine> machine_of(std::string_view arch) {
  for (const Member& member : members) {
    if (arch == member.arch && vendor_of(member.family) == Vendor::amd) return member.machine;
  }
  return std::nullopt;
}

struct Usage {
  int wave;              // lanes
  int threads;           // per workgroup
  int vector_registers;  // per lane, including AGPRs
  int scalar_registers;  // per wave
  int shared;            // bytes of LDS per workgroup
  bool both_units;       // RDNA, WGP mode: the workgroup runs on both units of a WGP
};

// Waves per SIMD, rounded down where workgroups fill SIMDs unevenly; at least 1 if a workgroup
// fits, else 0.
constexpr int waves_per_simd(const Machine& machine, const Usage& usage) {
  const auto rounded_up = [](int x, int step) { return (x + step - 1) / step * step; };
  // wave64 on a wave32 register file takes two rows per register.
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
  if (usage.shared > machine.workgroup_shared) return 0;
  if (usage.shared > 0) {
    groups =
        std::min(groups, machine.shared * units / rounded_up(usage.shared, machine.shared_granule));
  }
  // A unit has 16 barriers; a workgroup of one wave needs none.
  if (group_waves > 1) groups = std::min(groups, 16 * units);
  if (groups == 0) return 0;
  return std::clamp(groups * group_waves / (machine.simds * units), 1, machine.waves);
}

}  // namespace rocflash::kernel
