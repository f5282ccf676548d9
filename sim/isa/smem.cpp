// SMEM: loads into scalar registers, and the clocks.
#include <immintrin.h>

#include "isa/memory_access.h"

namespace rocflash::sim {
namespace {

// Source 0 is the base (a pair, or a buffer descriptor), source 1 the offset.
template <bool Strict>
u64 scalar_offset(Wave& w, const Op& op) {
  u32 unknown = 0;
  const i64 literal = op.src[1].file == File::Literal ? i64(op.src[1].value) : 0;
  const u32 variable = op.src[1].file == File::Sgpr ? read_scalar(w, op.src[1], &unknown) : 0;
  if constexpr (Strict) check_defined(w, unknown != 0, "a scalar load's address");
  return u64(literal + op.offset) + variable;
}

template <bool Strict>
void finish_load(Wave& w, const Op& op, u32 dwords) {
  if constexpr (Strict) {
    if (op.dst[0].index != sreg::kNull) {
      issue_load(w, WaitCounter::Km, {File::Sgpr, op.dst[0].index, u8(dwords), 0, 0});
    }
  }
}

u32 extend(u32 value, u32 parameter) {
  const u32 bytes = parameter & width::kBytes;
  if (bytes >= 4 || (parameter & width::kSigned) == 0) return value;
  return bytes == 1 ? u32(i32(i8(value))) : u32(i32(i16(value)));
}

template <bool Strict>
void run_load(Wave& w, const Op& op) {
  const u32 bytes = op.parameter & width::kBytes;
  u64 unknown = 0;
  const u64 base = read_scalar64(w, op.src[0], &unknown);
  if constexpr (Strict) check_defined(w, unknown != 0, "a scalar load's address");
  u64 address = base + scalar_offset<Strict>(w, op);
  const u64 alignment = bytes >= 4 ? 4 : bytes;
  if (address % alignment != 0) {
    if (w.checks->misaligned) {
      raise_at(Fault::Misaligned, "a scalar load's low address bits are dropped by the hardware",
               -1, address);
    }
    address &= ~(alignment - 1);
  }
  const Location p = device_location(w, address, bytes, -1, Access::Read);
  const u32 dwords = std::max(1u, bytes / 4);
  for (u32 i = 0; i < dwords; ++i) {
    u32 value = 0;
    std::memcpy(&value, p.data + 4 * i, std::min(bytes, 4u));
    write_sgpr<Strict>(w, op.dst[0].index == sreg::kNull ? sreg::kNull : op.dst[0].index + int(i),
                       extend(value, op.parameter),
                       Strict ? load_undefined(p, 4 * i, std::min(bytes, 4u)) : 0);
  }
  finish_load<Strict>(w, op, dwords);
}

template <bool Strict>
void run_buffer_load(Wave& w, const Op& op) {
  const u32 bytes = op.parameter & width::kBytes;
  const auto [base, size] = scalar_buffer<Strict>(w, op.src[0].index);
  const u64 offset = scalar_offset<Strict>(w, op);
  const u32 dwords = std::max(1u, bytes / 4);
  const u32 part = std::min(bytes, 4u);
  for (u32 i = 0; i < dwords; ++i) {
    const u64 at = offset + 4 * i;
    u32 value = 0;
    u32 unknown = 0;
    if (at + part <= size) {
      const Location p = device_location(w, base + at, part, -1, Access::Read);
      std::memcpy(&value, p.data, part);
      if constexpr (Strict) unknown = load_undefined(p, 0, part);
    }
    write_sgpr<Strict>(w, op.dst[0].index + int(i), extend(value, op.parameter), unknown);
  }
  finish_load<Strict>(w, op, dwords);
}

template <bool Strict>
void run_clock(Wave& w, const Op& op) {
  write_sgpr64<Strict>(w, op.dst[0].index, static_cast<u64>(__rdtsc()), 0);
  finish_load<Strict>(w, op, 2);
}

Semantics smem(ExecFn run, ExecFn strict, u32 parameter, Type base, u8 sources) {
  Semantics s = executed(run, strict, InstructionClass::Smem, parameter);
  s.dst = Type::B32;
  s.src = {base, Type::I64};
  s.sources = sources;
  return s;
}

}  // namespace

void add_scalar_memory(Registry& r) {
  const auto load = [&](std::string_view direct, std::string_view buffer, u32 parameter) {
    r.add(direct, smem(run_load<false>, run_load<true>, parameter, Type::B64, 2));
    r.add(buffer, smem(run_buffer_load<false>, run_buffer_load<true>, parameter, Type::B64, 2));
  };
  load("s_load_dword|s_load_b32", "s_buffer_load_dword|s_buffer_load_b32", 4);
  load("s_load_dwordx2|s_load_b64", "s_buffer_load_dwordx2|s_buffer_load_b64", 8);
  load("s_load_b96", "s_buffer_load_b96", 12);
  load("s_load_dwordx4|s_load_b128", "s_buffer_load_dwordx4|s_buffer_load_b128", 16);
  load("s_load_dwordx8|s_load_b256", "s_buffer_load_dwordx8|s_buffer_load_b256", 32);
  load("s_load_dwordx16|s_load_b512", "s_buffer_load_dwordx16|s_buffer_load_b512", 64);
  load("s_load_u8", "s_buffer_load_u8", 1);
  load("s_load_i8", "s_buffer_load_i8", 1 | width::kSigned);
  load("s_load_u16", "s_buffer_load_u16", 2);
  load("s_load_i16", "s_buffer_load_i16", 2 | width::kSigned);
  r.add("s_memtime|s_memrealtime", smem(run_clock<false>, run_clock<true>, 8, Type::None, 0));
  r.mark_unsupported(
      "s_scratch_load_dword|s_scratch_load_dwordx2|s_scratch_load_dwordx4|"
      "s_scratch_store_dword|s_scratch_store_dwordx2|s_scratch_store_dwordx4",
      "scratch is not laid out for scalar accesses here");
  r.mark_unsupported(
      "s_atc_probe|s_atc_probe_buffer|"
      "s_dcache_discard|s_dcache_discard_x2|s_get_waveid_in_workgroup|s_alloc_vgpr",
      "no compiler emits it for these targets");
}

}  // namespace rocflash::sim
