// Loads and stores of vector registers: global, flat, scratch and buffer, and loads to LDS.
#include <bit>

#include "isa/transpose.h"
#include "isa/vmem_address.h"

namespace rocflash::sim {
namespace {

inline u32 extend(u32 value, u32 bytes, bool sign) {
  if (!sign) return value;
  return bytes == 1 ? u32(i32(i8(value))) : u32(i32(i16(value)));
}

// The half of a register a d16 access touches.
u16 halves_of(u32 parameter) {
  if ((parameter & width::kD16High) != 0) return kHighHalf;
  return (parameter & width::kD16) != 0 ? kLowHalf : kBothHalves;
}

template <bool Strict, Space S>
void note_issue(Wave& w, const InFlightAccess& pending) {
  if constexpr (Strict) {
    issue_load(w, WaitCounter::Load, pending);
    if constexpr (S == Space::Flat) {
      issue_load(w, WaitCounter::Ds,
                 {pending.file, pending.first, pending.count, 0, 0, pending.halves});
    }
  }
}

template <bool Strict, Space S>
void count(Wave& w, const Addresses<Strict, S>& addresses, u64 exec, u32 bytes, bool store) {
  if (!w.worker->count_traffic) return;
  if constexpr (S == Space::Global || S == Space::Buffer) {
    u64 list[kMaxLanes];
    for (int i = 0; i < w.size; ++i) list[i] = addresses.device_address(i);
    if constexpr (S == Space::Buffer) {  // out-of-range lanes make no memory requests
      for (u64 m = exec; m != 0; m &= m - 1) {
        const int lane = std::countr_zero(m);
        const Location p = addresses.location(lane, 0, std::min(bytes, 4u), Access::Read);
        if (p.data == nullptr) exec &= ~(1ull << lane);
      }
    }
    count_device_traffic(w, list, exec, bytes, store);
  }
}

// Puts one loaded piece into its register; d16 forms keep the other half.
template <bool Strict>
void deliver(Wave& w, int row, int lane, u32 value, u32 unknown, u32 parameter) {
  u32& d = w.vgpr[row].lane[lane];
  u32 keep = 0;
  int shift = 0;
  if ((parameter & width::kD16) != 0) keep = 0xffff0000u;
  if ((parameter & width::kD16High) != 0) {
    keep = 0xffffu;
    shift = 16;
  }
  d = (d & keep) | (value << shift & ~keep);
  if constexpr (Strict) {
    u32& u = w.vgpr_undef[row].lane[lane];
    u = (u & keep) | (unknown << shift & ~keep);
    if (u != 0) w.vgpr_dirty[row] = 1;
  }
}

// After a whole-register load with full exec the row is as clean as what was loaded.
template <bool Strict>
void begin_rows(Wave& w, int row, u32 rows, u64 exec, u32 parameter) {
  if constexpr (Strict) {
    if (exec != w.full_mask() || (parameter & (width::kD16 | width::kD16High)) != 0) return;
    for (u32 i = 0; i < rows; ++i) w.vgpr_dirty[row + int(i)] = 0;
  }
}

template <bool Strict, Space S>
void run_load(Wave& w, const Op& op) {
  const u64 exec = w.exec();
  const Addresses<Strict, S> addresses(w, op);
  const u32 bytes = op.parameter & width::kBytes;
  const bool sign = (op.parameter & width::kSigned) != 0;
  const int row = op.dst[0].index;
  const u32 rows = std::max(1u, bytes / 4);
  // d16 byte loads are extended to 16 bits.
  begin_rows<Strict>(w, row, rows, exec, op.parameter);
  for (u64 m = exec; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    if (S == Space::Global && bytes >= 4) {
      const Location p = addresses.location(lane, 0, bytes, Access::Read);
      const bool clean = !Strict || wholly_defined(p, bytes);
      for (u32 i = 0; i < rows; ++i) {
        u32 value;
        std::memcpy(&value, p.data + 4 * i, 4);
        w.vgpr[row + int(i)].lane[lane] = value;
        if constexpr (Strict) {
          const u32 unknown = clean ? 0 : load_undefined(p, 4 * i, 4);
          w.vgpr_undef[row + int(i)].lane[lane] = unknown;
          if (unknown != 0) w.vgpr_dirty[row + int(i)] = 1;
        }
      }
      continue;
    }
    for (u32 i = 0; i < rows; ++i) {
      const u32 piece = std::min(bytes, 4u);
      u32 value = 0;
      u32 unknown = 0;
      if (S == Space::Scratch || S == Space::Flat || S == Space::Buffer) {
        // Pieces may straddle interleaved dwords of scratch, so take them a byte at a time there.
        const Location p = addresses.location(lane, 4 * i, piece, Access::Read);
        const bool whole =
            p.device || p.data == nullptr || p.address % 4 + piece <= 4 || S == Space::Buffer;
        if (p.data != nullptr && whole) {
          std::memcpy(&value, p.data, piece);
          if constexpr (Strict) unknown = load_undefined(p, 0, piece);
        } else if (p.data != nullptr) {
          for (u32 byte = 0; byte < piece; ++byte) {
            const Location q = addresses.location(lane, 4 * i + byte, 1, Access::Read);
            value |= u32{*q.data} << (8 * byte);
            if constexpr (Strict) unknown |= load_undefined(q, 0, 1) << (8 * byte);
          }
        }
      } else {
        const Location p = addresses.location(lane, 4 * i, piece, Access::Read);
        std::memcpy(&value, p.data, piece);
        if constexpr (Strict) unknown = load_undefined(p, 0, piece);
      }
      if (sign && unknown != 0) unknown = extend(unknown, bytes, true);
      deliver<Strict>(w, row + int(i), lane, extend(value, bytes, sign), unknown, op.parameter);
    }
  }
  count(w, addresses, exec, bytes, false);
  note_issue<Strict, S>(w, {File::Vgpr, u16(row), u8(rows), 0, 0, halves_of(op.parameter)});
}

// A flat store increments dscnt, and writes LDS in the lanes whose address is in its aperture.
void issue_flat_store(Wave& w, const Addresses<true, Space::Flat>& addresses, u64 exec, u32 bytes) {
  LdsWrite write;
  write.bytes = bytes;
  for (u64 m = w.group->waves > 1 ? exec : 0; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const u64 at = addresses.device_address(lane);
    if ((at & kApertureMask) != kSharedAperture) continue;
    write.lanes |= 1ull << lane;
    write.address.lane[lane] = u32(at);
  }
  issue_load(w, WaitCounter::Ds, {}, &write);
}

template <bool Strict, Space S>
void run_store(Wave& w, const Op& op) {
  const u64 exec = w.exec();
  const Addresses<Strict, S> addresses(w, op);
  const u32 bytes = op.parameter & width::kBytes;
  const bool high = (op.parameter & width::kD16High) != 0;
  const int row = op.src[role::kData].index;
  const u32 rows = std::max(1u, bytes / 4);
  if constexpr (Strict) {
    need_vgpr(w, row, int(rows), bytes >= 4 ? kBothHalves : high ? kHighHalf : kLowHalf);
  }
  for (u64 m = exec; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const u32 piece = std::min(bytes, 4u);
    for (u32 i = 0; i < rows; ++i) {
      u32 value = w.vgpr[row + int(i)].lane[lane];
      u32 unknown = Strict ? w.vgpr_undef[row + int(i)].lane[lane] : 0;
      if (high) {
        value >>= 16;
        unknown >>= 16;
      }
      const Location p = addresses.location(lane, 4 * i, piece, Access::Write, &value);
      if (p.data == nullptr) continue;
      if (p.device || p.address % 4 + piece <= 4) {
        store_bytes(w, p, 0, piece, value, unknown, lane);
      } else {
        for (u32 byte = 0; byte < piece; ++byte) {
          const u8 one = u8(value >> (8 * byte));
          const Location q = addresses.location(lane, 4 * i + byte, 1, Access::Write, &one);
          store_bytes(w, q, 0, 1, one, unknown >> (8 * byte), lane);
        }
      }
    }
  }
  count(w, addresses, exec, bytes, true);
  // gfx9 counts stores in vmcnt; later generations have vscnt, which no check depends on.
  if constexpr (Strict) {
    if (w.gfx9()) issue_load(w, WaitCounter::Load, {});
    if constexpr (S == Space::Flat) issue_flat_store(w, addresses, exec, bytes);
  }
}

// global_load_tr_b128 and _b64 (gfx12, wave32).
template <bool Strict>
void run_load_transposed(Wave& w, const Op& op) {
  if (w.size != 32) {
    raise(Fault::UnknownInstruction,
          "global_load_tr is not supported in wave64: its register layout is not documented");
  }
  if (w.exec() != w.full_mask()) {
    raise(Fault::BadProgram, "a transposing load needs every lane active");
  }
  const Addresses<Strict, Space::Global> addresses(w, op);
  const u32 bytes = op.parameter & width::kBytes;
  const int bits = bytes == 16 ? 16 : 8;
  const int row = op.dst[0].index;
  LaneWords data[kMaxLanes] = {};
  LaneWords unknown[kMaxLanes] = {};
  for (int lane = 0; lane < w.size; ++lane) {
    const Location p = addresses.location(lane, 0, bytes, Access::Read);
    if (p.address % bytes != 0 && w.checks->misaligned) {
      raise_at(Fault::Misaligned, "a transposing load must be aligned to its size", lane,
               p.address);
    }
    std::memcpy(data[lane], p.data, bytes);
    if constexpr (Strict) {
      for (u32 i = 0; i < bytes / 4; ++i) unknown[lane][i] = load_undefined(p, 4 * i, 4);
    }
  }
  begin_rows<Strict>(w, row, bytes / 4, w.exec(), op.parameter);
  for (int lane = 0; lane < w.size; ++lane) {
    LaneWords out = {};
    LaneWords out_unknown = {};
    for (int n = 0; n < 8; ++n) {
      const TransposeSource from =
          bits == 16 ? global_transpose16_source(lane, n) : global_transpose8_source(lane, n);
      put_element(out, n, bits, element_of(data[from.lane], from.element, bits));
      if constexpr (Strict) {
        put_element(out_unknown, n, bits, element_of(unknown[from.lane], from.element, bits));
      }
    }
    for (u32 i = 0; i < bytes / 4; ++i) {
      deliver<Strict>(w, row + int(i), lane, out[i], out_unknown[i], 0);
    }
  }
  count(w, addresses, w.exec(), bytes, false);
  note_issue<Strict, Space::Global>(w, {File::Vgpr, u16(row), u8(bytes / 4), 0, 0});
}

// The part of M0 that addresses LDS: bytes for buffer loads, dwords for global ones.
template <Space S>
u32 lds_base(const Wave& w) {
  const u32 m0 = w.sgpr[sreg::kM0];
  if constexpr (S == Space::Global) return m0 & 0x3fffcu;
  return m0 & (w.target->max_lds_bytes > 65536 ? 0x3ffffu : 0xffffu);
}

// buffer_load ... lds and global_load_lds: lane after lane from M0 plus the instruction's offset
// on, a dword each, or four where more than one is loaded (of three the fourth is left alone).
template <bool Strict, Space S>
void run_load_to_lds(Wave& w, const Op& op) {
  const u64 exec = w.exec();
  const Addresses<Strict, S> addresses(w, op);
  const u32 bytes = op.parameter & width::kBytes;
  const u32 written = std::max(4u, bytes);
  const u32 step = written > 4 ? 16 : 4;
  if constexpr (Strict) {
    need_sgpr(w, sreg::kM0);
    check_defined(w, w.sgpr_undef[sreg::kM0] != 0, "an LDS address (m0)");
  }
  const u32 base = lds_base<S>(w) + u32(op.offset);
  for (u64 m = exec; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const u32 to = base + u32(lane) * step;
    for (u32 i = 0; i < written / 4; ++i) {
      const u32 piece = std::min(bytes, 4u);
      const Location from = addresses.location(lane, 4 * i, piece, Access::Read);
      u32 value = 0;
      u32 unknown = 0;
      if (from.data != nullptr) {
        std::memcpy(&value, from.data, piece);
        if constexpr (Strict) unknown = load_undefined(from, 0, piece);
      }
      value = extend(value, bytes, (op.parameter & width::kSigned) != 0);
      const Location p = lds_location(w, to + 4 * i, 4, lane, Access::Write, &value);
      store_bytes(w, p, 0, 4, value, unknown, lane);
    }
  }
  count(w, addresses, exec, bytes, false);
  if (w.worker->count_traffic) {
    u32 list[kMaxLanes];
    for (u32 i = 0; i < kMaxLanes; ++i) list[i] = base + i * step;
    count_lds_traffic(w, list, exec, written, true);
  }
  if constexpr (Strict) {
    LdsWrite write;
    write.lanes = exec;
    write.bytes = written;
    for (u32 i = 0; i < kMaxLanes; ++i) write.address.lane[i] = base + i * step;
    issue_load(w, WaitCounter::Load, {}, &write);
  }
}

void run_cache(Wave&, const Op&) {}

Semantics memory(ExecFn run, ExecFn strict, u32 parameter, bool store, Space space) {
  Semantics s = executed(run, strict, InstructionClass::Vmem, parameter);
  s.dst = store ? Type::None : Type::B32;
  s.flags = store ? flag::kNoDestination : 0;
  s.selectors = static_cast<u8>(space);
  return s;
}

struct Spelling {
  std::string_view global, flat, scratch, buffer;
};

// One operation in every space; `in` gives its semantics there.
template <typename In>
void add_spaces(Registry& r, const Spelling& n, In in) {
  r.add(n.global, in.template operator()<Space::Global>());
  r.add(n.flat, in.template operator()<Space::Flat>());
  r.add(n.scratch, in.template operator()<Space::Scratch>());
  r.add(n.buffer, in.template operator()<Space::Buffer>());
}

void add_load(Registry& r, const Spelling& n, u32 parameter) {
  add_spaces(r, n, [&]<Space S>() {
    return memory(run_load<false, S>, run_load<true, S>, parameter, false, S);
  });
}

void add_store(Registry& r, const Spelling& n, u32 parameter) {
  add_spaces(r, n, [&]<Space S>() {
    return memory(run_store<false, S>, run_store<true, S>, parameter, true, S);
  });
}

#define ROCFLASH_SIM_NAMES(a, b)                                               \
  {"global_" a "|global_" b, "flat_" a "|flat_" b, "scratch_" a "|scratch_" b, \
   "buffer_" a "|buffer_" b}

}  // namespace

void add_vector_memory(Registry& r) {
  using namespace width;
  add_load(r, ROCFLASH_SIM_NAMES("load_ubyte", "load_u8"), 1);
  add_load(r, ROCFLASH_SIM_NAMES("load_sbyte", "load_i8"), 1 | kSigned);
  add_load(r, ROCFLASH_SIM_NAMES("load_ushort", "load_u16"), 2);
  add_load(r, ROCFLASH_SIM_NAMES("load_sshort", "load_i16"), 2 | kSigned);
  add_load(r, ROCFLASH_SIM_NAMES("load_dword", "load_b32"), 4);
  add_load(r, ROCFLASH_SIM_NAMES("load_dwordx2", "load_b64"), 8);
  add_load(r, ROCFLASH_SIM_NAMES("load_dwordx3", "load_b96"), 12);
  add_load(r, ROCFLASH_SIM_NAMES("load_dwordx4", "load_b128"), 16);
  add_load(r, ROCFLASH_SIM_NAMES("load_ubyte_d16", "load_d16_u8"), 1 | kD16);
  add_load(r, ROCFLASH_SIM_NAMES("load_ubyte_d16_hi", "load_d16_hi_u8"), 1 | kD16High);
  add_load(r, ROCFLASH_SIM_NAMES("load_sbyte_d16", "load_d16_i8"), 1 | kSigned | kD16);
  add_load(r, ROCFLASH_SIM_NAMES("load_sbyte_d16_hi", "load_d16_hi_i8"), 1 | kSigned | kD16High);
  add_load(r, ROCFLASH_SIM_NAMES("load_short_d16", "load_d16_b16"), 2 | kD16);
  add_load(r, ROCFLASH_SIM_NAMES("load_short_d16_hi", "load_d16_hi_b16"), 2 | kD16High);
  add_store(r, ROCFLASH_SIM_NAMES("store_byte", "store_b8"), 1);
  add_store(r, ROCFLASH_SIM_NAMES("store_byte_d16_hi", "store_d16_hi_b8"), 1 | kD16High);
  add_store(r, ROCFLASH_SIM_NAMES("store_short", "store_b16"), 2);
  add_store(r, ROCFLASH_SIM_NAMES("store_short_d16_hi", "store_d16_hi_b16"), 2 | kD16High);
  add_store(r, ROCFLASH_SIM_NAMES("store_dword", "store_b32"), 4);
  add_store(r, ROCFLASH_SIM_NAMES("store_dwordx2", "store_b64"), 8);
  add_store(r, ROCFLASH_SIM_NAMES("store_dwordx3", "store_b96"), 12);
  add_store(r, ROCFLASH_SIM_NAMES("store_dwordx4", "store_b128"), 16);

  // Spelled with an "lds" modifier on buffer loads; the binder looks these names up for that form.
  const auto to_lds = [&](std::string_view global, std::string_view buffer, u32 parameter) {
    r.add(global, memory(run_load_to_lds<false, Space::Global>,
                         run_load_to_lds<true, Space::Global>, parameter, true, Space::Global));
    r.add(buffer, memory(run_load_to_lds<false, Space::Buffer>,
                         run_load_to_lds<true, Space::Buffer>, parameter, true, Space::Buffer));
  };
  to_lds("global_load_lds_ubyte|global_load_ubyte.lds", "buffer_load_ubyte.lds", 1);
  to_lds("global_load_lds_sbyte|global_load_sbyte.lds", "buffer_load_sbyte.lds", 1 | kSigned);
  to_lds("global_load_lds_ushort|global_load_ushort.lds", "buffer_load_ushort.lds", 2);
  to_lds("global_load_lds_sshort|global_load_sshort.lds", "buffer_load_sshort.lds", 2 | kSigned);
  to_lds("global_load_lds_dword|global_load_dword.lds", "buffer_load_dword.lds", 4);
  to_lds("global_load_lds_dwordx3|global_load_dwordx3.lds", "buffer_load_dwordx3.lds", 12);
  to_lds("global_load_lds_dwordx4|global_load_dwordx4.lds", "buffer_load_dwordx4.lds", 16);

  const auto transposed = [&](std::string_view name, u32 bytes) {
    r.add(name, memory(run_load_transposed<false>, run_load_transposed<true>, bytes, false,
                       Space::Global));
  };
  transposed("global_load_tr_b128", 16);
  transposed("global_load_tr_b64", 8);
  r.mark_unsupported("global_load_tr4_b64|global_load_tr6_b96", "only gfx1250 has it");
  Semantics cache;
  cache.run = cache.run_strict = run_cache;
  cache.kind = InstructionClass::Vmem;
  cache.flags = flag::kNoDestination;
  // Memory is coherent: cache invalidates and write-backs have no effect.
  r.add(
      "buffer_gl0_inv|buffer_gl1_inv|buffer_wbl2|buffer_invl2|buffer_inv|buffer_wbinvl1|"
      "buffer_wbinvl1_vol|global_inv|global_wb|global_wbinv",
      cache);
}

}  // namespace rocflash::sim
