// Families of GPUs, their members and limits, as C++ sees table/families.inc. Host and device
// compile this header.
#pragma once

#include <cstdint>

namespace rocflash::kernel {

enum class Vendor : std::uint8_t { amd, nvidia };

enum class Family : std::uint8_t {
#define ROCFLASH_FAMILY(id, ...) id,
#include "table/families.inc"
};

struct FamilyFacts {
  const char* name;  // as the C ABI, the command and the report print it
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

// The family that this one adds kernels to; itself if it stands alone.
constexpr Family base_of(Family family) {
#define ROCFLASH_ADDITION(id, to) \
  if (family == Family::id) return Family::to;
#include "table/families.inc"
  return family;
}
constexpr bool is_addition(Family family) { return base_of(family) != family; }

// Sets of families, one bit each, under the names that lines of kernels.inc use: a family's id, its
// vendor, all. Vendors' sets have no additions.
using FamilySet = std::uint32_t;
constexpr FamilySet set_of(Family family) { return FamilySet{1} << static_cast<int>(family); }
constexpr FamilySet set_of(Vendor vendor) {
  FamilySet set = 0;
  for (int n = 0; n < family_count; ++n)
    if (family_facts[n].vendor == vendor && !is_addition(static_cast<Family>(n)))
      set |= FamilySet{1} << n;
  return set;
}
constexpr bool contains(FamilySet set, Family family) { return (set & set_of(family)) != 0; }

namespace family_set {
#define ROCFLASH_FAMILY(id, ...) inline constexpr FamilySet id = set_of(Family::id);
#include "table/families.inc"
inline constexpr FamilySet amd = set_of(Vendor::amd), nvidia = set_of(Vendor::nvidia),
                           all = amd | nvidia;
}  // namespace family_set

// What a member has: families.inc explains the figures.
struct Machine {
  int wave;              // lanes that the register figures are for
  int registers;         // vector registers of a SIMD, for each of those lanes
  int register_granule;  // they are allocated in
  int scalars;           // scalar registers of a SIMD; 0: no limit
  int waves;             // most that a SIMD holds
  int simds;
  int shared;          // bytes of LDS
  int shared_granule;  // they are allocated in
  int group_shared;    // most that one workgroup may have
};

struct Member {
  const char* arch;  // "gfx942", "sm_80"
  Family family;
  Machine machine;
};

inline constexpr Member members[] = {
#define ROCFLASH_MEMBER(family, arch, ...) \
  {#arch, Family::family, {facts_of(Family::family).wave, __VA_ARGS__}},
#include "table/families.inc"
};

}  // namespace rocflash::kernel
