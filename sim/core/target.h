// What distinguishes one AMD GPU from another, as far as executing its code goes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/types.h"

namespace rocflash::sim {

enum class Generation : u8 { Gfx9, Gfx10, Gfx11, Gfx12 };

struct Target {
  std::string_view name;
  std::string_view card;            // reference card, as sold
  std::string_view marketing_name;  // as HIP reports it
  Generation generation;
  bool wave32;                 // RDNA: both wave sizes; CDNA: wave64 only
  bool agprs;                  // unified file with accumulation registers
  bool packed_work_item_ids;   // v0 = x | y << 10 | z << 20
  bool architected_scratch;    // the hardware sets FLAT_SCRATCH; no scratch descriptor in SGPRs
  bool architected_group_ids;  // work-group ids in TTMP registers
  bool mfma_flushes_denormals;
  int compute_units;
  int simds_per_cu;
  int max_waves_per_simd;
  int vgprs_per_simd;  // allocation units of one register for a whole wave of native size
  u32 max_lds_bytes;
  int clock_khz;
  int xcds;  // dies with an L2 of their own
  int major;
  int minor;

  [[nodiscard]] bool is_cdna() const { return generation == Generation::Gfx9; }
  [[nodiscard]] int native_wave() const { return wave32 ? 32 : 64; }
};

// All targets the simulator knows, in order of their names.
std::span<const Target> all_targets();

// Accepts a bare name or one with features ("gfx942:sramecc+:xnack-").
const Target* find_target(std::string_view name);

}  // namespace rocflash::sim
