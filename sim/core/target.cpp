// The targets: sizes, registers and clocks from kernels/table/devices.inc, the rest by generation.
#include "core/target.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace rocflash::sim {
namespace {

// A line of ROCFLASH_MEMBER: limits of one architecture.
struct Limits {
  std::string_view arch;
  int vgprs, vgpr_granule, sgprs, waves, simds;
  u32 lds, lds_granule, workgroup_lds;
};
constexpr Limits kLimits[] = {
#define ROCFLASH_MEMBER(family, arch, ...) {#arch, __VA_ARGS__},
#include "table/devices.inc"
};

constexpr const Limits& limits_of(std::string_view arch) {
  return *std::ranges::find(kLimits, arch, &Limits::arch);
}

constexpr Target target(std::string_view arch, std::string_view card, std::string_view marketing,
                        int cus, int mhz, int xcds) {
  const Limits& limits = limits_of(arch);
  // "gfx1030": major version, minor version and stepping; the last two have one digit each.
  const int minor = arch[arch.size() - 2] - '0';
  const int major = arch.size() == 6 ? 9 : 10 + arch[4] - '0';
  const bool gfx9 = major == 9, gfx10 = major == 10, gfx12 = major == 12;
  const bool before_gfx90a = arch == "gfx906" || arch == "gfx908";
  return {.name = arch,
          .card = card,
          .marketing_name = marketing,
          .generation = gfx9    ? Generation::Gfx9
                        : gfx10 ? Generation::Gfx10
                        : gfx12 ? Generation::Gfx12
                                : Generation::Gfx11,
          .wave32 = !gfx9,
          // Before gfx90a, vector registers and accumulation registers, if any, are separate files.
          .agprs = gfx9 && !before_gfx90a,
          .packed_work_item_ids = !gfx10 && !before_gfx90a,
          .architected_scratch = gfx9 ? minor >= 4 : !gfx10,
          .architected_group_ids = gfx12,
          .mfma_flushes_denormals = arch == "gfx90a",
          .compute_units = cus,
          .simds_per_cu = limits.simds,
          .max_waves_per_simd = limits.waves,
          .vgprs_per_simd = limits.vgprs,
          .max_lds_bytes = limits.workgroup_lds,
          .clock_khz = mhz * 1000,
          .xcds = xcds,
          .major = major,
          .minor = minor};
}

// NVIDIA's lines have no limits and are left out.
constexpr bool is_amd(std::string_view arch) { return arch.starts_with("gfx"); }

constexpr std::size_t kCount = 0
#define ROCFLASH_DEVICE(arch, ...) +(is_amd(#arch) ? 1 : 0)
#include "table/devices.inc"
    ;

constexpr std::array<Target, kCount> kTargets = [] {
  std::array<Target, kCount> targets{};
  std::size_t n = 0;
#define ROCFLASH_DEVICE(arch, name, cus, mhz, xcds, ...) \
  if constexpr (is_amd(#arch))                           \
    targets[n++] = target(#arch, name, "Simulated " name, cus, mhz, xcds);
#include "table/devices.inc"
  return targets;
}();

}  // namespace

std::span<const Target> all_targets() { return kTargets; }

const Target* find_target(std::string_view name) {
  name = name.substr(0, name.find(':'));
  const auto* it = std::ranges::find(kTargets, name, &Target::name);
  return it == kTargets.end() ? nullptr : it;
}

}  // namespace rocflash::sim
