// Atomic operations on device memory and LDS. Device memory is shared by worker threads, so these
// are real atomics of the host there.
#include <bit>

#include "isa/atomic_ops.h"
#include "isa/vmem_address.h"

namespace rocflash::sim {

using namespace atomic;

namespace {

u64 read_data(const Wave& w, int row, int lane, bool wide) {
  const u64 low = w.vgpr[row].lane[lane];
  return wide ? low | u64{w.vgpr[row + 1].lane[lane]} << 32 : low;
}

u64 read_unknown(const Wave& w, int row, int lane, bool wide) {
  const u64 low = w.vgpr_undef[row].lane[lane];
  return wide ? low | u64{w.vgpr_undef[row + 1].lane[lane]} << 32 : low;
}

// One lane's operation at `location`; returns the old value in the destination if requested.
template <bool Strict>
void perform(Wave& w, const Op& op, const Location& p, int lane, int data_row, int data2_row,
             int dst, bool returns) {
  const bool wide = (op.parameter & kWide) != 0;
  const u32 bytes = wide ? 8 : 4;
  u64 old = 0;
  u64 old_unknown = 0;
  if (p.data != nullptr) {
    if (p.address % bytes != 0) {
      if (w.checks->misaligned) {
        raise_at(Fault::Misaligned, "an atomic operation must be aligned to its size", lane,
                 p.address);
      }
      return;
    }
    u64 data = read_data(w, data_row, lane, wide);
    u64 data2 = data2_row >= 0 ? read_data(w, data2_row, lane, wide) : 0;
    if constexpr (Strict) {
      u64 unknown = read_unknown(w, data_row, lane, wide);
      if (data2_row >= 0) unknown |= read_unknown(w, data2_row, lane, wide);
      for (u32 i = 0; i < bytes; i += 4) {
        old_unknown |= u64{load_undefined(p, i, 4)} << (8 * i);
      }
      if (p.device) {
        check_defined(w, unknown != 0, "what an atomic stores to device memory", lane);
        check_defined(w, old_unknown != 0 && (op.parameter & 0xff) != kSwap,
                      "what an atomic stores to device memory (its old value)", lane);
        if (p.shadow != nullptr) std::memset(p.shadow, 0xff, bytes);
      } else if (p.shadow != nullptr) {
        const bool spoilt = unknown != 0 || (old_unknown != 0 && (op.parameter & 0xff) != kSwap);
        std::memset(p.shadow, spoilt ? 0xff : 0, bytes);
      }
    }
    if ((op.parameter & kReverseCmp) != 0) std::swap(data, data2);
    old = wide ? apply<u64>(p, op.parameter, data, data2)
               : apply<u32>(p, op.parameter, u32(data), u32(data2));
  }
  if (!returns) return;
  for (int i = 0; i < (wide ? 2 : 1); ++i) {
    w.vgpr[dst + i].lane[lane] = u32(old >> (32 * i));
    if constexpr (Strict) {
      w.vgpr_undef[dst + i].lane[lane] = u32(old_unknown >> (32 * i));
      w.vgpr_dirty[dst + i] |= u32(old_unknown >> (32 * i)) != 0;
    }
  }
}

template <bool Strict, Space S>
void run_atomic(Wave& w, const Op& op) {
  const u64 exec = w.exec();
  const Addresses<Strict, S> addresses(w, op);
  const bool wide = (op.parameter & kWide) != 0;
  const u32 bytes = wide ? 8 : 4;
  const int data = op.src[role::kData].index;
  const bool compare = is_compare(op.parameter);
  // A compare-and-swap takes new value and comparison in consecutive registers.
  const int data2 = compare ? data + (wide ? 2 : 1) : -1;
  const int dst = op.dst[0].index;
  if constexpr (Strict) need_vgpr(w, data, (wide ? 2 : 1) * (compare ? 2 : 1));
  for (u64 m = exec; m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const Location p = addresses.location(lane, 0, bytes, Access::Atomic);
    perform<Strict>(w, op, p, lane, data, data2, dst, op.returns);
  }
  if (w.worker->count_traffic && (S == Space::Global || S == Space::Buffer)) {
    u64 list[kMaxLanes];
    for (int i = 0; i < w.size; ++i) list[i] = addresses.device_address(i);
    count_device_traffic(w, list, exec, bytes, true);
  }
  if constexpr (Strict) {
    const InFlightAccess pending =
        op.returns ? InFlightAccess{File::Vgpr, u16(dst), u8(wide ? 2 : 1), 0, 0}
                   : InFlightAccess{};
    if (op.returns || w.gfx9()) issue_load(w, WaitCounter::Load, pending);
    if (S == Space::Flat) issue_load(w, WaitCounter::Ds, pending);
  }
}

template <bool Strict>
void run_lds_atomic(Wave& w, const Op& op) {
  const bool wide = (op.parameter & kWide) != 0;
  const bool returns = (op.parameter & kLdsReturns) != 0;
  const bool two = takes_two(op.parameter);
  const int data = op.src[1].index;
  const int data2 = two ? op.src[2].index : -1;
  const int dst = op.dst[0].index;
  if constexpr (Strict) {
    need_vgpr(w, op.src[0].index);
    need_vgpr(w, data, wide ? 2 : 1);
  }
  const Vgpr address = w.vgpr[op.src[0].index];
  for (u64 m = w.exec(); m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    if constexpr (Strict) {
      check_defined(w, w.vgpr_undef[op.src[0].index].lane[lane] != 0 && dst != op.src[0].index,
                    "an LDS address", lane);
    }
    const Location p =
        lds_location(w, address.lane[lane] + u32(op.offset), wide ? 8 : 4, lane, Access::Atomic);
    perform<Strict>(w, op, p, lane, data, data2, dst, returns);
  }
  if (w.worker->count_traffic) {
    u32 list[kMaxLanes];
    for (int i = 0; i < w.size; ++i) list[i] = address.lane[i] + u32(op.offset);
    count_lds_traffic(w, list, w.exec(), wide ? 8 : 4, true);
  }
  if constexpr (Strict) {
    issue_load(
        w, WaitCounter::Ds,
        returns ? InFlightAccess{File::Vgpr, u16(dst), u8(wide ? 2 : 1), 0, 0} : InFlightAccess{});
  }
}

// ds_wrxchg2_rtn: two exchanges at two offsets.
template <bool Strict>
void run_lds_exchange2(Wave& w, const Op& op) {
  const bool wide = (op.parameter & kWide) != 0;
  const u32 bytes = wide ? 8 : 4;
  const u32 unit = bytes * ((op.parameter & 1u << 16) != 0 ? 64 : 1);
  const int step = wide ? 2 : 1;
  Op single = op;
  single.parameter = kSwap | (wide ? u32{kWide} : 0);
  const Vgpr address = w.vgpr[op.src[0].index];
  if constexpr (Strict) need_vgpr(w, op.src[0].index);
  for (u64 m = w.exec(); m != 0; m &= m - 1) {
    const int lane = std::countr_zero(m);
    const u32 at = address.lane[lane];
    const Location first = lds_location(w, at + u32(op.offset) * unit, bytes, lane, Access::Atomic);
    perform<Strict>(w, single, first, lane, op.src[1].index, -1, op.dst[0].index, true);
    const Location second =
        lds_location(w, at + u32(op.offset1) * unit, bytes, lane, Access::Atomic);
    perform<Strict>(w, single, second, lane, op.src[2].index, -1, op.dst[0].index + step, true);
  }
  if constexpr (Strict) {
    issue_load(w, WaitCounter::Ds, {File::Vgpr, op.dst[0].index, u8(2 * step), 0, 0});
  }
}

Semantics vmem_atomic(ExecFn run, ExecFn strict, u32 parameter, Space space) {
  Semantics s;
  s.run = run;
  s.run_strict = strict;
  s.kind = InstructionClass::Vmem;
  s.parameter = parameter;
  s.flags = flag::kSecondIsFirst;
  s.selectors = static_cast<u8>(space);
  return s;
}

Semantics lds_atomic(u32 parameter) {
  Semantics s;
  s.run = run_lds_atomic<false>;
  s.run_strict = run_lds_atomic<true>;
  s.kind = InstructionClass::Lds;
  s.parameter = parameter;
  s.src = {Type::B32, Type::B32, Type::B32};
  const bool two = takes_two(parameter);
  s.sources = two ? 3 : 2;
  if ((parameter & kLdsReturns) != 0) {
    s.dst = Type::B32;
  } else {
    s.flags = flag::kNoDestination;
  }
  return s;
}

void add_device(Registry& r, std::string_view global, std::string_view flat,
                std::string_view buffer, u32 parameter) {
  r.add(global, vmem_atomic(run_atomic<false, Space::Global>, run_atomic<true, Space::Global>,
                            parameter, Space::Global));
  r.add(flat, vmem_atomic(run_atomic<false, Space::Flat>, run_atomic<true, Space::Flat>, parameter,
                          Space::Flat));
  r.add(buffer, vmem_atomic(run_atomic<false, Space::Buffer>, run_atomic<true, Space::Buffer>,
                            parameter, Space::Buffer));
}

#define ROCFLASH_SIM_ATOMIC(old_name, new32, new64, operation)              \
  add_device(r, "global_atomic_" old_name "|global_atomic_" new32,          \
             "flat_atomic_" old_name "|flat_atomic_" new32,                 \
             "buffer_atomic_" old_name "|buffer_atomic_" new32, operation); \
  add_device(r, "global_atomic_" old_name "_x2|global_atomic_" new64,       \
             "flat_atomic_" old_name "_x2|flat_atomic_" new64,              \
             "buffer_atomic_" old_name "_x2|buffer_atomic_" new64, (operation) | kWide)

#define ROCFLASH_SIM_FLOAT_ATOMIC(name, operation) \
  add_device(r, "global_atomic_" name, "flat_atomic_" name, "buffer_atomic_" name, operation)

#define ROCFLASH_SIM_DS(name, new_name, operation) \
  r.add("ds_" name "|ds_" new_name, lds_atomic(operation))

// LDS atomics come in 32 and 64 bits, with and without a returned value.
#define ROCFLASH_SIM_DS_ALL(stem, new_stem, type32, type64, operation)                      \
  ROCFLASH_SIM_DS(stem "_" type32, new_stem "_" type32, operation);                         \
  ROCFLASH_SIM_DS(stem "_rtn_" type32, new_stem "_rtn_" type32, (operation) | kLdsReturns); \
  ROCFLASH_SIM_DS(stem "_" type64, new_stem "_" type64, (operation) | kWide);               \
  ROCFLASH_SIM_DS(stem "_rtn_" type64, new_stem "_rtn_" type64, (operation) | kWide | kLdsReturns)

void add_lds_atomics(Registry& r) {
  ROCFLASH_SIM_DS_ALL("add", "add", "u32", "u64", kAdd);
  ROCFLASH_SIM_DS_ALL("sub", "sub", "u32", "u64", kSub);
  ROCFLASH_SIM_DS_ALL("rsub", "rsub", "u32", "u64", kRsub);
  ROCFLASH_SIM_DS_ALL("inc", "inc", "u32", "u64", kInc);
  ROCFLASH_SIM_DS_ALL("dec", "dec", "u32", "u64", kDec);
  ROCFLASH_SIM_DS_ALL("min", "min", "i32", "i64", kMinI);
  ROCFLASH_SIM_DS_ALL("max", "max", "i32", "i64", kMaxI);
  ROCFLASH_SIM_DS_ALL("min", "min", "u32", "u64", kMinU);
  ROCFLASH_SIM_DS_ALL("max", "max", "u32", "u64", kMaxU);
  ROCFLASH_SIM_DS_ALL("and", "and", "b32", "b64", kAnd);
  ROCFLASH_SIM_DS_ALL("or", "or", "b32", "b64", kOr);
  ROCFLASH_SIM_DS_ALL("xor", "xor", "b32", "b64", kXor);
  ROCFLASH_SIM_DS_ALL("mskor", "mskor", "b32", "b64", kMskor);
  ROCFLASH_SIM_DS_ALL("cmpst", "cmpst", "b32", "b64", u32{kCmpSwap} | kReverseCmp);
  ROCFLASH_SIM_DS_ALL("cmpstore", "cmpstore", "b32", "b64", kCmpSwap);
  ROCFLASH_SIM_DS_ALL("min", "min", "f32", "f64", kMinF);
  ROCFLASH_SIM_DS_ALL("max", "max", "f32", "f64", kMaxF);
  ROCFLASH_SIM_DS_ALL("min_num", "min_num", "f32", "f64", kMinNumF);
  ROCFLASH_SIM_DS_ALL("max_num", "max_num", "f32", "f64", kMaxNumF);
  ROCFLASH_SIM_DS_ALL("add", "add", "f32", "f64", kAddF);
  ROCFLASH_SIM_DS_ALL("cmpst", "cmpst", "f32", "f64", u32{kCmpSwapF} | kReverseCmp);
  ROCFLASH_SIM_DS_ALL("cmpstore", "cmpstore", "f32", "f64", kCmpSwapF);
  ROCFLASH_SIM_DS("wrap_rtn_b32", "wrap_rtn_b32", u32{kWrap} | kLdsReturns);
  r.mark_unsupported("ds_condxchg32_rtn_b64|ds_condxchg32_rtn_b128",
                     "no compiler emits it for these targets");
  ROCFLASH_SIM_DS("pk_add_f16", "pk_add_f16", kPkAddF16);
  ROCFLASH_SIM_DS("pk_add_rtn_f16", "pk_add_rtn_f16", u32{kPkAddF16} | kLdsReturns);
  ROCFLASH_SIM_DS("pk_add_bf16", "pk_add_bf16", kPkAddBf16);
  ROCFLASH_SIM_DS("pk_add_rtn_bf16", "pk_add_rtn_bf16", u32{kPkAddBf16} | kLdsReturns);
  ROCFLASH_SIM_DS("wrxchg_rtn_b32", "storexchg_rtn_b32", u32{kSwap} | kLdsReturns);
  ROCFLASH_SIM_DS("wrxchg_rtn_b64", "storexchg_rtn_b64", u32{kSwap} | kWide | kLdsReturns);
  ROCFLASH_SIM_DS("cond_sub_u32", "cond_sub_u32", kCondSub);
  ROCFLASH_SIM_DS("cond_sub_rtn_u32", "cond_sub_rtn_u32", u32{kCondSub} | kLdsReturns);
  ROCFLASH_SIM_DS("sub_clamp_u32", "sub_clamp_u32", kSubClamp);
  ROCFLASH_SIM_DS("sub_clamp_rtn_u32", "sub_clamp_rtn_u32", u32{kSubClamp} | kLdsReturns);
  const auto exchange2 = [&](std::string_view names, u32 parameter) {
    Semantics s = lds_atomic(kSwap | kLdsReturns);
    s.run = run_lds_exchange2<false>;
    s.run_strict = run_lds_exchange2<true>;
    s.sources = 3;
    s.parameter = parameter;
    r.add(names, s);
  };
  exchange2("ds_wrxchg2_rtn_b32|ds_storexchg_2addr_rtn_b32", 0);
  exchange2("ds_wrxchg2_rtn_b64|ds_storexchg_2addr_rtn_b64", kWide);
  exchange2("ds_wrxchg2st64_rtn_b32|ds_storexchg_2addr_stride64_rtn_b32", 1u << 16);
  exchange2("ds_wrxchg2st64_rtn_b64|ds_storexchg_2addr_stride64_rtn_b64", u32{kWide} | 1u << 16);
}

}  // namespace

void add_memory_atomics(Registry& r) {
  ROCFLASH_SIM_ATOMIC("swap", "swap_b32", "swap_b64", kSwap);
  ROCFLASH_SIM_ATOMIC("cmpswap", "cmpswap_b32", "cmpswap_b64", kCmpSwap);
  ROCFLASH_SIM_ATOMIC("add", "add_u32", "add_u64", kAdd);
  ROCFLASH_SIM_ATOMIC("sub", "sub_u32", "sub_u64", kSub);
  ROCFLASH_SIM_ATOMIC("smin", "min_i32", "min_i64", kMinI);
  ROCFLASH_SIM_ATOMIC("umin", "min_u32", "min_u64", kMinU);
  ROCFLASH_SIM_ATOMIC("smax", "max_i32", "max_i64", kMaxI);
  ROCFLASH_SIM_ATOMIC("umax", "max_u32", "max_u64", kMaxU);
  ROCFLASH_SIM_ATOMIC("and", "and_b32", "and_b64", kAnd);
  ROCFLASH_SIM_ATOMIC("or", "or_b32", "or_b64", kOr);
  ROCFLASH_SIM_ATOMIC("xor", "xor_b32", "xor_b64", kXor);
  ROCFLASH_SIM_ATOMIC("inc", "inc_u32", "inc_u64", kInc);
  ROCFLASH_SIM_ATOMIC("dec", "dec_u32", "dec_u64", kDec);
  ROCFLASH_SIM_ATOMIC("fmin", "min_f32", "min_f64", kMinF);
  ROCFLASH_SIM_ATOMIC("fmax", "max_f32", "max_f64", kMaxF);
  ROCFLASH_SIM_FLOAT_ATOMIC("add_f32", kAddF);
  ROCFLASH_SIM_FLOAT_ATOMIC("add_f64", u32{kAddF} | kWide);
  ROCFLASH_SIM_FLOAT_ATOMIC("min_num_f32", kMinNumF);
  ROCFLASH_SIM_FLOAT_ATOMIC("max_num_f32", kMaxNumF);
  ROCFLASH_SIM_FLOAT_ATOMIC("pk_add_f16", kPkAddF16);
  ROCFLASH_SIM_FLOAT_ATOMIC("pk_add_bf16", kPkAddBf16);
  ROCFLASH_SIM_ATOMIC("fcmpswap", "cmpswap_f32", "cmpswap_f64", kCmpSwapF);
  ROCFLASH_SIM_FLOAT_ATOMIC("min_num_f64", u32{kMinNumF} | kWide);
  ROCFLASH_SIM_FLOAT_ATOMIC("max_num_f64", u32{kMaxNumF} | kWide);
  ROCFLASH_SIM_FLOAT_ATOMIC("csub", kCsub);
  ROCFLASH_SIM_FLOAT_ATOMIC("csub_u32", kCsub);
  ROCFLASH_SIM_FLOAT_ATOMIC("sub_clamp_u32", kSubClamp);
  ROCFLASH_SIM_FLOAT_ATOMIC("cond_sub_u32", kCondSub);
  add_lds_atomics(r);
}

}  // namespace rocflash::sim
