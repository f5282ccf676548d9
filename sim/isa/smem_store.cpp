// SMEM of gfx9 that writes memory: stores of scalar registers and scalar atomics.
#include <bit>

#include "isa/atomic_ops.h"

namespace rocflash::sim {

using namespace atomic;

namespace {

// Roles of Op::src.
constexpr int kData = 0;
constexpr int kBase = 1;  // a pair, or a buffer descriptor
constexpr int kOffset = 2;

// Semantics::parameter: the number of bytes of a store, or what atomic_ops.h says.
constexpr u32 kBuffer = 1u << 16;

struct Spot {
  u64 address = 0;
  bool inside = true;  // of the buffer
};

// Hardware ignores the low address bits: a misaligned address is a bug of the kernel.
u64 aligned(const Wave& w, u64 address, u64 alignment) {
  if (address % alignment != 0 && w.checks->misaligned) {
    raise_at(Fault::Misaligned, "a scalar access's low address bits are dropped by the hardware",
             -1, address);
  }
  return address & ~(alignment - 1);
}

template <bool Strict>
Spot spot_of(Wave& w, const Op& op, u32 bytes, u64 alignment) {
  u32 unknown_offset = 0;
  const Source& o = op.src[kOffset];
  const i64 literal = o.file == File::Literal ? i64(o.value) : 0;
  const u32 variable = o.file == File::Sgpr ? read_scalar(w, o, &unknown_offset) : 0;
  const u64 offset = u64(literal + op.offset) + variable;
  if constexpr (Strict) check_defined(w, unknown_offset != 0, "a scalar access's address");
  if ((op.parameter & kBuffer) == 0) {
    u64 unknown = 0;
    const u64 base = read_scalar64(w, op.src[kBase], &unknown);
    if constexpr (Strict) check_defined(w, unknown != 0, "a scalar access's address");
    return {aligned(w, base + offset, alignment), true};
  }
  const auto [base, size] = scalar_buffer<Strict>(w, op.src[kBase].index);
  const u64 at = aligned(w, offset, alignment);
  return {base + at, at + bytes <= size};
}

template <bool Strict>
void run_store(Wave& w, const Op& op) {
  const u32 bytes = op.parameter & 0xff;
  const int data = op.src[kData].index;
  if constexpr (Strict) need_sgpr(w, data, int(bytes / 4));
  for (u32 i = 0; i < bytes / 4; ++i) {
    Op piece = op;
    piece.offset += i32(4 * i);
    const Spot t = spot_of<Strict>(w, piece, 4, 4);
    if (!t.inside) continue;  // dropped, a dword at a time
    const Location p = device_location(w, t.address, 4, -1, Access::Write);
    store_bytes(w, p, 0, 4, w.sgpr[data + int(i)], Strict ? w.sgpr_undef[data + int(i)] : 0, -1);
  }
  if constexpr (Strict) issue_load(w, WaitCounter::Km, {});
}

// With GLC the data registers receive the old value. A compare-and-swap has the new
// value first, then what is compared.
template <bool Strict>
void run_atomic(Wave& w, const Op& op) {
  const bool wide = (op.parameter & kWide) != 0;
  const u32 bytes = wide ? 8 : 4;
  const int dwords = wide ? 2 : 1;
  const bool compare = is_compare(op.parameter);
  const int data = op.src[kData].index;
  if constexpr (Strict) need_sgpr(w, data, compare ? 2 * dwords : dwords);
  const Spot t = spot_of<Strict>(w, op, bytes, bytes);
  const auto value = [&](int first) { return wide ? w.sgpr64(first) : u64{w.sgpr[first]}; };
  const auto unknown = [&](int first) {
    return wide ? w.sgpr64_undef(first) : u64{w.sgpr_undef[first]};
  };
  u64 old = 0;
  if (t.inside) {
    const Location p = device_location(w, t.address, bytes, -1, Access::Atomic);
    const u64 new_value = value(data);
    const u64 compared = compare ? value(data + dwords) : 0;
    if constexpr (Strict) {
      const bool undefined = unknown(data) != 0 || (compare && unknown(data + dwords) != 0);
      check_defined(w, undefined, "what an atomic stores to device memory");
      u32 old_unknown = 0;
      for (u32 i = 0; i < bytes; i += 4) old_unknown |= load_undefined(p, i, 4);
      check_defined(w, old_unknown != 0 && (op.parameter & 0xff) != kSwap,
                    "what an atomic stores to device memory (its old value)");
      if (p.shadow != nullptr) std::memset(p.shadow, 0xff, bytes);
    }
    old = wide ? apply<u64>(p, op.parameter, new_value, compared)
               : apply<u32>(p, op.parameter, u32(new_value), u32(compared));
  }
  if (op.returns) {
    for (int i = 0; i < dwords; ++i) write_sgpr<Strict>(w, data + i, u32(old >> (32 * i)), 0);
  }
  if constexpr (Strict) {
    issue_load(
        w, WaitCounter::Km,
        op.returns ? InFlightAccess{File::Sgpr, u16(data), u8(dwords), 0, 0} : InFlightAccess{});
  }
}

Semantics smem(ExecFn run, ExecFn strict, u32 parameter) {
  Semantics s = executed(run, strict, InstructionClass::Smem, parameter);
  s.flags = flag::kNoDestination;
  s.src = {Type::B32, Type::B64, Type::I64};
  s.sources = 3;
  return s;
}

}  // namespace

#define ROCFLASH_SIM_SCALAR_ATOMIC(name, operation)                  \
  atomic_both("s_atomic_" name, "s_buffer_atomic_" name, operation); \
  atomic_both("s_atomic_" name "_x2", "s_buffer_atomic_" name "_x2", (operation) | kWide)

void add_scalar_store(Registry& r) {
  const auto store = [&](std::string_view direct, std::string_view buffer, u32 bytes) {
    r.add(direct, smem(run_store<false>, run_store<true>, bytes));
    r.add(buffer, smem(run_store<false>, run_store<true>, bytes | kBuffer));
  };
  store("s_store_dword", "s_buffer_store_dword", 4);
  store("s_store_dwordx2", "s_buffer_store_dwordx2", 8);
  store("s_store_dwordx4", "s_buffer_store_dwordx4", 16);
  const auto atomic_both = [&](std::string_view direct, std::string_view buffer, u32 operation) {
    r.add(direct, smem(run_atomic<false>, run_atomic<true>, operation));
    r.add(buffer, smem(run_atomic<false>, run_atomic<true>, operation | kBuffer));
  };
  ROCFLASH_SIM_SCALAR_ATOMIC("swap", kSwap);
  ROCFLASH_SIM_SCALAR_ATOMIC("cmpswap", kCmpSwap);
  ROCFLASH_SIM_SCALAR_ATOMIC("add", kAdd);
  ROCFLASH_SIM_SCALAR_ATOMIC("sub", kSub);
  ROCFLASH_SIM_SCALAR_ATOMIC("smin", kMinI);
  ROCFLASH_SIM_SCALAR_ATOMIC("umin", kMinU);
  ROCFLASH_SIM_SCALAR_ATOMIC("smax", kMaxI);
  ROCFLASH_SIM_SCALAR_ATOMIC("umax", kMaxU);
  ROCFLASH_SIM_SCALAR_ATOMIC("and", kAnd);
  ROCFLASH_SIM_SCALAR_ATOMIC("or", kOr);
  ROCFLASH_SIM_SCALAR_ATOMIC("xor", kXor);
  ROCFLASH_SIM_SCALAR_ATOMIC("inc", kInc);
  ROCFLASH_SIM_SCALAR_ATOMIC("dec", kDec);
}

}  // namespace rocflash::sim
