// Operands and results of an instruction's arithmetic: all lanes of each operand at
// once. The caller applies modifiers, DPP, SDWA, op_sel, EXEC and the shadow state.
#pragma once

#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/op.h"
#include "core/target.h"
#include "core/types.h"

namespace rocflash::sim {

struct Lanes {
  const u32* lo[4] = {};
  const u32* hi[4] = {};  // second dword of 64-bit operands
  u32* d = nullptr;
  u32* dh = nullptr;
  u64 mask_in = 0;
  u64 mask_out = 0;
  int n = kMaxLanes;
  bool clamp = false;  // integer saturation; float clamping happens afterwards
  const Op* op = nullptr;
  u32 mode = 0;
  const Target* target = nullptr;
};

// An instruction whose run functions do everything; the caller sets further fields.
inline Semantics executed(ExecFn run, ExecFn strict, InstructionClass kind, u32 parameter = 0) {
  Semantics s;
  s.run = run;
  s.run_strict = strict;
  s.kind = kind;
  s.parameter = parameter;
  return s;
}

// Collects the semantics of one group of instructions. Names may be joined by '|' where generations
// spell the same operation differently.
class Registry {
 public:
  void add(std::string_view names, const Semantics& semantics);
  void mark_unsupported(std::string_view names, std::string_view reason);
  // Marks all mnemonics with this prefix as not supported.
  void mark_unsupported_family(std::string_view prefix, std::string_view reason);
  [[nodiscard]] const Semantics* find(std::string_view name) const;
  [[nodiscard]] std::string_view unsupported_reason(std::string_view name) const;

 private:
  std::unordered_map<std::string_view, Semantics> entries_;
  std::unordered_map<std::string_view, std::string_view> unsupported_;
  std::vector<std::pair<std::string_view, std::string_view>> unsupported_families_;
};

// One function per file of semantics.
void add_vop1(Registry& registry);
void add_vop2(Registry& registry);
void add_vop3(Registry& registry);
void add_vopc(Registry& registry);
void add_vop3p(Registry& registry);
void add_dot(Registry& registry);
void add_special_math(Registry& registry);
void add_conversions(Registry& registry);
void add_float8(Registry& registry);
void add_lane_ops(Registry& registry);
void add_scalar_alu(Registry& registry);
void add_scalar_float(Registry& registry);
void add_program_control(Registry& registry);
void add_scalar_memory(Registry& registry);
void add_scalar_store(Registry& registry);
void add_lds(Registry& registry);
void add_vector_memory(Registry& registry);
void add_memory_atomics(Registry& registry);
void add_matrix(Registry& registry);
void add_mfma_f64(Registry& registry);
void add_mfma_f8f6f4(Registry& registry);
void add_scaled_conversions(Registry& registry);

}  // namespace rocflash::sim
