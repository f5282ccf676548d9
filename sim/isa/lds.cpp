// DS: local data share, in all widths, and the lane shuffles that go through its crossbar.
// Addresses are sums of 32 bits: a negative register and a positive offset may meet inside.
#include <bit>

#include "isa/memory_access.h"
#include "isa/transpose.h"

namespace rocflash::sim {
namespace {

// Roles of Op::src.
constexpr int kAddress = 0;
constexpr int kData0 = 1;
constexpr int kData1 = 2;

// An LDS write returns nothing, but other waves may not access its bytes before it completes.
void issue_write(Wave& w, const Vgpr& address, u64 exec, u32 bytes, u32 first, const u32* second) {
  if (w.group->waves == 1) {
    issue_load(w, WaitCounter::Ds, {});
    return;
  }
  LdsWrite write;
  write.lanes = exec;
  write.bytes = bytes;
  write.offsets[0] = first;
  if (second != nullptr) {
    write.pieces = 2;
    write.offsets[1] = *second;
  }
  write.address = address;
  issue_load(w, WaitCounter::Ds, {}, &write);
}

template <bool Strict>
void check_address(Wave& w, const Op& op) {
  if constexpr (Strict) {
    const int row = op.src[kAddress].index;
    need_vgpr(w, row);
    if (w.vgpr_dirty[row] == 0 || !w.checks->undefined) return;
    for (u64 m = w.exec(); m != 0; m &= m - 1) {
      const int lane = std::countr_zero(m);
      check_defined(w, w.vgpr_undef[row].lane[lane] != 0, "an LDS address", lane);
    }
  }
}

void misaligned(const Wave& w, u64 address, u32 bytes, int lane) {
  if (address % bytes != 0 && w.checks->misaligned) {
    raise_at(Fault::Misaligned, "LDS access of this kind must be aligned to its size", lane,
             address);
  }
}

template <bool Strict>
void deliver(Wave& w, int row, int lane, u32 value, u32 unknown, u32 keep) {
  u32& d = w.vgpr[row].lane[lane];
  d = (d & keep) | (value & ~keep);
  if constexpr (Strict) {
    u32& u = w.vgpr_undef[row].lane[lane];
    u = (u & keep) | (unknown & ~keep);
    if (u != 0) w.vgpr_dirty[row] = 1;
  }
}

template <bool Strict>
void begin_rows(Wave& w, int row, u32 rows, u64 exec) {
  if constexpr (Strict) {
    if (exec != w.full_mask()) return;
    for (u32 i = 0; i < rows; ++i) w.vgpr_dirty[row + int(i)] = 0;
  }
}

void count(Wave& w, const Op& op, u64 exec, u32 bytes, u32 offset, Access access) {
  if (!w.worker->count_traffic) return;
  u32 list[kMaxLanes];
  for (int i = 0; i < w.size; ++i) list[i] = w.vgpr[op.src[kAddress].index].lane[i] + offset;
  count_lds_traffic(w, list, exec, bytes, access == Access::Write);
}

// Permutes cost as much as a conflict-free dword access.
void count_shuffle(Wave& w, u64 exec) {
  if (!w.worker->count_traffic) return;
  u32 list[kMaxLanes];
  for (u32 i = 0; i < kMaxLanes; ++i) list[i] = 4 * i;
  count_lds_traffic(w, list, exec, 4, false);
}

template <bool Strict>
void read_at(Wave& w, int row, int lane, u32 address, u32 bytes, u32 parameter) {
  const Location p = lds_location(w, address, bytes, lane, Access::Read);
  if (bytes >= 4 && p.data != nullptr && wholly_defined(p, bytes)) {
    for (u32 i = 0; i < bytes / 4; ++i) {
      std::memcpy(&w.vgpr[row + int(i)].lane[lane], p.data + 4 * i, 4);
      if constexpr (Strict) w.vgpr_undef[row + int(i)].lane[lane] = 0;
    }
    return;
  }
  for (u32 i = 0; i < std::max(1u, bytes / 4); ++i) {
    const u32 piece = std::min(bytes, 4u);
    u32 value = 0;
    u32 unknown = 0;
    if (p.data != nullptr) {
      std::memcpy(&value, p.data + 4 * i, piece);
      if constexpr (Strict) unknown = load_undefined(p, 4 * i, piece);
    }
    if ((parameter & width::kSigned) != 0) {
      value = bytes == 1 ? u32(i32(i8(value))) : u32(i32(i16(value)));
      unknown = bytes == 1 ? u32(i32(i8(unknown))) : u32(i32(i16(unknown)));
    }
    u32 keep = 0;
    if ((parameter & width::kD16) != 0) keep = 0xffff0000u;
    if ((parameter & width::kD16High) != 0) {
      keep = 0xffffu;
      value <<= 16;
      unknown <<= 16;
    }
    deliver<Strict>(w, row + int(i), lane, value, unknown, keep);
  }
}

template <bool Strict>
void write_at(Wave& w, int row, int lane, u32 address, u32 bytes, bool high) {
  u32 data[4] = {};
  if constexpr (Strict) {
    for (u32 i = 0; i < std::max(1u, bytes / 4); ++i) data[i] = w.vgpr[row + int(i)].lane[lane];
    if (high) data[0] >>= 16;
  }
  const Location p = lds_location(w, address, bytes, lane, Access::Write, data);
  for (u32 i = 0; i < std::max(1u, bytes / 4); ++i) {
    u32 value = w.vgpr[row + int(i)].lane[lane];
    u32 unknown = Strict ? w.vgpr_undef[row + int(i)].lane[lane] : 0;
    if (high) {
      value >>= 16;
      unknown >>= 16;
    }
    store_bytes(w, p, 4 * i, std::min(bytes, 4u), value, unknown, lane);
  }
}

template <bool Strict>
void run_read(Wave& w, const Op& op) {
  check_address<Strict>(w, op);
  const u64 exec = w.exec();
  const u32 bytes = op.parameter & width::kBytes;
  const u32 rows = std::max(1u, bytes / 4);
  const int row = op.dst[0].index;
  // The destination may be the address register.
  const Vgpr address = w.vgpr[op.src[kAddress].index];
  count(w, op, exec, bytes, u32(op.offset), Access::Read);
  if ((op.parameter & (width::kD16 | width::kD16High)) == 0) begin_rows<Strict>(w, row, rows, exec);
  for (u64 m = exec; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    read_at<Strict>(w, row, lane, address.lane[lane] + u32(op.offset), bytes, op.parameter);
  }
  if constexpr (Strict) {
    const u16 halves = (op.parameter & width::kD16High) != 0 ? kHighHalf
                       : (op.parameter & width::kD16) != 0   ? kLowHalf
                                                             : kBothHalves;
    issue_load(w, WaitCounter::Ds, {File::Vgpr, u16(row), u8(rows), 0, 0, halves});
  }
}

template <bool Strict>
void run_write(Wave& w, const Op& op) {
  check_address<Strict>(w, op);
  const u64 exec = w.exec();
  const u32 bytes = op.parameter & width::kBytes;
  const int row = op.src[kData0].index;
  if constexpr (Strict) {
    const bool high = (op.parameter & width::kD16High) != 0;
    need_vgpr(w, row, int(std::max(1u, bytes / 4)),
              bytes >= 4 ? kBothHalves
              : high     ? kHighHalf
                         : kLowHalf);
  }
  const u32* address = w.vgpr[op.src[kAddress].index].lane;
  for (u64 m = exec; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    write_at<Strict>(w, row, lane, address[lane] + u32(op.offset), bytes,
                     (op.parameter & width::kD16High) != 0);
  }
  count(w, op, exec, bytes, u32(op.offset), Access::Write);
  if constexpr (Strict) {
    issue_write(w, w.vgpr[op.src[kAddress].index], exec, bytes, u32(op.offset), nullptr);
  }
}

// read2 / write2: two offsets in units of the element, or of 64 of them.
constexpr u32 kStride64 = 1u << 16;

struct Pair {
  explicit Pair(const Op& op) : bytes(op.parameter & width::kBytes) {
    const u32 unit = bytes * ((op.parameter & kStride64) != 0 ? 64 : 1);
    first = u32(op.offset) * unit;
    second = u32(op.offset1) * unit;
  }
  u32 bytes, first, second;  // of one element; where the two are
};

template <bool Strict>
void run_read2(Wave& w, const Op& op) {
  check_address<Strict>(w, op);
  const u64 exec = w.exec();
  const Pair pair(op);
  const Vgpr address = w.vgpr[op.src[kAddress].index];
  const int row = op.dst[0].index;
  const int rows = int(pair.bytes / 4);
  count(w, op, exec, pair.bytes, pair.first, Access::Read);
  count(w, op, exec, pair.bytes, pair.second, Access::Read);
  begin_rows<Strict>(w, row, u32(2 * rows), exec);
  for (u64 m = exec; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const u32 at = address.lane[lane];
    read_at<Strict>(w, row, lane, at + pair.first, pair.bytes, 0);
    read_at<Strict>(w, row + rows, lane, at + pair.second, pair.bytes, 0);
  }
  if constexpr (Strict) issue_load(w, WaitCounter::Ds, {File::Vgpr, u16(row), u8(2 * rows), 0, 0});
}

template <bool Strict>
void run_write2(Wave& w, const Op& op) {
  check_address<Strict>(w, op);
  const u64 exec = w.exec();
  const Pair pair(op);
  const int first = op.src[kData0].index;
  const int second = op.src[kData1].index;
  if constexpr (Strict) {
    need_vgpr(w, first, int(pair.bytes / 4));
    need_vgpr(w, second, int(pair.bytes / 4));
  }
  const u32* address = w.vgpr[op.src[kAddress].index].lane;
  for (u64 m = exec; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    write_at<Strict>(w, first, lane, address[lane] + pair.first, pair.bytes, false);
    write_at<Strict>(w, second, lane, address[lane] + pair.second, pair.bytes, false);
  }
  count(w, op, exec, pair.bytes, pair.first, Access::Write);
  count(w, op, exec, pair.bytes, pair.second, Access::Write);
  if constexpr (Strict) {
    issue_write(w, w.vgpr[op.src[kAddress].index], exec, pair.bytes, pair.first, &pair.second);
  }
}

// ds_read_addtid_b32 / ds_write_addtid_b32: the address is M0 plus four times the lane.
template <bool Strict, bool Write>
void run_addtid(Wave& w, const Op& op) {
  const u32 base = (w.sgpr[sreg::kM0] & 0xffffu) + u32(op.offset);
  const int row = Write ? op.src[kAddress].index : op.dst[0].index;
  if constexpr (Strict) check_defined(w, w.sgpr_undef[sreg::kM0] != 0, "an LDS address (m0)");
  for (u64 m = w.exec(); m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    if (Write) {
      write_at<Strict>(w, row, lane, base + 4 * u32(lane), 4, false);
    } else {
      read_at<Strict>(w, row, lane, base + 4 * u32(lane), 4, 0);
    }
  }
  if constexpr (Strict) {
    if (Write) {
      Vgpr address;
      for (int i = 0; i < kMaxLanes; ++i) address.lane[i] = base + 4 * u32(i);
      issue_write(w, address, w.exec(), 4, 0, nullptr);
    } else {
      issue_load(w, WaitCounter::Ds, {File::Vgpr, u16(row), 1, 0, 0});
    }
  }
}

// ds_read_b64_tr_b16 and related (gfx950). Parameter: bytes per lane, and bits per element.
constexpr int kElementShift = 12;

template <bool Strict>
void run_read_transposed(Wave& w, const Op& op) {
  check_address<Strict>(w, op);
  const u64 exec = w.exec();
  if (exec != w.full_mask()) {
    raise(Fault::BadProgram, "a transposed LDS read needs every lane active");
  }
  const int row = op.dst[0].index;
  const u32 bytes = op.parameter & width::kBytes;
  const int bits = int(op.parameter >> kElementShift);
  const int elements = int(8 * bytes) / bits;
  const u32* address = w.vgpr[op.src[kAddress].index].lane;
  LaneWords data[kMaxLanes] = {};
  LaneWords unknown[kMaxLanes] = {};
  for (int lane = 0; lane < w.size; ++lane) {
    const u32 at = address[lane] + u32(op.offset);
    misaligned(w, at, bytes == 8 ? 8 : 4, lane);
    const Location p = lds_location(w, at, bytes, lane, Access::Read);
    if (p.data == nullptr) continue;
    std::memcpy(data[lane], p.data, bytes);
    if constexpr (Strict) {
      for (u32 i = 0; i < bytes / 4; ++i) unknown[lane][i] = load_undefined(p, 4 * i, 4);
    }
  }
  count(w, op, exec, bytes, u32(op.offset), Access::Read);
  begin_rows<Strict>(w, row, bytes / 4, exec);
  for (int lane = 0; lane < w.size; ++lane) {
    LaneWords out = {};
    LaneWords out_unknown = {};
    for (int n = 0; n < elements; ++n) {
      const TransposeSource from = lds_transpose_source(lane, n, elements);
      put_element(out, n, bits, element_of(data[from.lane], from.element, bits));
      if constexpr (Strict) {
        put_element(out_unknown, n, bits, element_of(unknown[from.lane], from.element, bits));
      }
    }
    for (u32 i = 0; i < bytes / 4; ++i) {
      deliver<Strict>(w, row + int(i), lane, out[i], out_unknown[i], 0);
    }
  }
  if constexpr (Strict) issue_load(w, WaitCounter::Ds, {File::Vgpr, u16(row), u8(bytes / 4), 0, 0});
}

// --- shuffles --------------------------------------------------------------------------------

template <bool Strict>
void write_shuffled(Wave& w, const Op& op, const u32* values, const u32* unknown) {
  write_row<Strict>(w, op.dst[0].index, values, unknown, w.exec());
  count_shuffle(w, w.exec());
  if constexpr (Strict) {
    issue_load(w, WaitCounter::Ds, {File::Vgpr, op.dst[0].index, 1, 0, 0});
  }
}

// Lanes read from the lane their address names; inactive ones give zero.
template <bool Strict>
void run_bpermute(Wave& w, const Op& op) {
  check_address<Strict>(w, op);
  const u64 exec = w.exec();
  const int data = op.src[kData0].index;
  if constexpr (Strict) need_vgpr(w, data);
  const u32* address = w.vgpr[op.src[kAddress].index].lane;
  const bool fetch_inactive = op.parameter != 0;
  Vgpr out{};
  Vgpr unknown{};
  for (int i = 0; i < w.size; ++i) {
    const int from = int((address[i] + u32(op.offset)) / 4 % u32(w.size));
    if ((exec >> from & 1) == 0 && !fetch_inactive) continue;
    out.lane[i] = w.vgpr[data].lane[from];
    if constexpr (Strict) unknown.lane[i] = w.vgpr_undef[data].lane[from];
  }
  write_shuffled<Strict>(w, op, out.lane, unknown.lane);
}

// Lanes send to the lane of their address; the highest sender wins, lanes without a sender get 0.
template <bool Strict>
void run_permute(Wave& w, const Op& op) {
  check_address<Strict>(w, op);
  const int data = op.src[kData0].index;
  if constexpr (Strict) need_vgpr(w, data);
  const u32* address = w.vgpr[op.src[kAddress].index].lane;
  Vgpr out{};
  Vgpr unknown{};
  for (u64 m = w.exec(); m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    const int to = int((address[i] + u32(op.offset)) / 4 % u32(w.size));
    out.lane[to] = w.vgpr[data].lane[i];
    if constexpr (Strict) unknown.lane[to] = w.vgpr_undef[data].lane[i];
  }
  write_shuffled<Strict>(w, op, out.lane, unknown.lane);
}

int swizzle_source(u32 pattern, int lane) {
  if ((pattern & 0xe000) == 0x8000) {  // quad permute
    return (lane & ~3) + int(pattern >> (2 * (lane & 3)) & 3);
  }
  if ((pattern & 0xe000) == 0xc000) {  // rotate in groups of 32
    const int amount = int(pattern >> 5 & 31);
    const int keep = int(pattern & 31);
    const int within = lane & 31;
    const int moved = (pattern >> 10 & 1) != 0 ? within + 32 - amount : within + amount;
    return (lane & 32) | (within & keep) | (moved & 31 & ~keep);
  }
  const int within = lane & 31;
  const int and_mask = int(pattern & 31);
  const int or_mask = int(pattern >> 5 & 31);
  const int xor_mask = int(pattern >> 10 & 31);
  return (lane & 32) | (((within & and_mask) | or_mask) ^ xor_mask);
}

template <bool Strict>
void run_swizzle(Wave& w, const Op& op) {
  const u64 exec = w.exec();
  const int data = op.src[kAddress].index;
  if constexpr (Strict) need_vgpr(w, data);
  Vgpr out{};
  Vgpr unknown{};
  for (int i = 0; i < w.size; ++i) {
    const int from = swizzle_source(op.simm, i);
    if ((exec >> from & 1) == 0) continue;
    out.lane[i] = w.vgpr[data].lane[from];
    if constexpr (Strict) unknown.lane[i] = w.vgpr_undef[data].lane[from];
  }
  write_shuffled<Strict>(w, op, out.lane, unknown.lane);
}

void run_nop(Wave&, const Op&) {}

Semantics ds(ExecFn run, ExecFn strict, u32 parameter, bool destination, u8 sources) {
  Semantics s = executed(run, strict, InstructionClass::Lds, parameter);
  s.dst = destination ? Type::B32 : Type::None;
  s.flags = destination ? 0 : flag::kNoDestination;
  s.src = {Type::B32, Type::B32, Type::B32};
  s.sources = sources;
  return s;
}

}  // namespace

void add_lds(Registry& r) {
  using namespace width;
  const auto read = [&](std::string_view names, u32 parameter) {
    r.add(names, ds(run_read<false>, run_read<true>, parameter, true, 1));
  };
  const auto write = [&](std::string_view names, u32 parameter) {
    r.add(names, ds(run_write<false>, run_write<true>, parameter, false, 2));
  };
  read("ds_read_b32|ds_load_b32", 4);
  read("ds_read_b64|ds_load_b64", 8);
  read("ds_read_b96|ds_load_b96", 12);
  read("ds_read_b128|ds_load_b128", 16);
  read("ds_read_u8|ds_load_u8", 1);
  read("ds_read_i8|ds_load_i8", 1 | kSigned);
  read("ds_read_u16|ds_load_u16", 2);
  read("ds_read_i16|ds_load_i16", 2 | kSigned);
  read("ds_read_u8_d16|ds_load_u8_d16", 1 | kD16);
  read("ds_read_u8_d16_hi|ds_load_u8_d16_hi", 1 | kD16High);
  read("ds_read_i8_d16|ds_load_i8_d16", 1 | kSigned | kD16);
  read("ds_read_i8_d16_hi|ds_load_i8_d16_hi", 1 | kSigned | kD16High);
  read("ds_read_u16_d16|ds_load_u16_d16", 2 | kD16);
  read("ds_read_u16_d16_hi|ds_load_u16_d16_hi", 2 | kD16High);
  write("ds_write_b32|ds_store_b32", 4);
  write("ds_write_b64|ds_store_b64", 8);
  write("ds_write_b96|ds_store_b96", 12);
  write("ds_write_b128|ds_store_b128", 16);
  write("ds_write_b8|ds_store_b8", 1);
  write("ds_write_b16|ds_store_b16", 2);
  write("ds_write_b8_d16_hi|ds_store_b8_d16_hi", 1 | kD16High);
  write("ds_write_b16_d16_hi|ds_store_b16_d16_hi", 2 | kD16High);

  const auto both2 = [&](std::string_view read, std::string_view write, u32 parameter) {
    r.add(read, ds(run_read2<false>, run_read2<true>, parameter, true, 1));
    r.add(write, ds(run_write2<false>, run_write2<true>, parameter, false, 3));
  };
  both2("ds_read2_b32|ds_load_2addr_b32", "ds_write2_b32|ds_store_2addr_b32", 4);
  both2("ds_read2_b64|ds_load_2addr_b64", "ds_write2_b64|ds_store_2addr_b64", 8);
  both2("ds_read2st64_b32|ds_load_2addr_stride64_b32",
        "ds_write2st64_b32|ds_store_2addr_stride64_b32", 4 | kStride64);
  both2("ds_read2st64_b64|ds_load_2addr_stride64_b64",
        "ds_write2st64_b64|ds_store_2addr_stride64_b64", 8 | kStride64);
  r.add("ds_read_addtid_b32|ds_load_addtid_b32",
        ds(run_addtid<false, false>, run_addtid<true, false>, 4, true, 0));
  r.add("ds_write_addtid_b32|ds_store_addtid_b32",
        ds(run_addtid<false, true>, run_addtid<true, true>, 4, false, 1));
  const auto transposed = [&](std::string_view name, u32 bytes, u32 bits) {
    r.add(name, ds(run_read_transposed<false>, run_read_transposed<true>,
                   bytes | bits << kElementShift, true, 1));
  };
  transposed("ds_read_b64_tr_b16", 8, 16);
  transposed("ds_read_b64_tr_b8", 8, 8);
  transposed("ds_read_b64_tr_b4", 8, 4);
  transposed("ds_read_b96_tr_b6", 12, 6);

  r.add("ds_bpermute_b32", ds(run_bpermute<false>, run_bpermute<true>, 0, true, 2));
  r.add("ds_bpermute_fi_b32", ds(run_bpermute<false>, run_bpermute<true>, 1, true, 2));
  r.add("ds_permute_b32", ds(run_permute<false>, run_permute<true>, 0, true, 2));
  r.add("ds_swizzle_b32", ds(run_swizzle<false>, run_swizzle<true>, 0, true, 1));
  r.add("ds_nop", ds(run_nop, run_nop, 0, false, 0));
  r.mark_unsupported(
      "ds_gws_init|ds_gws_barrier|ds_gws_sema_v|ds_gws_sema_p|ds_gws_sema_br|"
      "ds_gws_sema_release_all|ds_append|ds_consume|ds_ordered_count|ds_bvh_stack_rtn_b32|"
      "ds_bvh_stack_push4_pop1_rtn_b32|ds_bvh_stack_push8_pop1_rtn_b32|"
      "ds_bvh_stack_push8_pop2_rtn_b64|ds_add_gs_reg_rtn|ds_sub_gs_reg_rtn|"
      "ds_write_src2_b32|ds_write_src2_b64|ds_param_load|ds_direct_load",
      "global wave sync, append buffers and graphics are not modeled");
}

}  // namespace rocflash::sim
