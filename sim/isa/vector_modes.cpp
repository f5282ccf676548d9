// Two modes of gfx9 that change what every vector instruction does: registers indexed relative to
// M0 (s_set_gpr_idx_on) and skipping (s_setvskip). Only code objects that can switch them on are
// bound to these functions, so that nobody else pays for asking.
#include "isa/vector_modes.h"

namespace rocflash::sim {
namespace {

// M0 says which operands are relative and by how much.
constexpr u32 kIndexMask = 0xff;
constexpr int kOperandsShift = 12;
constexpr u32 kDestination = 8;  // bits 0 to 2 are the sources

void shift_register(Source& s, u32 amount) {
  // Accumulation registers are not indexed, nor are scalars.
  if (s.file != File::Vgpr || s.index >= kAgprBase) return;
  if (s.index + amount + s.dwords > static_cast<u32>(kAgprBase)) {
    raise(Fault::BadProgram, "a relative register index leaves the register file");
  }
  s.index = static_cast<u16>(s.index + amount);
}

// The instruction with its selected operands moved.
template <bool Strict>
Op indexed(const Wave& w, const Op& op) {
  constexpr u32 kUsed = kIndexMask | 15u << kOperandsShift;
  if constexpr (Strict) {
    check_defined(w, (w.s_undef[sreg::kM0] & kUsed) != 0, "a register index");
  }
  const u32 m0 = w.s[sreg::kM0];
  const u32 amount = m0 & kIndexMask;
  const u32 operands = m0 >> kOperandsShift & 15;
  Op moved = op;
  const bool accumulates = (op.semantics->flags & flag::kAccumulate) != 0;
  for (std::size_t i = 0; i < 3 && i < op.sources; ++i) {
    // An accumulator is the destination read again, wherever that lies.
    const bool is_destination = accumulates && i + 1u == op.sources;
    const u32 bit = is_destination ? kDestination : 1u << i;
    if ((operands & bit) != 0) shift_register(moved.src[i], amount);
  }
  if ((operands & kDestination) != 0) shift_register(moved.dst[0], amount);
  return moved;
}

}  // namespace

template <bool Strict>
void run_with_modes(Wave& w, const Op& op) {
  const ExecFn run = Strict ? op.semantics->run_strict : op.semantics->run;
  constexpr u32 kEither = 1u << kModeIndexBit | 1u << kModeSkipBit;
  if ((w.mode & kEither) == 0) [[likely]] {
    run(w, op);
    return;
  }
  if ((w.mode >> kModeSkipBit & 1) != 0) return;  // the wait counters do not move either
  const bool memory = op.kind == Class::Memory || op.kind == Class::Lds;
  if (memory) {
    run(w, op);
  } else {
    run(w, indexed<Strict>(w, op));
  }
}

template void run_with_modes<false>(Wave&, const Op&);
template void run_with_modes<true>(Wave&, const Op&);

}  // namespace rocflash::sim
