// Performance counters of a launch.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "core/op.h"
#include "core/wave.h"

namespace rocflash::sim {

struct Counters {
  std::string kernel;
  std::string target;
  u64 workgroups = 0;
  u64 waves = 0;
  std::array<u64, kInstructionClasses> by_class{};
  u64 instructions = 0;
  // Issue cycles by class, summed over all waves; matrix cycles included.
  std::array<u64, kInstructionClasses> issue_cycles{};
  u64 matrix_cycles = 0;
  std::map<std::string, u64> memory_instructions;  // by width per lane, see access_name
  std::map<std::string, u64> lds_instructions;
  Traffic traffic;
  u32 vgprs = 0;
  u32 agprs = 0;
  u32 sgprs = 0;
  u32 lds_bytes = 0;
  u32 scratch_bytes = 0;
  int waves_per_simd = 0;
  std::vector<u64> per_instruction;  // by Op::index

  [[nodiscard]] std::string json() const;
  [[nodiscard]] std::string table() const;
};

struct KernelInfo;

std::string_view class_name(InstructionClass c);

// Occupancy: waves of this kernel per SIMD, limited by registers, LDS and the wave limit.
int waves_per_simd(const Target& target, const KernelInfo& kernel, u32 lds_bytes,
                   u32 threads_per_group);

// Workgroups with this much LDS that are resident on a CU (RDNA: WGP).
int groups_by_lds(const Target& target, u32 lds_bytes);

}  // namespace rocflash::sim
