// Cross-lane instructions: readlane, writelane, permlane, swaps, mbcnt.
#include "isa/elementwise.h"
#include "isa/valu.h"

namespace rocflash::sim {
namespace {

Semantics lane_op(ExecFn run, ExecFn strict, Types types, u8 sources, u32 parameter = 0) {
  Semantics s = executed(run, strict, InstructionClass::Valu, parameter);
  s.src = types;
  s.sources = sources;
  s.dst = Type::B32;
  return s;
}

u32 lane_value(const Wave& w, const Source& s, int lane, u32* undefined) {
  if (s.file == File::Vgpr) {
    if (w.strict) {
      need_vgpr(w, s.index);
      *undefined = w.vgpr_undef[s.index].lane[lane];
    }
    return w.vgpr[s.index].lane[lane];
  }
  return read_scalar(w, s, undefined);
}

template <bool Strict>
void run_readfirstlane(Wave& w, const Op& op) {
  const u64 exec = w.exec();
  const int lane = exec == 0 ? 0 : std::countr_zero(exec);
  u32 unknown = 0;
  const u32 value = lane_value(w, op.src[0], lane, &unknown);
  write_sgpr<Strict>(w, op.dst[0].index, value, unknown);
}

template <bool Strict>
void run_readlane(Wave& w, const Op& op) {
  u32 select_unknown = 0;
  const u32 select = read_scalar(w, op.src[1], &select_unknown);
  if constexpr (Strict) check_defined(w, select_unknown != 0, "which lane is read");
  u32 unknown = 0;
  const u32 value = lane_value(w, op.src[0], int(select & u32(w.size - 1)), &unknown);
  write_sgpr<Strict>(w, op.dst[0].index, value, unknown);
}

template <bool Strict>
void run_writelane(Wave& w, const Op& op) {
  u32 select_unknown = 0;
  const u32 lane = read_scalar(w, op.src[1], &select_unknown) & u32(w.size - 1);
  u32 unknown = 0;
  const u32 value = read_scalar(w, op.src[0], &unknown);
  const int row = op.dst[0].index;
  w.vgpr[row].lane[lane] = value;  // regardless of EXEC
  if constexpr (Strict) {
    check_defined(w, select_unknown != 0, "which lane is written");
    need_vgpr(w, row);
    w.vgpr_undef[row].lane[lane] = unknown;
    if (unknown != 0) w.vgpr_dirty[row] = 1;
  }
}

// Result lane i comes from lane from[i] of the source; the two flags select bound_ctrl and fi.
template <bool Strict>
void move_lanes(Wave& w, int dst, int src, const int* from, bool fetch_inactive, bool zero_invalid,
                u64 write) {
  const u64 exec = w.exec();
  Vgpr out;
  Vgpr unknown;
  for (int i = 0; i < w.size; ++i) {
    const int lane = from[i];
    const bool valid = fetch_inactive || (exec >> lane & 1) != 0;
    if (!valid && !zero_invalid) write &= ~(1ull << i);
    out.lane[i] = valid ? w.vgpr[src].lane[lane] : 0;
    if constexpr (Strict) unknown.lane[i] = valid ? w.vgpr_undef[src].lane[lane] : 0;
  }
  if constexpr (Strict) {
    need_vgpr(w, src);
    need_vgpr(w, dst);
    write_row<true>(w, dst, out.lane, w.vgpr_dirty[src] != 0 ? unknown.lane : nullptr, write);
  } else {
    write_row<false>(w, dst, out.lane, nullptr, write);
  }
}

// v_permlane16 and v_permlanex16: parameter 1 takes from the other row of 16.
template <bool Strict>
void run_permlane16(Wave& w, const Op& op) {
  u32 unknown1 = 0;
  u32 unknown2 = 0;
  const u64 select =
      u64{read_scalar(w, op.src[1], &unknown1)} | u64{read_scalar(w, op.src[2], &unknown2)} << 32;
  if constexpr (Strict) check_defined(w, (unknown1 | unknown2) != 0, "which lane is read");
  int from[kMaxLanes];
  for (int i = 0; i < w.size; ++i) {
    const int row = (i & ~15) ^ (op.parameter != 0 ? 16 : 0);
    from[i] = row + static_cast<int>(select >> (4 * (i & 15)) & 15);
  }
  move_lanes<Strict>(w, op.dst[0].index, op.src[0].index, from, (op.op_sel & 1) != 0,
                     (op.op_sel & 2) != 0, w.exec());
}

// The selector of the _var forms is a vector register.
template <bool Strict>
void run_permlane16_var(Wave& w, const Op& op) {
  const u64 exec = w.exec();
  const Vgpr& select = w.vgpr[op.src[1].index];
  int from[kMaxLanes];
  for (int i = 0; i < w.size; ++i) {
    if constexpr (Strict) {
      need_vgpr(w, op.src[1].index);
      check_defined(w, (exec >> i & 1) != 0 && w.vgpr_undef[op.src[1].index].lane[i] != 0,
                    "which lane is read", i);
    }
    const int row = (i & ~15) ^ (op.parameter != 0 ? 16 : 0);
    from[i] = row + static_cast<int>(select.lane[i] & 15);
  }
  move_lanes<Strict>(w, op.dst[0].index, op.src[0].index, from, (op.op_sel & 1) != 0,
                     (op.op_sel & 2) != 0, exec);
}

template <bool Strict>
void run_permlane64(Wave& w, const Op& op) {
  int from[kMaxLanes];
  for (int i = 0; i < w.size; ++i) from[i] = w.size == 64 ? i ^ 32 : i;
  move_lanes<Strict>(w, op.dst[0].index, op.src[0].index, from, true, false, w.exec());
}

// v_permlane16_swap and v_permlane32_swap: swap the odd rows of the first operand with the even
// rows of the second; parameter is the row length.
template <bool Strict>
void run_swap_rows(Wave& w, const Op& op) {
  const int a = op.dst[0].index;
  const int b = op.src[0].index;
  const int length = static_cast<int>(op.parameter);
  const u64 exec = w.exec();
  const auto swap_in = [&](Vgpr* rows) {
    for (int base = 0; base < w.size; base += 2 * length) {
      for (int i = 0; i < length; ++i) {
        const int even = base + i;
        const int odd = even + length;
        const u32 x = rows[a].lane[odd];
        const u32 y = rows[b].lane[even];
        if ((exec >> odd & 1) != 0) rows[a].lane[odd] = y;
        if ((exec >> even & 1) != 0) rows[b].lane[even] = x;
      }
    }
  };
  swap_in(w.vgpr);
  if constexpr (Strict) {
    need_vgpr(w, a);
    need_vgpr(w, b);
    if ((w.vgpr_dirty[a] | w.vgpr_dirty[b]) != 0) {
      swap_in(w.vgpr_undef);
      w.vgpr_dirty[a] = w.vgpr_dirty[b] = 1;
    }
  }
}

// Bits of the mask below this lane, counted on top of the second operand.
void mbcnt(Lanes& l, bool high) {
  for (int i = 0; i < l.n; ++i) {
    const u64 below = (1ull << i) - 1;
    const u32 part = high ? u32(below >> 32) : u32(below);
    l.d[i] = u32(std::popcount(l.lo[0][i] & part)) + l.lo[1][i];
  }
}
void mbcnt_lo(Lanes& l) { mbcnt(l, false); }
void mbcnt_hi(Lanes& l) { mbcnt(l, true); }

Semantics bit_count(ComputeFn compute) {
  Semantics s = vop<[](u32 a, u32 b) { return a + b; }>();
  s.compute = compute;
  return s;
}

}  // namespace

void add_lane_ops(Registry& r) {
  r.add("v_readfirstlane_b32",
        lane_op(run_readfirstlane<false>, run_readfirstlane<true>, {Type::B32}, 1));
  r.add("v_readlane_b32",
        lane_op(run_readlane<false>, run_readlane<true>, {Type::B32, Type::B32}, 2));
  r.add("v_writelane_b32",
        lane_op(run_writelane<false>, run_writelane<true>, {Type::B32, Type::B32}, 2));
  const Types three = {Type::B32, Type::B32, Type::B32};
  r.add("v_permlane16_b32", lane_op(run_permlane16<false>, run_permlane16<true>, three, 3, 0));
  r.add("v_permlanex16_b32", lane_op(run_permlane16<false>, run_permlane16<true>, three, 3, 1));
  r.add("v_permlane16_var_b32",
        lane_op(run_permlane16_var<false>, run_permlane16_var<true>, three, 2, 0));
  r.add("v_permlanex16_var_b32",
        lane_op(run_permlane16_var<false>, run_permlane16_var<true>, three, 2, 1));
  r.add("v_permlane64_b32", lane_op(run_permlane64<false>, run_permlane64<true>, three, 1));
  r.add("v_permlane16_swap_b32", lane_op(run_swap_rows<false>, run_swap_rows<true>, three, 1, 16));
  r.add("v_permlane32_swap_b32", lane_op(run_swap_rows<false>, run_swap_rows<true>, three, 1, 32));
  r.add("v_mbcnt_lo_u32_b32", bit_count(mbcnt_lo));
  r.add("v_mbcnt_hi_u32_b32", bit_count(mbcnt_hi));
}

}  // namespace rocflash::sim
