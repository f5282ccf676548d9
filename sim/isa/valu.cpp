// VALU instruction forms: VOP1/2/3, VOPC, packed VOP3P, mixed precision, VOPD.
#include <immintrin.h>

#include <optional>

#include "isa/elementwise.h"
#include "isa/valu.h"

namespace rocflash::sim {
namespace {

inline bool is_sixteen(Type t) {
  return t == Type::F16 || t == Type::BF16 || t == Type::I16 || t == Type::B16;
}
inline bool is_sixty_four(Type t) { return t == Type::F64 || t == Type::B64 || t == Type::I64; }
inline bool is_float(Type t) { return t == Type::F16 || t == Type::F32 || t == Type::F64; }

// Output modifiers of float results: multiply, then clamp to [0, 1] with NaN to 0.
template <typename T>
void modify(const Op& op, u32* lo, u32* hi, int n) {
  const float factor = op.omod == 1 ? 2.0f : op.omod == 2 ? 4.0f : op.omod == 3 ? 0.5f : 1.0f;
  for (int i = 0; i < n; ++i) {
    T x = load_lane<T>(lo, hi, i);
    if (op.omod != 0) x = static_cast<T>(x * static_cast<T>(factor));
    if (op.clamp) x = x > T(0) ? (x < T(1) ? x : T(1)) : T(0);
    store_lane<T>(lo, hi, i, x);
  }
}

void modify_result(const Op& op, Type type, u32* lo, u32* hi, int n) {
  if (type == Type::F32) modify<float>(op, lo, hi, n);
  if (type == Type::F16) modify<f16>(op, lo, hi, n);
  if (type == Type::F64) modify<double>(op, lo, hi, n);
}

bool is_infinite(Type t, u32 lo, u32 hi) {
  if (t == Type::F16) return (lo & 0x7fffu) == 0x7c00u;
  if (t == Type::F32) return (lo & 0x7fffffffu) == 0x7f800000u;
  return t == Type::F64 && lo == 0 && (hi & 0x7fffffffu) == 0x7ff00000u;
}

// MODE's FP16_OVFL: an infinite f16 result of finite sources becomes the largest number.
void clamp_overflow(u32 mode, const Lanes& l, const Type* types, int sources, u32* out) {
  if ((mode >> kModeOverflowBit & 1) == 0) return;
  for (int i = 0; i < l.n; ++i) {
    if (!is_infinite(Type::F16, out[i], 0)) continue;
    bool from_infinity = false;
    for (int k = 0; k < sources; ++k) {
      const u32 high = types[k] == Type::F64 ? l.hi[k][i] : 0;
      from_infinity = from_infinity || is_infinite(types[k], l.lo[k][i], high);
    }
    if (!from_infinity) --out[i];
  }
}

// A dword with any undefined bit becomes undefined in all bits.
inline u32 spread(u32 x) { return x != 0 ? ~0u : 0u; }
// All bits from the lowest undefined one up, which a carry can reach.
inline u32 smear(u32 x) { return x | (0u - x); }

struct ShadowInputs {
  Fetched source[4];
  int count = 0;
  Type types[4] = {};
};

// The part of a source that its type reads.
inline u32 relevant(Type t) { return is_sixteen(t) ? 0xffffu : ~0u; }

void propagate_any(const ShadowInputs& in, u32* out, int n) {
  for (int i = 0; i < n; ++i) out[i] = 0;
  for (int k = 0; k < in.count; ++k) {
    const u32 mask = relevant(in.types[k]);
    const u32* lo = in.source[k].lo;
    const u32* hi = in.source[k].hi;
    for (int i = 0; i < n; ++i) out[i] |= (lo[i] & mask) | hi[i];
  }
  for (int i = 0; i < n; ++i) out[i] = spread(out[i]);
}

// Computes the undefined bits of the result into lo/hi. `values` are the source values.
void propagate(const Op& op, const ShadowInputs& in, const Lanes& values, u32* lo, u32* hi, int n) {
  const Semantics& s = *op.semantics;
  const auto* a = in.source[0].lo;
  const auto* ah = in.source[0].hi;
  const bool wide = is_sixty_four(s.dst);
  switch (s.propagation) {
    case Propagation::Copy:
      for (int i = 0; i < n; ++i) lo[i] = a[i];
      if (wide) {
        for (int i = 0; i < n; ++i) hi[i] = ah[i];
      }
      return;
    case Propagation::Bitwise:
    case Propagation::Add:
      for (int i = 0; i < n; ++i) lo[i] = 0;
      for (int k = 0; k < in.count; ++k) {
        for (int i = 0; i < n; ++i) lo[i] |= in.source[k].lo[i];
      }
      if (s.propagation == Propagation::Add) {
        for (int i = 0; i < n; ++i) lo[i] = smear(lo[i]);
      }
      if (wide) {
        for (int i = 0; i < n; ++i) hi[i] = s.propagation == Propagation::Add ? spread(lo[i]) : 0;
        for (int k = 0; k < in.count; ++k) {
          for (int i = 0; i < n; ++i) hi[i] |= in.source[k].hi[i];
        }
        if (s.propagation == Propagation::Add) {
          for (int i = 0; i < n; ++i) hi[i] = smear(hi[i]);
        }
      }
      return;
    case Propagation::And:
    case Propagation::Or: {
      const auto* b = in.source[1].lo;
      const u32 flip = s.propagation == Propagation::Or ? ~0u : 0u;
      const u32* x = values.lo[0];
      const u32* y = values.lo[1];
      for (int i = 0; i < n; ++i) {
        lo[i] = (a[i] & (b[i] | (y[i] ^ flip))) | (b[i] & (a[i] | (x[i] ^ flip)));
      }
      if (in.count == 3) {  // and-or: a defined 1 of the third decides
        const u32* c = in.source[2].lo;
        const u32* z = values.lo[2];
        for (int i = 0; i < n; ++i) lo[i] = (lo[i] & ~(z[i] & ~c[i])) | c[i];
      }
      return;
    }
    case Propagation::Route: {
      // Route the undefined bits as the instruction routes the data; an undefined selector
      // makes the whole result undefined.
      Lanes shadow = values;
      shadow.d = lo;
      shadow.dh = hi;
      for (int k = 0; k < in.count; ++k) {
        if ((s.selectors >> k & 1) != 0) continue;
        shadow.lo[k] = in.source[k].lo;
        shadow.hi[k] = in.source[k].hi;
      }
      op.compute(shadow);
      for (int k = 0; k < in.count; ++k) {
        if ((s.selectors >> k & 1) == 0) continue;
        const u32 mask = relevant(in.types[k]);
        for (int i = 0; i < n; ++i) {
          const u32 spoilt = spread(in.source[k].lo[i] & mask);
          lo[i] |= spoilt;
          if (wide) hi[i] |= spoilt;
        }
      }
      return;
    }
    case Propagation::MulAdd:
      for (int i = 0; i < n; ++i) {
        const u32 product = spread(a[i] | in.source[1].lo[i]);
        lo[i] = product | smear(in.source[2].lo[i]);
        hi[i] = lo[i] != 0 ? ~0u : smear(in.source[2].hi[i]);
      }
      return;
    case Propagation::PackPair:
      for (int i = 0; i < n; ++i) {
        lo[i] = (spread(a[i] & relevant(in.types[0])) & 0xffffu) |
                (spread(in.source[1].lo[i] & relevant(in.types[1])) & 0xffff0000u);
      }
      return;
    case Propagation::Any:
      break;
  }
  propagate_any(in, lo, n);
  if (wide) {
    for (int i = 0; i < n; ++i) hi[i] = lo[i];
  }
}

// Puts a 16-bit result into its half of the destination, or SDWA's part.
void insert_part(const Op& op, u32* value, const u32* old, int n, bool keep) {
  if (op.sdwa && op.dst_select != 6) {
    const u32 width = op.dst_select < 4 ? 8 : 16;
    const u32 shift = op.dst_select < 4 ? 8u * op.dst_select : 16u * (op.dst_select - 4u);
    const u32 part = (width == 8 ? 0xffu : 0xffffu) << shift;
    for (int i = 0; i < n; ++i) {
      const u32 v = (value[i] << shift) & part;
      u32 rest = 0;
      if (op.dst_unused == 2) rest = old[i] & ~part;
      if (op.dst_unused == 1 && shift + width < 32) {
        const bool negative = (value[i] >> (width - 1) & 1) != 0;
        rest = negative ? ~0u << (shift + width) : 0;
      }
      value[i] = v | rest;
    }
    return;
  }
  if (op.dst_high) {
    for (int i = 0; i < n; ++i) value[i] = (value[i] << 16) | (keep ? old[i] & 0xffffu : 0);
  } else {
    for (int i = 0; i < n; ++i) value[i] = (value[i] & 0xffffu) | (keep ? old[i] & 0xffff0000u : 0);
  }
}

Lanes lanes_of(const Wave& w, const Op& op) {
  Lanes l;
  l.n = w.size;
  l.clamp = op.clamp;
  l.op = &op;
  l.mode = w.mode;
  l.target = w.target;
  return l;
}

// Fetches the first `count` sources with modifiers applied.
template <bool Strict>
void fetch_values(Wave& w, const Op& op, int count, Fetched* source, Lanes& l, u64& disabled) {
  for (int k = 0; k < count; ++k) {
    const auto i = static_cast<std::size_t>(k);
    if constexpr (Strict) need_source(w, op.src[i]);
    fetch_source<Aspect::Value>(w, op, op.src[i], k == 0, source[k], disabled);
    l.lo[k] = source[k].lo;
    l.hi[k] = source[k].hi;
  }
}

// Their undefined bits. (Rows point into `in` itself, which therefore stays where it is.)
void fetch_undefined(Wave& w, const Op& op, int count, ShadowInputs& in) {
  in.count = count;
  u64 ignored = 0;
  for (int k = 0; k < count; ++k) {
    const auto i = static_cast<std::size_t>(k);
    fetch_source<Aspect::Undefined>(w, op, op.src[i], k == 0, in.source[k], ignored);
    in.types[k] = op.src[i].type;
  }
}

}  // namespace

template <bool Strict>
void run_vop(Wave& w, const Op& op) {
  const Semantics& s = *op.semantics;
  const u64 exec = w.exec();
  u64 disabled = 0;
  Fetched source[4];
  Lanes l = lanes_of(w, op);
  const bool mask_in = (s.flags & flag::kMaskIn) != 0;
  const int sources = op.sources - (mask_in ? 1 : 0);
  fetch_values<Strict>(w, op, sources, source, l, disabled);
  u64 mask_unknown = 0;
  if (mask_in) {
    l.mask_in = read_mask_source(w, op.src[static_cast<std::size_t>(sources)], &mask_unknown);
  } else if ((s.flags & flag::kReadsVcc) != 0) {
    if constexpr (Strict) need_sgpr(w, sreg::kVcc, w.size / 32);
    l.mask_in = w.read_mask(sreg::kVcc);
    mask_unknown = w.read_mask_undef(sreg::kVcc);
  }
  const u64 write = exec & ~disabled & (op.dpp != nullptr ? op.dpp->write_mask : ~0ull);
  const int row = op.dst[0].index;
  const bool to_vgpr = op.dst[0].file == File::Vgpr;
  const bool wide = is_sixty_four(s.dst);
  const bool part =
      (is_sixteen(s.dst) && (s.flags & flag::kWhole16) == 0) || (op.sdwa && op.dst_select != 6);

  Vgpr out;
  Vgpr out_hi;
  const bool finish = part || (is_float(s.dst) && (op.clamp || op.omod != 0));
  const bool direct = !Strict && to_vgpr && !finish && write == w.full_mask();
  l.d = direct ? w.vgpr[row].lane : out.lane;
  l.dh = wide && direct ? w.vgpr[row + 1].lane : out_hi.lane;
  if (!w.mode_default && (s.flags & flag::kFloatMode) != 0) {
    const ScopedFpMode host(w.mode, uses_fp16_fp64_mode(s.dst) || uses_fp16_fp64_mode(s.src[0]));
    op.compute(l);
  } else {
    op.compute(l);
  }
  if (finish && is_float(s.dst)) modify_result(op, s.dst, out.lane, out_hi.lane, w.size);
  if (finish && s.dst == Type::F16) clamp_overflow(w.mode, l, s.src.data(), sources, out.lane);

  const u32* undefined = nullptr;
  const u32* undefined_hi = nullptr;
  Vgpr unknown;
  Vgpr unknown_hi;
  bool clean = true;
  if constexpr (Strict) {
    const bool keeps = part && op.dst_keep && !op.sdwa;
    need_vgpr(w, row, wide ? 2 : 1, !keeps ? kBothHalves : op.dst_high ? kHighHalf : kLowHalf);
    for (int k = 0; k < sources && clean; ++k) {
      clean = source_clean(w, op.src[static_cast<std::size_t>(k)]);
    }
    clean = clean && (mask_unknown & exec) == 0;
    if (!clean) {
      ShadowInputs in;
      fetch_undefined(w, op, sources, in);
      propagate(op, in, l, unknown.lane, unknown_hi.lane, w.size);
      for (int i = 0; i < w.size; ++i) {
        if ((mask_unknown >> i & 1) != 0) unknown.lane[i] = unknown_hi.lane[i] = ~0u;
      }
      if (part) insert_part(op, unknown.lane, w.vgpr_undef[row].lane, w.size, op.dst_keep);
      undefined = unknown.lane;
      undefined_hi = unknown_hi.lane;
    } else if (part && w.vgpr_dirty[row] != 0) {
      std::fill_n(unknown.lane, w.size, 0u);
      insert_part(op, unknown.lane, w.vgpr_undef[row].lane, w.size, op.dst_keep);
      undefined = unknown.lane;
    }
  }
  if (part) insert_part(op, out.lane, w.vgpr[row].lane, w.size, op.dst_keep);
  if (to_vgpr) {
    if (!direct) {
      write_row<Strict>(w, row, out.lane, undefined, write);
      if (wide) write_row<Strict>(w, row + 1, out_hi.lane, undefined_hi, write);
    }
  } else {
    raise(Fault::BadProgram, "a vector result goes to a register that is not a VGPR");
  }
  if ((s.flags & flag::kMaskOut) != 0) {
    u64 bits_unknown = 0;
    if constexpr (Strict) {
      if (!clean) {
        for (int i = 0; i < w.size; ++i) {
          bits_unknown |= u64{unknown.lane[i] != 0} << i;
        }
      }
    }
    write_mask<Strict>(w, op.dst[1].index, l.mask_out & exec, bits_unknown & exec);
  }
}

template <bool Strict>
void run_compare(Wave& w, const Op& op) {
  const Semantics& s = *op.semantics;
  u64 disabled = 0;
  Fetched source[3];
  Lanes l = lanes_of(w, op);
  fetch_values<Strict>(w, op, op.sources, source, l, disabled);
  if (!w.mode_default && (s.flags & flag::kFloatMode) != 0) {
    const ScopedFpMode host(w.mode, uses_fp16_fp64_mode(s.src[0]));
    op.compute(l);
  } else {
    op.compute(l);
  }
  const u64 exec = w.exec();
  u64 unknown = 0;
  if constexpr (Strict) {
    bool clean = true;
    for (int k = 0; k < op.sources; ++k) {
      clean = clean && source_clean(w, op.src[static_cast<std::size_t>(k)]);
    }
    if (!clean) {
      ShadowInputs in;
      fetch_undefined(w, op, op.sources, in);
      Vgpr bits;
      propagate_any(in, bits.lane, w.size);
      unknown = pack_mask(bits.lane, w.size) & exec;
    }
  }
  const u64 active = exec & ~disabled & (op.dpp != nullptr ? op.dpp->write_mask : ~0ull);
  const u64 result = l.mask_out & active;
  if (op.destinations != 0) write_mask<Strict>(w, op.dst[0].index, result, unknown);
  if ((s.flags & flag::kCompareExec) != 0) write_mask<Strict>(w, sreg::kExec, result, unknown);
}

namespace {

// Half `high` of each lane, with its own negation, as a 16-bit value in the low half.
template <Aspect A>
void take_half(const u32* from, bool high, bool negate, u32* to, int n) {
  const u32 flip = A == Aspect::Value && negate ? 0x8000u : 0u;
  const int shift = high ? 16 : 0;
  for (int i = 0; i < n; ++i) to[i] = ((from[i] >> shift) & 0xffffu) ^ flip;
}

struct Halves {
  Vgpr lo[3];
  Vgpr hi[3];
};

template <Aspect A>
void fetch_halves(Wave& w, const Op& op, Halves& halves) {
  u64 disabled = 0;
  for (int k = 0; k < op.sources; ++k) {
    const auto i = static_cast<std::size_t>(k);
    Source bare = op.src[i];
    bare.neg = bare.abs = false;
    bare.high = false;
    Fetched f;
    fetch_source<A>(w, op, bare, k == 0, f, disabled);
    take_half<A>(f.lo, (op.op_sel >> k & 1) != 0, (op.neg_lo >> k & 1) != 0, halves.lo[k].lane,
                 w.size);
    take_half<A>(f.lo, (op.op_sel_hi >> k & 1) != 0, (op.neg_hi >> k & 1) != 0, halves.hi[k].lane,
                 w.size);
  }
}

}  // namespace

template <bool Strict>
void run_packed16(Wave& w, const Op& op) {
  const Semantics& s = *op.semantics;
  Halves halves;
  if constexpr (Strict) {
    for (int k = 0; k < op.sources; ++k) need_source(w, op.src[static_cast<std::size_t>(k)]);
    need_vgpr(w, op.dst[0].index);
  }
  fetch_halves<Aspect::Value>(w, op, halves);
  Vgpr out;
  Vgpr out_hi;
  Lanes l = lanes_of(w, op);
  const bool moded = !w.mode_default && (s.flags & flag::kFloatMode) != 0;
  std::optional<ScopedFpMode> host;
  if (moded) host.emplace(w.mode, true);
  for (int k = 0; k < op.sources; ++k) l.lo[k] = halves.lo[k].lane;
  l.d = out.lane;
  op.compute(l);
  if (s.dst == Type::F16) clamp_overflow(w.mode, l, s.src.data(), op.sources, out.lane);
  for (int k = 0; k < op.sources; ++k) l.lo[k] = halves.hi[k].lane;
  l.d = out_hi.lane;
  op.compute(l);
  if (s.dst == Type::F16) clamp_overflow(w.mode, l, s.src.data(), op.sources, out_hi.lane);
  host.reset();
  if (op.clamp && s.dst == Type::F16) {
    modify<f16>(op, out.lane, nullptr, w.size);
    modify<f16>(op, out_hi.lane, nullptr, w.size);
  }
  for (int i = 0; i < w.size; ++i) out.lane[i] = (out.lane[i] & 0xffffu) | out_hi.lane[i] << 16;
  const u32* undefined = nullptr;
  Vgpr unknown;
  if constexpr (Strict) {
    bool clean = true;
    for (int k = 0; k < op.sources; ++k) {
      clean = clean && source_clean(w, op.src[static_cast<std::size_t>(k)]);
    }
    if (!clean) {
      fetch_halves<Aspect::Undefined>(w, op, halves);
      for (int i = 0; i < w.size; ++i) {
        u32 lo = 0;
        u32 hi = 0;
        for (int k = 0; k < op.sources; ++k) {
          lo |= halves.lo[k].lane[i];
          hi |= halves.hi[k].lane[i];
        }
        unknown.lane[i] = (lo != 0 ? 0xffffu : 0u) | (hi != 0 ? 0xffff0000u : 0u);
      }
      undefined = unknown.lane;
    }
  }
  write_row<Strict>(w, op.dst[0].index, out.lane, undefined, w.exec());
}

namespace {

// Element rows of a packed 32-bit source: op_sel chooses the register of each result.
template <Aspect A>
const u32* pair_row(Wave& w, const Source& source, bool second, bool negate, Vgpr& built) {
  const u32* from = built.lane;
  const int n = w.size;
  if (source.file == File::Vgpr) {
    const Vgpr* rows = A == Aspect::Value ? w.vgpr : w.vgpr_undef;
    // A single register (an inline form) serves both elements.
    from = rows[source.index + (second && source.dwords > 1 ? 1 : 0)].lane;
  } else if (source.file == File::Sgpr) {
    const int index = source.index + (second ? 1 : 0);
    std::fill_n(built.lane, n, A == Aspect::Value ? w.sgpr[index] : w.sgpr_undef[index]);
  } else {
    std::fill_n(built.lane, n, A == Aspect::Value ? u32(source.value) : 0u);
  }
  if (A == Aspect::Value && negate) {
    for (int i = 0; i < n; ++i) built.lane[i] = from[i] ^ 0x80000000u;
    from = built.lane;
  }
  return from;
}

}  // namespace

template <bool Strict>
void run_packed32(Wave& w, const Op& op) {
  const Semantics& s = *op.semantics;
  const u64 exec = w.exec();
  Vgpr built[3];
  Vgpr out[2];
  Vgpr unknown[2];
  Lanes l = lanes_of(w, op);
  if constexpr (Strict) {
    for (int k = 0; k < op.sources; ++k) need_source(w, op.src[static_cast<std::size_t>(k)]);
    need_vgpr(w, op.dst[0].index, 2);
  }
  std::optional<ScopedFpMode> host;
  if (!w.mode_default && (s.flags & flag::kFloatMode) != 0) host.emplace(w.mode, false);
  for (int element = 0; element < 2; ++element) {
    const u8 select = element == 0 ? op.op_sel : op.op_sel_hi;
    const u8 negate = element == 0 ? op.neg_lo : op.neg_hi;
    for (int k = 0; k < op.sources; ++k) {
      l.lo[k] = pair_row<Aspect::Value>(w, op.src[static_cast<std::size_t>(k)],
                                        (select >> k & 1) != 0, (negate >> k & 1) != 0, built[k]);
    }
    l.d = out[element].lane;
    op.compute(l);
    if (op.clamp && s.dst == Type::F32) modify<float>(op, out[element].lane, nullptr, w.size);
  }
  host.reset();
  bool clean = true;
  if constexpr (Strict) {
    for (int k = 0; k < op.sources; ++k) {
      clean = clean && source_clean(w, op.src[static_cast<std::size_t>(k)]);
    }
    for (int element = 0; element < 2 && !clean; ++element) {
      const u8 select = element == 0 ? op.op_sel : op.op_sel_hi;
      u32* u = unknown[element].lane;
      std::fill_n(u, w.size, 0u);
      for (int k = 0; k < op.sources; ++k) {
        const u32* row = pair_row<Aspect::Undefined>(w, op.src[static_cast<std::size_t>(k)],
                                                     (select >> k & 1) != 0, false, built[k]);
        for (int i = 0; i < w.size; ++i) u[i] |= row[i];
      }
      if (s.propagation != Propagation::Bitwise) {
        for (int i = 0; i < w.size; ++i) u[i] = spread(u[i]);
      }
    }
  }
  for (int element = 0; element < 2; ++element) {
    write_row<Strict>(w, op.dst[0].index + element, out[element].lane,
                      clean ? nullptr : unknown[element].lane, exec);
  }
}

// v_fma_mixlo_f16 and v_fma_mixhi_f16 round twice. The ISA manuals define their result as
// f32_to_f16(fma(in[0], in[1], in[2])): MODE's single-precision field rounds the FMA, MODE's half-
// precision field the conversion. The call must stay between the two writes of MXCSR.
[[gnu::noinline]] void round_to_f16(u32* lanes, int n) {
  for (int i = 0; i < n; ++i) {
    lanes[i] = std::bit_cast<u16>(static_cast<f16>(std::bit_cast<float>(lanes[i])));
  }
}

template <bool Strict>
void run_mixed(Wave& w, const Op& op) {
  const Semantics& s = *op.semantics;
  Fetched source[3];
  Vgpr converted[3];
  Lanes l = lanes_of(w, op);
  u64 disabled = 0;
  bool clean = true;
  for (int k = 0; k < 3; ++k) {
    const auto index = static_cast<std::size_t>(k);
    Source bare = op.src[index];
    if constexpr (Strict) {
      need_source(w, bare);
      clean = clean && source_clean(w, bare);
    }
    const bool half = (op.op_sel_hi >> k & 1) != 0;
    const bool high = (op.op_sel >> k & 1) != 0;
    const bool neg = bare.neg;
    const bool abs = bare.abs;
    bare.neg = bare.abs = bare.high = false;
    fetch_source<Aspect::Value>(w, op, bare, k == 0, source[k], disabled);
    u32* to = converted[k].lane;
    for (int i = 0; i < w.size; ++i) {
      u32 bits = source[k].lo[i];
      if (half) {
        const u16 h = static_cast<u16>(high ? bits >> 16 : bits);
        bits = std::bit_cast<u32>(float(std::bit_cast<f16>(h)));
      }
      if (abs) bits &= 0x7fffffffu;
      if (neg) bits ^= 0x80000000u;
      to[i] = bits;
    }
    l.lo[k] = to;
  }
  Vgpr out;
  l.d = out.lane;
  std::optional<ScopedFpMode> host;
  if (!w.mode_default) host.emplace(w.mode, uses_fp16_fp64_mode(Type::F32));
  op.compute(l);
  host.reset();
  const bool half_result = s.dst == Type::F16;
  if (half_result) {
    if (!w.mode_default) host.emplace(w.mode, uses_fp16_fp64_mode(Type::F16));
    round_to_f16(out.lane, w.size);
    host.reset();
  }
  constexpr Type kFloats[] = {Type::F32, Type::F32, Type::F32};
  if (half_result) clamp_overflow(w.mode, l, kFloats, 3, out.lane);
  if (op.clamp) modify_result(op, s.dst, out.lane, nullptr, w.size);
  Vgpr unknown;
  const u32* undefined = nullptr;
  const int row = op.dst[0].index;
  if constexpr (Strict) {
    need_vgpr(w, row);
    if (!clean || (half_result && w.vgpr_dirty[row] != 0)) {
      std::fill_n(unknown.lane, w.size, 0u);
      for (int k = 0; k < 3; ++k) {
        const auto index = static_cast<std::size_t>(k);
        const bool half = (op.op_sel_hi >> k & 1) != 0;
        const bool high = (op.op_sel >> k & 1) != 0;
        Source bare = op.src[index];
        bare.high = false;
        fetch_source<Aspect::Undefined>(w, op, bare, k == 0, source[k], disabled);
        const u32 part = !half ? ~0u : high ? 0xffff0000u : 0xffffu;
        for (int i = 0; i < w.size; ++i) unknown.lane[i] |= source[k].lo[i] & part;
      }
      for (int i = 0; i < w.size; ++i) unknown.lane[i] = spread(unknown.lane[i]);
      if (half_result) insert_part(op, unknown.lane, w.vgpr_undef[row].lane, w.size, true);
      undefined = unknown.lane;
    }
  }
  if (half_result) insert_part(op, out.lane, w.vgpr[row].lane, w.size, true);
  write_row<Strict>(w, row, out.lane, undefined, w.exec() & ~disabled);
}

template <bool Strict>
void run_packed_dot(Wave& w, const Op& op) {
  // Sources 0 and 1 are pairs; the last is the accumulator and has ordinary modifiers.
  Halves halves;
  Op pairs = op;
  pairs.sources = 2;
  fetch_halves<Aspect::Value>(w, pairs, halves);
  Fetched accumulator;
  u64 disabled = 0;
  Lanes l = lanes_of(w, op);
  for (int k = 0; k < 2; ++k) {
    // fetch_halves filled the lanes of both sources.
    for (int i = 0; i < w.size; ++i)
      halves.lo[k].lane[i] |= halves.hi[k].lane[i] << 16;  // NOLINT(clang-analyzer-core.*)
    l.lo[k] = halves.lo[k].lane;
  }
  fetch_source<Aspect::Value>(w, op, op.src[2], false, accumulator, disabled);
  l.lo[2] = accumulator.lo;
  if constexpr (Strict) {
    for (const auto& source : op.src) need_source(w, source);
    need_vgpr(w, op.dst[0].index);
  }
  Vgpr out;
  l.d = out.lane;
  op.compute(l);
  if (op.clamp && op.semantics->dst == Type::F32) modify<float>(op, out.lane, nullptr, w.size);
  Vgpr unknown;
  const u32* undefined = nullptr;
  if constexpr (Strict) {
    bool clean = true;
    for (int k = 0; k < 3; ++k) {
      clean = clean && source_clean(w, op.src[static_cast<std::size_t>(k)]);
    }
    if (!clean) {
      ShadowInputs in;
      in.count = 3;
      for (int k = 0; k < 3; ++k) {
        Source bare = op.src[static_cast<std::size_t>(k)];
        bare.high = false;
        fetch_source<Aspect::Undefined>(w, op, bare, false, in.source[k], disabled);
        in.types[k] = Type::B32;
      }
      propagate_any(in, unknown.lane, w.size);
      undefined = unknown.lane;
    }
  }
  const bool part = is_sixteen(op.semantics->dst);
  if (part) insert_part(op, out.lane, w.vgpr[op.dst[0].index].lane, w.size, true);
  write_row<Strict>(w, op.dst[0].index, out.lane, undefined, w.exec());
}

template <bool Strict>
void run_dual(Wave& w, const Op& op) {
  // Both halves read before either writes: run X, set its result aside, run Y on the old state.
  const int row = op.dst[0].index;
  const Vgpr before = w.vgpr[row];
  Vgpr before_undef;
  u8 before_dirty = 0;
  if constexpr (Strict) {
    before_undef = w.vgpr_undef[row];
    before_dirty = w.vgpr_dirty[row];
  }
  (Strict ? op.semantics->run_strict : op.semantics->run)(w, op);
  const Vgpr after = w.vgpr[row];
  w.vgpr[row] = before;
  if constexpr (Strict) {
    const Vgpr after_undef = w.vgpr_undef[row];
    const u8 after_dirty = w.vgpr_dirty[row];
    w.vgpr_undef[row] = before_undef;
    w.vgpr_dirty[row] = before_dirty;
    op.dual->run[1](w, *op.dual);
    w.vgpr_undef[row] = after_undef;
    w.vgpr_dirty[row] = after_dirty;
  } else {
    op.dual->run[0](w, *op.dual);
  }
  w.vgpr[row] = after;
}

#define ROCFLASH_SIM_BOTH(name)                \
  template void name<false>(Wave&, const Op&); \
  template void name<true>(Wave&, const Op&)
ROCFLASH_SIM_BOTH(run_vop);
ROCFLASH_SIM_BOTH(run_compare);
ROCFLASH_SIM_BOTH(run_packed16);
ROCFLASH_SIM_BOTH(run_packed32);
ROCFLASH_SIM_BOTH(run_mixed);
ROCFLASH_SIM_BOTH(run_packed_dot);
ROCFLASH_SIM_BOTH(run_dual);
#undef ROCFLASH_SIM_BOTH

}  // namespace rocflash::sim
