// Operand fetch, result write and shadow state of VALU instructions.
#include "isa/valu.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>

namespace rocflash::sim {
namespace {

constexpr Vgpr kZeroRow{};

inline u32 sign_bit(Type t) {
  return t == Type::F16 || t == Type::BF16 || t == Type::I16 || t == Type::B16 ? 0x8000u
                                                                               : 0x80000000u;
}

inline bool is_sixteen(Type t) {
  return t == Type::F16 || t == Type::BF16 || t == Type::I16 || t == Type::B16;
}
inline bool is_sixty_four(Type t) { return t == Type::F64 || t == Type::B64 || t == Type::I64; }

u64 special_value(const Wave& w, u16 index) {
  switch (static_cast<Special>(index)) {
    case Special::SharedBase:
      return kSharedAperture;
    case Special::SharedLimit:
      return kSharedAperture | 0xffffffffull;
    case Special::PrivateBase:
      return kPrivateAperture;
    case Special::PrivateLimit:
      return kPrivateAperture | 0xffffffffull;
    case Special::Vccz:
      return w.read_mask(sreg::kVcc) == 0;
    case Special::Execz:
      return w.exec() == 0;
    case Special::Scc:
      return w.scc;
    case Special::PopsExitingWaveId:
      return 0;
  }
  return 0;
}

void fill(u32* row, u32 value, int n) { std::fill_n(row, n, value); }

// Applies SDWA's selection of a byte or word.
u32 select_part(u32 value, u8 select, bool sext) {
  switch (select) {
    case 0:
    case 1:
    case 2:
    case 3: {
      const u32 byte = (value >> (8 * select)) & 0xff;
      return sext ? u32(i32(i8(byte))) : byte;
    }
    case 4:
    case 5: {
      const u32 word = (value >> (16 * (select - 4))) & 0xffff;
      return sext ? u32(i32(i16(word))) : word;
    }
    default:
      return value;
  }
}

}  // namespace

ScopedFpMode::ScopedFpMode(u32 mode, bool wide) : saved_(_mm_getcsr()) {
  const u32 round = (mode >> (wide ? 2 : 0)) & 3;
  const u32 denorm = (mode >> (wide ? 6 : 4)) & 3;
  // MODE counts nearest, up, down, zero; MXCSR nearest, down, up, zero.
  constexpr u32 kRound[] = {0, 2, 1, 3};
  u32 csr = saved_ & ~0xe040u;
  csr |= kRound[round] << 13;
  if ((denorm & 1) == 0) csr |= 0x0040;  // denormal inputs are zeros
  if ((denorm & 2) == 0) csr |= 0x8000;  // denormal results are flushed
  _mm_setcsr(csr);
}

ScopedFpMode::~ScopedFpMode() { _mm_setcsr(saved_); }

namespace {

// One scalar register, or a pair.
template <typename T>
T read_as(const Wave& w, const Source& source, T* undefined) {
  constexpr bool kPair = sizeof(T) == 8;
  T unknown = 0;
  T value = 0;
  switch (source.file) {
    case File::Sgpr:
      if (source.index == sreg::kNull) break;
      if (w.strict) {
        need_sgpr(w, source.index, kPair ? 2 : 1);
        unknown = T(kPair ? w.sgpr64_undef(source.index) : w.sgpr_undef[source.index]);
      }
      value = T(kPair ? w.sgpr64(source.index) : w.sgpr[source.index]);
      break;
    case File::Literal:
      value = T(source.value);
      break;
    case File::Special:
      value = T(special_value(w, source.index));
      break;
    default:
      break;
  }
  if (undefined != nullptr) *undefined = unknown;
  return value;
}

}  // namespace

u32 read_scalar(const Wave& w, const Source& source, u32* undefined) {
  return read_as<u32>(w, source, undefined);
}

u64 read_scalar64(const Wave& w, const Source& source, u64* undefined) {
  return read_as<u64>(w, source, undefined);
}

u64 read_mask_source(const Wave& w, const Source& source, u64* undefined) {
  if (w.size == 64) return read_scalar64(w, source, undefined);
  u32 unknown = 0;
  const u32 value = read_scalar(w, source, &unknown);
  if (undefined != nullptr) *undefined = unknown;
  return value;
}

bool source_clean(const Wave& w, const Source& source) {
  switch (source.file) {
    case File::Vgpr:
      for (int i = 0; i < source.dwords; ++i) {
        if (w.vgpr_dirty[source.index + i] != 0) return false;
      }
      return true;
    case File::Sgpr:
      if (source.index == sreg::kNull) return true;
      for (int i = 0; i < source.dwords; ++i) {
        if (w.sgpr_undef[source.index + i] != 0) return false;
      }
      return true;
    case File::Special:
      return static_cast<Special>(source.index) != Special::Scc || !w.scc_undef;
    default:
      return true;
  }
}

void need_source(const Wave& w, const Source& source) {
  if (source.file == File::Vgpr) {
    const u16 halves = !is_sixteen(source.type) ? kBothHalves : source.high ? kHighHalf : kLowHalf;
    need_vgpr(w, source.index, source.dwords, halves);
  } else if (source.file == File::Sgpr && source.index != sreg::kNull) {
    need_sgpr(w, source.index, source.dwords);
  }
}

template <Aspect A>
void fetch_source(Wave& w, const Op& op, const Source& source, bool dpp, Fetched& out,
                  u64& disabled) {
  const bool wide = is_sixty_four(source.type);
  const Vgpr* rows = A == Aspect::Value ? w.vgpr : w.vgpr_undef;
  switch (source.file) {
    case File::Vgpr:
      out.lo = rows[source.index].lane;
      out.hi = wide ? rows[source.index + 1].lane : kZeroRow.lane;
      break;
    case File::Literal:
      out.lo = A == Aspect::Value ? source.constant->lane : kZeroRow.lane;
      out.hi = A == Aspect::Value ? source.constant_high->lane : kZeroRow.lane;
      break;
    default: {
      u64 unknown = 0;
      u64 value;
      if (wide) {
        value = read_scalar64(w, source, &unknown);
      } else {
        u32 unknown32 = 0;
        value = read_scalar(w, source, &unknown32);
        unknown = unknown32;
      }
      if constexpr (A == Aspect::Undefined) value = unknown;
      fill(out.built_lo.lane, u32(value), w.size);
      out.lo = out.built_lo.lane;
      out.hi = kZeroRow.lane;
      if (wide) {
        fill(out.built_hi.lane, u32(value >> 32), w.size);
        out.hi = out.built_hi.lane;
      }
      break;
    }
  }
  if (dpp && op.dpp != nullptr) {
    const u64 exec = w.exec();
    Vgpr permuted;
    Vgpr permuted_hi;
    u64 off = 0;
    for (int i = 0; i < w.size; ++i) {
      const int from = op.dpp->from[static_cast<std::size_t>(i)];
      const bool valid = from >= 0 && (op.dpp->fetch_inactive || ((exec >> from) & 1) != 0);
      permuted.lane[i] = valid ? out.lo[from] : 0;
      permuted_hi.lane[i] = valid ? out.hi[from] : 0;
      if (!valid && !op.dpp->zero_invalid) off |= 1ull << i;
    }
    disabled |= off;
    out.built_lo = permuted;
    out.lo = out.built_lo.lane;
    if (wide) {
      out.built_hi = permuted_hi;
      out.hi = out.built_hi.lane;
    }
  }
  if (source.unmodified()) return;
  const int n = w.size;
  u32* lo = out.built_lo.lane;
  if (source.select != 6) {
    for (int i = 0; i < n; ++i) lo[i] = select_part(out.lo[i], source.select, source.sext);
    out.lo = lo;
  } else if (source.high) {
    for (int i = 0; i < n; ++i) lo[i] = out.lo[i] >> 16;
    out.lo = lo;
  } else if (source.sext && is_sixteen(source.type)) {
    for (int i = 0; i < n; ++i) lo[i] = u32(i32(i16(out.lo[i])));
    out.lo = lo;
  }
  if constexpr (A == Aspect::Value) {
    if (source.neg || source.abs) {
      const u32 bit = sign_bit(source.type);
      const u32 clear = source.abs ? ~bit : ~0u;
      const u32 flip = source.neg ? bit : 0;
      const u32* from = wide ? out.hi : out.lo;
      u32* to = wide ? out.built_hi.lane : lo;
      for (int i = 0; i < n; ++i) to[i] = (from[i] & clear) ^ flip;
      (wide ? out.hi : out.lo) = to;
    }
  }
}

template void fetch_source<Aspect::Value>(Wave&, const Op&, const Source&, bool, Fetched&, u64&);
template void fetch_source<Aspect::Undefined>(Wave&, const Op&, const Source&, bool, Fetched&,
                                              u64&);

template <bool Strict>
void write_row(Wave& w, int row, const u32* values, const u32* undefined, u64 mask) {
  u32* d = w.vgpr[row].lane;
  const int n = w.size;
  const bool full = mask == w.full_mask();
  if (full) {
    if (values != d) std::copy_n(values, n, d);
  } else {
    const u32* m = w.lanes_of(mask);
    for (int i = 0; i < n; ++i) d[i] = (values[i] & m[i]) | (d[i] & ~m[i]);
  }
  if constexpr (Strict) {
    if (undefined == nullptr && w.vgpr_dirty[row] == 0) return;
    u32* u = w.vgpr_undef[row].lane;
    if (undefined == nullptr) undefined = kZeroRow.lane;
    u32 any = 0;
    if (full) {
      for (int i = 0; i < n; ++i) any |= u[i] = undefined[i];
    } else {
      const u32* m = w.lanes_of(mask);
      for (int i = 0; i < n; ++i) any |= u[i] = (undefined[i] & m[i]) | (u[i] & ~m[i]);
    }
    w.vgpr_dirty[row] = any != 0;
  }
}

template void write_row<false>(Wave&, int, const u32*, const u32*, u64);
template void write_row<true>(Wave&, int, const u32*, const u32*, u64);

}  // namespace rocflash::sim
