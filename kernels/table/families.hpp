// Families of GPUs, their members and limits: table/families.inc and table/devices.inc in C++.
// Host and device compile this header.
#pragma once

#include <cstdint>

namespace rocflash::kernel {

enum class Vendor : std::uint8_t { amd, nvidia };

enum class Family : std::uint8_t {
#define ROCFLASH_FAMILY(id, ...) id,
#include "table/families.inc"
};

struct FamilyFacts {
  const char* name;  // as the C ABI, the command line and the report print it
  Vendor vendor;
  int wave;  // lanes
};

inline constexpr FamilyFacts family_facts[] = {
#define ROCFLASH_FAMILY(id, name, vendor, wave, ...) {name, Vendor::vendor, wave},
#include "table/families.inc"
};
inline constexpr int family_count = sizeof family_facts / sizeof *family_facts;

constexpr const FamilyFacts& facts_of(Family family) {
  return family_facts[static_cast<int>(family)];
}
constexpr const char* name_of(Family family) { return facts_of(family).name; }
constexpr Vendor vendor_of(Family family) { return facts_of(family).vendor; }

// The family that an extension adds kernels to; otherwise the family itself.
constexpr Family base_of(Family family) {
#define ROCFLASH_FAMILY_EXTENSION(id, to) \
  if (family == Family::id) return Family::to;
#include "table/families.inc"
  return family;
}
constexpr bool is_extension(Family family) { return base_of(family) != family; }

// Sets of families, one bit each, under the names that lines of kernels.inc use: a family's id, its
// vendor, all, a named set of families.inc. The sets of vendors contain no extensions.
using FamilySet = std::uint32_t;
constexpr FamilySet set_of(Family family) { return FamilySet{1} << static_cast<int>(family); }
constexpr FamilySet set_of(Vendor vendor) {
  FamilySet set = 0;
  for (int n = 0; n < family_count; ++n)
    if (family_facts[n].vendor == vendor && !is_extension(static_cast<Family>(n)))
      set |= FamilySet{1} << n;
  return set;
}
constexpr bool contains(FamilySet set, Family family) { return (set & set_of(family)) != 0; }

namespace family_set {
#define ROCFLASH_FAMILY(id, ...) inline constexpr FamilySet id = set_of(Family::id);
#include "table/families.inc"
inline constexpr FamilySet amd = set_of(Vendor::amd), nvidia = set_of(Vendor::nvidia),
                           all = amd | nvidia;
#define ROCFLASH_FAMILY_SET(name, families) inline constexpr FamilySet name = families;
#include "table/families.inc"
}  // namespace family_set

// Resource limits of a member; devices.inc explains the figures.
struct Machine {
  int wave;              // lanes of the wave that the register figures refer to
  int registers;         // vector registers of a SIMD, per lane
  int register_granule;  // allocation granule
  int scalars;           // scalar registers of a SIMD; 0: no limit
  int waves;             // maximum per SIMD
  int simds;
  int shared;            // bytes of LDS
  int shared_granule;    // allocation granule
  int workgroup_shared;  // maximum per workgroup
};

struct Member {
  const char* arch;  // "gfx942", "sm_80"
  Family family;
  Machine machine;
};

inline constexpr Member members[] = {
#define ROCFLASH_MEMBER(family, arch, ...) \
  {#arch, Family::family, {facts_of(Family::family).wave, __VA_ARGS__}},
#include "table/devices.inc"
};

}  // namespace rocflash::kernel
