// Software hazards of gfx9: without enough wait states the hardware reads the register's old value.
// Compilers insert s_nop; inline assembly must do so itself. The check runs once at load time,
// in program order; hazards across a branch are not found.
#include "core/hazards.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/wave.h"

namespace rocflash::sim {
namespace {

constexpr u32 kDppWaitStates = 2;  // between a VALU write and a DPP read of the same VGPR

bool is_vector(const Op& op) {
  return op.semantics != nullptr &&
         (op.kind == InstructionClass::Valu || op.kind == InstructionClass::Transcendental ||
          op.kind == InstructionClass::Matrix);
}

bool writes(const Op& op, int row) {
  const Source& d = op.dst[0];
  return is_vector(op) && op.destinations > 0 && d.file == File::Vgpr && d.index <= row &&
         row < d.index + std::max<int>(d.dwords, 1);
}

void early_dpp(Wave& w, const Op& op) {
  if (w.checks->wait) {
    raise(Fault::MissingWait,
          fmt::format("v{} is read by DPP fewer than {} instructions after it was written",
                      op.src[0].index, kDppWaitStates + 1));
  }
  op.semantics->run_strict(w, op);
}

}  // namespace

void bind_hazards(std::span<Op> ops, const std::vector<std::string>& texts) {
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].dpp == nullptr || ops[i].src[0].file != File::Vgpr) continue;
    u32 passed = 0;
    for (std::size_t before = i; before-- > 0 && passed < kDppWaitStates;) {
      if (writes(ops[before], ops[i].src[0].index)) {
        ops[i].run[1] = early_dpp;
        break;
      }
      passed += texts[before].starts_with("s_nop") ? ops[before].simm + 1u : 1u;
    }
  }
}

}  // namespace rocflash::sim
