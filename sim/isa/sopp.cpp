// SOPP and related: branches, barriers, s_waitcnt, hardware registers, messages.
#include <fmt/format.h>
#include <immintrin.h>

#include "core/launch.h"
#include "isa/lds_race_detector.h"
#include "isa/salu.h"

namespace rocflash::sim {
namespace {

Semantics control(ExecFn run, ExecFn strict, InstructionClass kind, u32 parameter = 0) {
  Semantics s = executed(run, strict, kind, parameter);
  s.flags = flag::kNoDestination;
  return s;
}

void run_nop(Wave&, const Op&) {}

// --- branches --------------------------------------------------------------------------------

void jump(Wave& w, const Op& op) {
  if (op.target == nullptr)
    raise(Fault::BadProgram, "the branch target is not the start of an instruction");
  w.next = op.target;
}

template <bool Strict>
bool vcc_is_zero(Wave& w) {
  const u64 vcc = w.read_mask(sreg::kVcc);
  if constexpr (Strict) {
    need_sgpr(w, sreg::kVcc, w.size / 32);
    const u64 unknown = w.read_mask_undef(sreg::kVcc);
    // A defined 1 decides regardless of the undefined bits.
    if (unknown != 0 && (vcc & ~unknown) == 0) check_defined(w, true, "a branch (vcc)");
  }
  return vcc == 0;
}

enum Condition : u32 { kAlways, kScc0, kScc1, kVccz, kVccnz, kExecz, kExecnz, kNever };

template <bool Strict>
void run_branch(Wave& w, const Op& op) {
  bool taken = false;
  switch (op.parameter) {
    case kAlways:
      taken = true;
      break;
    case kScc0:
    case kScc1:
      if constexpr (Strict) check_defined(w, w.scc_undef, "a branch (scc)");
      taken = w.scc == (op.parameter == kScc1);
      break;
    case kVccz:
      taken = vcc_is_zero<Strict>(w);
      break;
    case kVccnz:
      taken = !vcc_is_zero<Strict>(w);
      break;
    case kExecz:
      taken = w.exec() == 0;
      break;
    case kExecnz:
      taken = w.exec() != 0;
      break;
    default:
      break;
  }
  if (taken) jump(w, op);
}

void jump_to(Wave& w, u64 address) {
  const Op* op = w.program->at(address);
  if (op == nullptr) {
    raise_at(Fault::BadProgram, "the program counter leaves the code object", -1, address);
  }
  w.next = op;
}

u64 next_address(const Op& op) { return op.address + op.size; }

template <bool Strict>
void run_setpc(Wave& w, const Op& op) {
  u64 unknown = 0;
  const u64 target = read_scalar64(w, op.src[0], &unknown);
  if constexpr (Strict) check_defined(w, unknown != 0, "a jump");
  jump_to(w, target);
}

template <bool Strict>
void run_swappc(Wave& w, const Op& op) {
  u64 unknown = 0;
  const u64 target = read_scalar64(w, op.src[0], &unknown);
  if constexpr (Strict) check_defined(w, unknown != 0, "a call");
  write_sgpr64<Strict>(w, op.dst[0].index, next_address(op), 0);
  jump_to(w, target);
}

template <bool Strict>
void run_getpc(Wave& w, const Op& op) {
  write_sgpr64<Strict>(w, op.dst[0].index, next_address(op), 0);
}

template <bool Strict>
void run_call(Wave& w, const Op& op) {
  write_sgpr64<Strict>(w, op.dst[0].index, next_address(op), 0);
  jump(w, op);
}

void run_endpgm(Wave& w, const Op&) { w.stop = Stop::End; }

void run_code_end(Wave&, const Op&) {
  raise(Fault::BadProgram, "execution ran past the end of the kernel");
}

// --- barriers --------------------------------------------------------------------------------

void complete_if_all_arrived(Workgroup& g) {
  if (g.arrived > 0 && g.arrived == g.waves - g.finished) {
    g.arrived = 0;
    ++g.barriers;
  }
}

void signal(Wave& w) {
  if (w.strict) carry_lds_writes(w);
  w.signaled = true;
  w.waiting_epoch = w.group->barriers;
  ++w.group->arrived;
  complete_if_all_arrived(*w.group);
}

void check_convergent(const Wave& w) {
  if (w.checks->barrier && w.exec() != w.initial_exec) {
    raise(Fault::DivergentBarrier,
          fmt::format("barrier with only some lanes active (exec {:#x}, the wave started with "
                      "{:#x})",
                      w.exec(), w.initial_exec));
  }
}

void run_barrier(Wave& w, const Op&) {
  check_convergent(w);
  signal(w);
  w.stop = Stop::Barrier;
}

void run_barrier_signal(Wave& w, const Op& op) {
  if (op.src[0].file == File::Literal && i32(op.src[0].value) != -1) {
    raise(Fault::UnknownInstruction,
          "named barriers are not supported; only barrier -1 (workgroup) is");
  }
  check_convergent(w);
  if (w.signaled) raise(Fault::DivergentBarrier, "the barrier is signaled twice");
  const bool first = w.group->arrived == 0;
  signal(w);
  if (op.parameter == 1) {
    w.scc = first;
    w.scc_undef = false;
  }
}

void run_barrier_wait(Wave& w, const Op& op) {
  if (i16(op.simm) != -1)
    raise(Fault::UnknownInstruction,
          "named barriers are not supported; only barrier -1 (workgroup) is");
  if (!w.signaled) raise(Fault::DivergentBarrier, "waits for a barrier it has not signaled");
  w.stop = Stop::Barrier;
}

// --- waits -----------------------------------------------------------------------------------

template <bool Strict>
void run_waitcnt(Wave& w, const Op& op) {
  if constexpr (Strict) {
    const u32 k = op.simm;
    u32 load;
    u32 lgkm;
    switch (w.target->generation) {
      case Generation::Gfx9:
        load = (k & 15) | (k >> 14 & 3) << 4;
        lgkm = k >> 8 & 15;
        if (lgkm == 15) lgkm = ~0u;
        break;
      case Generation::Gfx10:
        load = (k & 15) | (k >> 14 & 3) << 4;
        lgkm = k >> 8 & 63;
        if (lgkm == 63) lgkm = ~0u;
        break;
      default:
        load = k >> 10 & 63;
        lgkm = k >> 4 & 63;
        if (lgkm == 63) lgkm = ~0u;
        break;
    }
    if (load != 63) wait_for(w, WaitCounter::Load, load);
    wait_for(w, WaitCounter::Ds, lgkm);
    wait_for(w, WaitCounter::Km, lgkm);
  }
}

enum Counter : u32 { kLoad = 1, kDs = 2, kKm = 4, kStore = 8, kOther = 16, kLgkm = kDs | kKm };

template <bool Strict>
void run_wait_counter(Wave& w, const Op& op) {
  if constexpr (Strict) {
    const u32 k = op.simm & 63u;
    const u32 high = op.simm >> 8 & 63u;
    // With two counters in one immediate, that of LDS has the low bits.
    if ((op.parameter & kLoad) != 0)
      wait_for(w, WaitCounter::Load, op.parameter == kLoad ? k : high);
    if ((op.parameter & kDs) != 0) wait_for(w, WaitCounter::Ds, k);
    if ((op.parameter & kKm) != 0) wait_for(w, WaitCounter::Km, k);
  }
}

void run_wait_idle(Wave& w, const Op&) {
  if (!w.strict) return;
  wait_for(w, WaitCounter::Load, 0);
  wait_for(w, WaitCounter::Ds, 0);
  wait_for(w, WaitCounter::Km, 0);
}

void run_sleep(Wave& w, const Op&) { w.stop = Stop::Yield; }

// --- hardware registers (hwreg) --------------------------------------------------------------

void set_mode(Wave& w, u32 mode) {
  w.mode = mode;
  w.mode_default = (mode & 0xff) == 0xf0;
}

enum Hwreg : u32 {
  kMode = 1,
  kStatus = 2,
  kTrapStatus = 3,
  kHwId = 4,
  kGprAlloc = 5,
  kLdsAlloc = 6,
  kIbStatus = 7,
  kShMemBases = 15,
  kFlatScratchLo = 20,  // XCC_ID on gfx940 and later
  kFlatScratchHi = 21,
  kHwId1 = 23,
  kHwId2 = 24,
  kSchedMode = 26,
  kShaderCycles = 29,
  kShaderCyclesHi = 30,
};

u32 read_hwreg(const Wave& w, u32 id) {
  const auto cycles = static_cast<u64>(__rdtsc());
  switch (id) {
    case kMode:
      return w.mode;
    case kStatus:
      return (w.scc ? 1u : 0u) | (w.exec() == 0 ? 1u << 9 : 0u);
    case kTrapStatus:
    case kIbStatus:
      return 0;
    case kHwId:
    case kHwId1:
    case kHwId2:
      return static_cast<u32>(w.index);
    case kGprAlloc:
      return static_cast<u32>(w.rows.size());
    case kLdsAlloc:
      return (w.group->lds_allocated + 511) / 512 << 12;
    case kShMemBases:
      return u32(kSharedAperture >> 48 << 16 | kPrivateAperture >> 48);
    case kFlatScratchLo:
      return w.gfx9() ? u32(w.group->linear % 8) : w.sgpr[sreg::kFlatScratch];
    case kFlatScratchHi:
      return w.sgpr[sreg::kFlatScratch + 1];
    case kShaderCycles:
      return u32(cycles);
    case kShaderCyclesHi:
      return u32(cycles >> 32);
    default:
      raise(Fault::UnknownInstruction, fmt::format("s_getreg of hwreg({}) is not supported", id));
  }
}

template <bool Strict>
void run_getreg(Wave& w, const Op& op) {
  const u32 offset = op.simm >> 6 & 31u;
  const u32 size = (op.simm >> 11 & 31u) + 1;
  const u32 value = read_hwreg(w, op.simm & 63u) >> offset;
  write_sgpr<Strict>(w, op.dst[0].index, size == 32 ? value : value & ((1u << size) - 1), 0);
}

template <bool Strict>
void run_setreg(Wave& w, const Op& op) {
  u32 unknown = 0;
  const u32 value = read_scalar(w, op.src[0], &unknown);
  if constexpr (Strict) check_defined(w, unknown != 0, "a hardware register");
  const u32 id = op.simm & 63u;
  const u32 offset = op.simm >> 6 & 31u;
  const u32 size = (op.simm >> 11 & 31u) + 1;
  const u32 mask = (size == 32 ? ~0u : (1u << size) - 1) << offset;
  switch (id) {
    case kMode:
      set_mode(w, (w.mode & ~mask) | (value << offset & mask));
      return;
    case kFlatScratchLo:
      write_sgpr<Strict>(w, sreg::kFlatScratch, value, unknown);
      return;
    case kFlatScratchHi:
      write_sgpr<Strict>(w, sreg::kFlatScratch + 1, value, unknown);
      return;
    case kSchedMode:
      return;  // only changes how hazards are waited for
    default:
      raise(Fault::UnknownInstruction, fmt::format("s_setreg of hwreg({}) is not supported", id));
  }
}

void run_round_mode(Wave& w, const Op& op) { set_mode(w, (w.mode & ~0xfu) | (op.simm & 15u)); }
void run_denorm_mode(Wave& w, const Op& op) {
  set_mode(w, (w.mode & ~0xf0u) | (op.simm & 15u) << 4);
}

// gfx9's relative register indexing: MODE switches it on, M0 holds the amount in its low byte and
// the operands it applies to in bits 15:12 (see isa/vector_modes.cpp).
template <bool Strict>
void write_m0_field(Wave& w, u32 mask, u32 value, u32 unknown) {
  const u32 keep = Strict ? w.sgpr_undef[sreg::kM0] & ~mask : 0;
  write_sgpr<Strict>(w, sreg::kM0, (w.sgpr[sreg::kM0] & ~mask) | (value & mask),
                     keep | (unknown & mask));
}
template <bool Strict>
void run_gpr_index_on(Wave& w, const Op& op) {
  u32 unknown = 0;
  const u32 index = read_scalar(w, op.src[0], &unknown);
  const u32 operands = op.simm >> 8 & 15u;  // SOPC: the second source field is the immediate
  write_m0_field<Strict>(w, 0xf0ffu, (index & 0xff) | operands << 12, unknown & 0xff);
  set_mode(w, w.mode | 1u << kModeIndexBit);
}
void run_gpr_index_off(Wave& w, const Op&) { set_mode(w, w.mode & ~(1u << kModeIndexBit)); }
template <bool Strict>
void run_gpr_index_mode(Wave& w, const Op& op) {
  write_m0_field<Strict>(w, 0xf000u, (op.simm & 15u) << 12, 0);
}
template <bool Strict>
void run_gpr_index_idx(Wave& w, const Op& op) {
  u32 unknown = 0;
  const u32 index = read_scalar(w, op.src[0], &unknown);
  write_m0_field<Strict>(w, 0xffu, index, unknown);
}

// gfx9 VSKIP: no vector instruction is issued while the bit is set.
template <bool Strict>
void run_set_skip(Wave& w, const Op& op) {
  u32 unknown = 0;
  u32 which_unknown = 0;
  const u32 bits = read_scalar(w, op.src[0], &unknown);
  const u32 which = read_scalar(w, op.src[1], &which_unknown) & 31;
  if constexpr (Strict) {
    const bool undefined = (which_unknown & 31) != 0 || (unknown >> which & 1) != 0;
    check_defined(w, undefined, "whether vector instructions are skipped");
  }
  const u32 bit = 1u << kModeSkipBit;
  set_mode(w, (bits >> which & 1) != 0 ? w.mode | bit : w.mode & ~bit);
}

// s_movrels / s_movreld: M0 is added to the scalar register number.
template <bool Strict, bool Wide, bool Destination>
void run_movrel(Wave& w, const Op& op) {
  if constexpr (Strict) check_defined(w, w.sgpr_undef[sreg::kM0] != 0, "a register index");
  Source source = op.src[0];
  int target = op.dst[0].index;
  const u32 shift = w.sgpr[sreg::kM0];
  if (shift + (Destination ? u32(target) : source.index) >= sreg::kVcc) {
    raise(Fault::BadProgram, "the M0-relative register index is outside the register file");
  }
  if (Destination) {
    target += int(shift);
  } else {
    source.index = u16(source.index + shift);
  }
  if constexpr (Wide) {
    u64 unknown = 0;
    const u64 value = read_scalar64(w, source, &unknown);
    write_sgpr64<Strict>(w, target, value, unknown);
  } else {
    u32 unknown = 0;
    const u32 value = read_scalar(w, source, &unknown);
    write_sgpr<Strict>(w, target, value, unknown);
  }
}

// --- messages and traps ----------------------------------------------------------------------

void run_trap(Wave&, const Op& op) {
  raise(Fault::Trap,
        fmt::format("s_trap {}{}", op.simm, op.simm == 2 ? " (the kernel aborted)" : ""));
}

template <bool Strict>
void run_sendmsg_rtn(Wave& w, const Op& op) {
  constexpr u32 kGetRealtime = 131;
  constexpr u32 kGetTma = 133;
  const u32 message = op.parameter;
  if (message != kGetRealtime && message != kGetTma && message != 128 && message != 132) {
    raise(Fault::UnknownInstruction,
          fmt::format("s_sendmsg_rtn message {} is not supported", message));
  }
  const u64 value = message == kGetRealtime ? static_cast<u64>(__rdtsc()) / 20 : 0;
  if (op.dst[0].dwords == 2) {
    write_sgpr64<Strict>(w, op.dst[0].index, value, 0);
  } else {
    write_sgpr<Strict>(w, op.dst[0].index, u32(value), 0);
  }
}

Semantics with(Semantics s, Type dst, Types src, u8 sources) {
  s.dst = dst;
  s.src = src;
  s.sources = sources;
  if (dst != Type::None) s.flags &= ~flag::kNoDestination;
  return s;
}

}  // namespace

void add_program_control(Registry& r) {
  const auto branch = [&](std::string_view names, u32 condition) {
    r.add(names, control(run_branch<false>, run_branch<true>, InstructionClass::Branch, condition));
  };
  branch("s_branch", kAlways);
  branch("s_cbranch_scc0", kScc0);
  branch("s_cbranch_scc1", kScc1);
  branch("s_cbranch_vccz", kVccz);
  branch("s_cbranch_vccnz", kVccnz);
  branch("s_cbranch_execz", kExecz);
  branch("s_cbranch_execnz", kExecnz);
  branch(
      "s_cbranch_cdbgsys|s_cbranch_cdbguser|s_cbranch_cdbgsys_or_user|s_cbranch_cdbgsys_and_user",
      kNever);
  const auto b = InstructionClass::Branch;
  r.add("s_setpc_b64|s_set_pc_i64",
        with(control(run_setpc<false>, run_setpc<true>, b), Type::None, {Type::B64}, 1));
  r.add("s_swappc_b64|s_swap_pc_i64",
        with(control(run_swappc<false>, run_swappc<true>, b), Type::B64, {Type::B64}, 1));
  r.add("s_getpc_b64|s_get_pc_i64",
        with(control(run_getpc<false>, run_getpc<true>, InstructionClass::Salu), Type::B64, {}, 0));
  r.add("s_call_b64|s_call_i64",
        with(control(run_call<false>, run_call<true>, b), Type::B64, {}, 0));
  r.add("s_endpgm|s_endpgm_saved|s_endpgm_ordered_ps_done", control(run_endpgm, run_endpgm, b));
  r.add("s_code_end", control(run_code_end, run_code_end, b));

  r.add("s_barrier", control(run_barrier, run_barrier, InstructionClass::Wait));
  r.add("s_barrier_signal",
        with(control(run_barrier_signal, run_barrier_signal, InstructionClass::Wait), Type::None,
             {Type::I32}, 1));
  r.add("s_barrier_signal_isfirst",
        with(control(run_barrier_signal, run_barrier_signal, InstructionClass::Wait, 1), Type::None,
             {Type::I32}, 1));
  r.add("s_barrier_wait", control(run_barrier_wait, run_barrier_wait, InstructionClass::Wait));
  r.mark_unsupported("s_barrier_init|s_barrier_join|s_barrier_leave|s_get_barrier_state",
                     "named barriers are not supported; only barrier -1 (workgroup) is");

  r.add("s_waitcnt", control(run_waitcnt<false>, run_waitcnt<true>, InstructionClass::Wait));
  const auto wait = [&](std::string_view names, u32 counter) {
    r.add(names, control(run_wait_counter<false>, run_wait_counter<true>, InstructionClass::Wait,
                         counter));
  };
  wait("s_wait_loadcnt|s_waitcnt_vmcnt", kLoad);
  wait("s_wait_dscnt", kDs);
  wait("s_wait_kmcnt", kKm);
  wait("s_waitcnt_lgkmcnt", kLgkm);
  wait("s_wait_loadcnt_dscnt", kLoad | kDs);
  wait("s_wait_storecnt_dscnt", kStore | kDs);
  wait("s_wait_storecnt|s_waitcnt_vscnt", kStore);
  wait(
      "s_wait_samplecnt|s_wait_bvhcnt|s_wait_expcnt|s_waitcnt_expcnt|s_waitcnt_depctr|s_wait_alu|"
      "s_wait_event|s_wait_xcnt",
      kOther);
  r.add("s_wait_idle", control(run_wait_idle, run_wait_idle, InstructionClass::Wait));

  const Semantics nop = control(run_nop, run_nop, InstructionClass::Other);
  // Hints to instruction fetch and caches: they affect timing, not results.
  r.add(
      "s_nop|s_clause|s_delay_alu|s_setprio|s_inst_prefetch|s_set_inst_prefetch_distance|"
      "s_icache_inv|s_sendmsg|s_incperflevel|s_decperflevel|s_ttracedata|s_ttracedata_imm|"
      "s_singleuse_vdst|s_setprio_inc_wg|s_prefetch_inst|s_prefetch_inst_pc_rel|s_prefetch_data|"
      "s_buffer_prefetch_data|s_prefetch_data_pc_rel|s_dcache_inv|s_dcache_wb|s_dcache_inv_vol|"
      "s_dcache_wb_vol|s_gl1_inv|s_version|s_set_vgpr_msb",
      nop);
  r.add("s_sleep|s_sleep_var|s_wakeup", control(run_sleep, run_sleep, InstructionClass::Wait));
  r.add("s_trap", control(run_trap, run_trap, InstructionClass::Other));
  r.add("s_sendmsg_rtn_b32|s_sendmsg_rtn_b64",
        with(control(run_sendmsg_rtn<false>, run_sendmsg_rtn<true>, InstructionClass::Other),
             Type::B32, {}, 0));
  r.mark_unsupported(
      "s_sethalt|s_sendmsghalt|s_setkill|s_rfe_b64|s_rfe_i64|s_cbranch_g_fork|"
      "s_cbranch_i_fork|s_cbranch_join|s_subvector_loop_begin|s_subvector_loop_end",
      "only a trap handler or a graphics driver uses it");

  r.add("s_getreg_b32", with(control(run_getreg<false>, run_getreg<true>, InstructionClass::Salu),
                             Type::B32, {}, 0));
  r.add("s_setreg_b32|s_setreg_imm32_b32",
        with(control(run_setreg<false>, run_setreg<true>, InstructionClass::Salu), Type::None,
             {Type::B32}, 1));
  r.add("s_round_mode", control(run_round_mode, run_round_mode, InstructionClass::Salu));
  r.add("s_denorm_mode", control(run_denorm_mode, run_denorm_mode, InstructionClass::Salu));
  r.add("s_set_gpr_idx_on",
        with(control(run_gpr_index_on<false>, run_gpr_index_on<true>, InstructionClass::Salu),
             Type::None, {Type::B32}, 1));
  r.add("s_set_gpr_idx_off", control(run_gpr_index_off, run_gpr_index_off, InstructionClass::Salu));
  r.add("s_set_gpr_idx_mode",
        control(run_gpr_index_mode<false>, run_gpr_index_mode<true>, InstructionClass::Salu));
  r.add("s_setvskip", with(control(run_set_skip<false>, run_set_skip<true>, InstructionClass::Salu),
                           Type::None, {Type::B32, Type::B32}, 2));
  r.add("s_set_gpr_idx_idx",
        with(control(run_gpr_index_idx<false>, run_gpr_index_idx<true>, InstructionClass::Salu),
             Type::None, {Type::B32}, 1));
  const auto movrel = [&](std::string_view name, ExecFn run, ExecFn strict, Type type) {
    r.add(name, with(control(run, strict, InstructionClass::Salu), type, {type}, 1));
  };
  movrel("s_movrels_b32", run_movrel<false, false, false>, run_movrel<true, false, false>,
         Type::B32);
  movrel("s_movrels_b64", run_movrel<false, true, false>, run_movrel<true, true, false>, Type::B64);
  movrel("s_movreld_b32", run_movrel<false, false, true>, run_movrel<true, false, true>, Type::B32);
  movrel("s_movreld_b64", run_movrel<false, true, true>, run_movrel<true, true, true>, Type::B64);
}

}  // namespace rocflash::sim
