// gfx9's MODE bits that affect every vector instruction: VGPR indexing relative to
// M0 (s_set_gpr_idx_on) and VSKIP (s_setvskip). Only code objects that can set them are
// bound to these functions, so that all others run without the test.
#include "isa/gpr_index_mode.h"

namespace rocflash::sim {
namespace {

// M0 holds the index and the mask of indexed operands.
constexpr u32 kIndexMask = 0xff;
constexpr int kOperandsShift = 12;
constexpr u32 kDestination = 8;  // bits 0 to 2 are the sources

void shift_register(Source& s, u32 amount) {
  // AGPRs and SGPRs are not indexed.
  if (s.file != File::Vgpr || s.index >= kAgprBase) return;
  if (s.index + amount + s.dwords > static_cast<u32>(kAgprBase)) {
    raise(Fault::BadProgram, "the M0-relative register index is outside the register file");
  }
  s.index = static_cast<u16>(s.index + amount);
}

// The instruction with its selected operands moved.
template <bool Strict>
Op indexed(const Wave& w, const Op& op) {
  constexpr u32 kUsed = kIndexMask | 15u << kOperandsShift;
  if constexpr (Strict) {
    check_defined(w, (w.sgpr_undef[sreg::kM0] & kUsed) != 0, "a register index");
  }
  const u32 m0 = w.sgpr[sreg::kM0];
  const u32 amount = m0 & kIndexMask;
  const u32 operands = m0 >> kOperandsShift & 15;
  Op moved = op;
  const bool accumulates = (op.semantics->flags & flag::kAccumulate) != 0;
  for (std::size_t i = 0; i < 3 && i < op.sources; ++i) {
    // An accumulator is the destination register, indexed with the destination's bit.
    const bool is_destination = accumulates && i + 1u == op.sources;
    const u32 bit = is_destination ? kDestination : 1u << i;
    if ((operands & bit) != 0) shift_register(moved.src[i], amount);
  }
  if ((operands & kDestination) != 0) shift_register(moved.dst[0], amount);
  return moved;
}

}  // namespace

template <bool Strict>
void run_with_gpr_index_mode(Wave& w, const Op& op) {
  const ExecFn run = Strict ? op.semantics->run_strict : op.semantics->run;
  constexpr u32 kEither = 1u << kModeIndexBit | 1u << kModeSkipBit;
  if ((w.mode & kEither) == 0) [[likely]] {
    run(w, op);
    return;
  }
  if ((w.mode >> kModeSkipBit & 1) != 0) return;  // wait counters are unchanged, too
  const bool memory = op.kind == InstructionClass::Vmem || op.kind == InstructionClass::Lds;
  if (memory) {
    run(w, op);
  } else {
    run(w, indexed<Strict>(w, op));
  }
}

template void run_with_gpr_index_mode<false>(Wave&, const Op&);
template void run_with_gpr_index_mode<true>(Wave&, const Op&);

}  // namespace rocflash::sim
