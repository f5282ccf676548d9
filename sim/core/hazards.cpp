// Distances that gfx9 leaves to the program: it does not wait where it should, and reads what was there before.
// Compilers keep them; code inside asm statements has to itself. Looked for once, in the order of the text: what comes
// over a branch is not seen.
#include "core/hazards.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/wave.h"

namespace rocflash::sim {
namespace {

constexpr u32 kDppWaitStates = 2;  // between a vector write and a DPP read of the same register

bool is_vector(const Op& op) {
  return op.semantics != nullptr &&
         (op.kind == Class::Vector || op.kind == Class::Transcendental || op.kind == Class::Matrix);
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
