// The table of targets. Family members differ in size only, so each row names its family's traits.
#include "core/target.h"

#include <algorithm>
#include <array>

namespace rocflash::sim {
namespace {

constexpr Target cdna(std::string_view name, std::string_view marketing, int cus, int clock,
                      u32 lds, bool architected, bool flush, int minor) {
  return {name,        marketing, Generation::Gfx9,
          false,       true,      true,
          architected, false,     flush,
          cus,         4,         8,
          512,         lds,       clock,
          9,           minor};
}

// Before gfx90a: vector registers and accumulation registers, if any, are files of their own.
constexpr Target gcn(std::string_view name, std::string_view marketing, int cus, int clock) {
  return {name,  marketing, Generation::Gfx9,
          false, false,     false,
          false, false,     false,
          cus,   4,         10,
          256,   65536,     clock,
          9,     0};
}

constexpr Target rdna(std::string_view name, std::string_view marketing, Generation generation,
                      int cus, int clock, int vgprs, int minor) {
  const bool gfx10 = generation == Generation::Gfx10;
  const int major = gfx10 ? 10 : generation == Generation::Gfx11 ? 11 : 12;
  return {
      name,  marketing, generation, true, false, !gfx10, !gfx10, generation == Generation::Gfx12,
      false, cus,       2,          16,   vgprs, 65536,  clock,  major,
      minor};
}

constexpr Generation k10 = Generation::Gfx10;
constexpr Generation k11 = Generation::Gfx11;
constexpr Generation k12 = Generation::Gfx12;

constexpr std::array kTargets = {
    gcn("gfx906", "Simulated MI50", 60, 1725000),
    gcn("gfx908", "Simulated MI100", 120, 1502000),
    cdna("gfx90a", "Simulated MI210", 104, 1700000, 65536, false, true, 0),
    cdna("gfx942", "Simulated MI300X", 304, 2100000, 65536, true, false, 4),
    cdna("gfx950", "Simulated MI355X", 256, 2400000, 163840, true, false, 5),
    rdna("gfx1030", "Simulated RX 6900 XT", k10, 80, 2250000, 1024, 3),
    rdna("gfx1031", "Simulated RX 6700 XT", k10, 40, 2580000, 1024, 3),
    rdna("gfx1032", "Simulated RX 6600 XT", k10, 32, 2590000, 1024, 3),
    rdna("gfx1033", "Simulated gfx1033", k10, 8, 1600000, 1024, 3),
    rdna("gfx1034", "Simulated RX 6500 XT", k10, 16, 2820000, 1024, 3),
    rdna("gfx1035", "Simulated 680M", k10, 12, 2400000, 1024, 3),
    rdna("gfx1036", "Simulated gfx1036", k10, 2, 2200000, 1024, 3),
    rdna("gfx1100", "Simulated RX 7900 XTX", k11, 96, 2500000, 1536, 0),
    rdna("gfx1101", "Simulated RX 7800 XT", k11, 60, 2430000, 1536, 0),
    rdna("gfx1102", "Simulated RX 7600", k11, 32, 2660000, 1024, 0),
    rdna("gfx1103", "Simulated 780M", k11, 12, 2700000, 1024, 0),
    rdna("gfx1150", "Simulated 890M", k11, 16, 2900000, 1024, 5),
    rdna("gfx1151", "Simulated 8060S", k11, 40, 2900000, 1536, 5),
    rdna("gfx1152", "Simulated 860M", k11, 8, 2800000, 1024, 5),
    rdna("gfx1153", "Simulated gfx1153", k11, 4, 2800000, 1024, 5),
    rdna("gfx1200", "Simulated RX 9060 XT", k12, 32, 3130000, 1536, 0),
    rdna("gfx1201", "Simulated RX 9070 XT", k12, 64, 2970000, 1536, 0),
};

}  // namespace

std::span<const Target> all_targets() { return kTargets; }

const Target* find_target(std::string_view name) {
  name = name.substr(0, name.find(':'));
  const auto* it = std::ranges::find(kTargets, name, &Target::name);
  return it == kTargets.end() ? nullptr : it;
}

}  // namespace rocflash::sim
