// gfx950's v_cvt_scalef32_*: conversions between f32, f16 or bf16 and small floats, divided by a
// power of two on the way down and multiplied by it on the way up. The scale is the exponent of a
// float; its sign and fraction do not count. Sources and destinations are up to 32 registers wide.
#include <bit>
#include <cmath>
#include <limits>

#include "isa/lane_math.h"
#include "isa/small_float.h"
#include "isa/valu.h"

namespace rocflash::sim {
namespace {

enum class Wide : u8 { F32, F16, BF16 };

struct Conversion {
  std::string_view name;
  Small small;
  Wide wide;
  bool narrows;
  int count;  // 1, 2 or 32
  bool stochastic = false;
  bool two_sources = false;  // elements alternate between sources 0 and 1
};

#define ROCFLASH_SIM_CVT "v_cvt_scalef32_"
#define ROCFLASH_SIM_EIGHT(s, S)                                         \
  {ROCFLASH_SIM_CVT "pk_" s "_f32", S, Wide::F32, true, 2, false, true}, \
      {ROCFLASH_SIM_CVT "pk_" s "_f16", S, Wide::F16, true, 2},          \
      {ROCFLASH_SIM_CVT "pk_" s "_bf16", S, Wide::BF16, true, 2},        \
      {ROCFLASH_SIM_CVT "sr_" s "_f32", S, Wide::F32, true, 1, true},    \
      {ROCFLASH_SIM_CVT "sr_" s "_f16", S, Wide::F16, true, 1, true},    \
      {ROCFLASH_SIM_CVT "sr_" s "_bf16", S, Wide::BF16, true, 1, true},  \
      {ROCFLASH_SIM_CVT "pk_f32_" s, S, Wide::F32, false, 2},            \
      {ROCFLASH_SIM_CVT "pk_f16_" s, S, Wide::F16, false, 2},            \
      {ROCFLASH_SIM_CVT "pk_bf16_" s, S, Wide::BF16, false, 2},          \
      {ROCFLASH_SIM_CVT "f32_" s, S, Wide::F32, false, 1},               \
      {ROCFLASH_SIM_CVT "f16_" s, S, Wide::F16, false, 1}
#define ROCFLASH_SIM_SIX(s, S)                                                \
  {ROCFLASH_SIM_CVT "2xpk16_" s "_f32", S, Wide::F32, true, 32, false, true}, \
      {ROCFLASH_SIM_CVT "pk32_" s "_f16", S, Wide::F16, true, 32},            \
      {ROCFLASH_SIM_CVT "pk32_" s "_bf16", S, Wide::BF16, true, 32},          \
      {ROCFLASH_SIM_CVT "sr_pk32_" s "_f32", S, Wide::F32, true, 32, true},   \
      {ROCFLASH_SIM_CVT "sr_pk32_" s "_f16", S, Wide::F16, true, 32, true},   \
      {ROCFLASH_SIM_CVT "sr_pk32_" s "_bf16", S, Wide::BF16, true, 32, true}, \
      {ROCFLASH_SIM_CVT "pk32_f32_" s, S, Wide::F32, false, 32},              \
      {ROCFLASH_SIM_CVT "pk32_f16_" s, S, Wide::F16, false, 32},              \
      {ROCFLASH_SIM_CVT "pk32_bf16_" s, S, Wide::BF16, false, 32}

constexpr Conversion kConversions[] = {
    ROCFLASH_SIM_EIGHT("fp8", Small::Fp8),
    ROCFLASH_SIM_EIGHT("bf8", Small::Bf8),
    ROCFLASH_SIM_SIX("fp6", Small::Fp6),
    ROCFLASH_SIM_SIX("bf6", Small::Bf6),
    {ROCFLASH_SIM_CVT "pk_fp4_f32", Small::Fp4, Wide::F32, true, 2, false, true},
    {ROCFLASH_SIM_CVT "pk_fp4_f16", Small::Fp4, Wide::F16, true, 2},
    {ROCFLASH_SIM_CVT "pk_fp4_bf16", Small::Fp4, Wide::BF16, true, 2},
    {ROCFLASH_SIM_CVT "sr_pk_fp4_f32", Small::Fp4, Wide::F32, true, 2, true},
    {ROCFLASH_SIM_CVT "sr_pk_fp4_f16", Small::Fp4, Wide::F16, true, 2, true},
    {ROCFLASH_SIM_CVT "sr_pk_fp4_bf16", Small::Fp4, Wide::BF16, true, 2, true},
    {ROCFLASH_SIM_CVT "pk_f32_fp4", Small::Fp4, Wide::F32, false, 2},
    {ROCFLASH_SIM_CVT "pk_f16_fp4", Small::Fp4, Wide::F16, false, 2},
    {ROCFLASH_SIM_CVT "pk_bf16_fp4", Small::Fp4, Wide::BF16, false, 2},
};
#undef ROCFLASH_SIM_EIGHT
#undef ROCFLASH_SIM_SIX
#undef ROCFLASH_SIM_CVT

constexpr int kMaxCount = 32;
constexpr int bits_of_wide(Wide wide) { return wide == Wide::F32 ? 32 : 16; }

// A run of bits across registers: where a packed operand begins and how wide an element is.
struct Field {
  int first = 0;  // bit
  int bits = 0;
  [[nodiscard]] int end(int count) const { return first + bits * count; }
};

// Which part of a register the small side of an instruction means. Narrowing chooses with
// op_sel[3:2], or [3] where it writes 16 bits; widening with op_sel[1:0], or [0].
Field small_field(const Conversion& c, u32 op_sel) {
  const int bits = small_format(c.small).bits;
  const u32 select = c.narrows ? op_sel >> 2 & 3 : op_sel & 3;
  const int part = bits * c.count;
  if (part > 16) return {0, bits};
  if (part == 16) return {int(16 * (c.narrows ? select >> 1 : select & 1)), bits};
  return {int(8 * select), bits};
}

// The wide side: a single 16-bit number may be in the high half.
Field wide_field(const Conversion& c, u32 op_sel) {
  const int bits = bits_of_wide(c.wide);
  const bool half = bits == 16 && c.count == 1;
  const bool high = half && (c.narrows ? (op_sel & 1) != 0 : (op_sel & 8) != 0);
  return {high ? 16 : 0, bits};
}

// The registers of one operand in one lane.
struct Words {
  u32 value[kMaxCount] = {};
  u32 unknown[kMaxCount] = {};

  [[nodiscard]] u32 take(int bit, int bits) const {
    u64 pair = value[bit / 32];
    if (bit % 32 + bits > 32) pair |= u64{value[bit / 32 + 1]} << 32;
    return u32(pair >> (bit % 32)) & u32((1ull << bits) - 1);
  }
  void put(int bit, int bits, u32 code) {
    const u64 mask = ((1ull << bits) - 1) << (bit % 32);
    const u64 placed = u64{code} << (bit % 32);
    value[bit / 32] = u32((value[bit / 32] & ~mask) | (placed & mask));
    unknown[bit / 32] &= ~u32(mask);
    if (bit % 32 + bits <= 32) return;
    value[bit / 32 + 1] = u32((value[bit / 32 + 1] & ~(mask >> 32)) | placed >> 32);
    unknown[bit / 32 + 1] &= ~u32(mask >> 32);
  }
};

Words read_words(const Wave& w, const Source& s, int dwords, int lane) {
  Words words;
  for (int i = 0; i < dwords; ++i) {
    if (s.file == File::Vgpr) {
      words.value[i] = w.vgpr[s.index + i].lane[lane];
      if (w.strict) words.unknown[i] = w.vgpr_undef[s.index + i].lane[lane];
    } else {
      words.value[i] = read_scalar(w, s, &words.unknown[i]);
    }
  }
  return words;
}

float flush(u32 mode, int bit, float x) {
  const bool flushes = (mode >> bit & 1) == 0;
  return flushes && std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

// As f32, with the source's sign modifiers.
float read_wide(const Wave& w, Wide wide, u32 code, const Source& s) {
  float x = 0;
  switch (wide) {
    case Wide::F32:
      x = flush(w.mode, 4, std::bit_cast<float>(code));
      break;
    case Wide::F16:
      x = float(std::bit_cast<f16>(u16(code)));
      break;
    case Wide::BF16:
      x = float(bf16{u16(code)});
      break;
  }
  u32 bits = std::bit_cast<u32>(x);
  if (s.abs) bits &= 0x7fffffffu;
  if (s.neg) bits ^= 0x80000000u;
  return std::bit_cast<float>(bits);
}

u32 write_wide(const Wave& w, Wide wide, double x) {
  const bool saturates = (w.mode >> kModeOverflowBit & 1) != 0 && std::isfinite(x);
  switch (wide) {
    case Wide::F16: {
      const u16 code = bits_of(to_half(x));
      return saturates && (code & 0x7fff) == 0x7c00 ? code - 1u : code;
    }
    case Wide::BF16:
      return to_bf16(to_float_odd(x));
    default:
      return std::bit_cast<u32>(flush(w.mode, 5, static_cast<float>(x)));
  }
}

// x / 2^(exponent - 127) as f32; what is too large for that stays finite.
float scaled_down(float x, u32 exponent) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  if (exponent == 0xff) return std::copysign(std::numeric_limits<float>::quiet_NaN(), x);
  if (!std::isfinite(x)) return x;
  const double y = std::ldexp(double(x), 127 - int(exponent));
  return std::abs(y) > double(kLargest) ? std::copysign(kLargest, x) : static_cast<float>(y);
}

double scaled_up(float x, u32 exponent) {
  if (exponent == 0xff) return std::numeric_limits<double>::quiet_NaN();
  return std::ldexp(double(x), int(exponent) - 127);
}

// The fields an instruction reads and writes, the same in every lane.
struct Packing {
  const Conversion& c;
  Field small;
  Field wide;
  int source_dwords;  // of each source of numbers
  int target_dwords;

  Packing(const Conversion& conversion, u32 op_sel)
      : c(conversion), small(small_field(c, op_sel)), wide(wide_field(c, op_sel)) {
    const int in_source = c.two_sources ? c.count / 2 : c.count;
    const Field& from = c.narrows ? wide : small;
    const Field& to = c.narrows ? small : wide;
    source_dwords = (from.end(in_source) + 31) / 32;
    target_dwords = (to.end(c.count) + 31) / 32;
  }
};

template <bool Strict>
void convert_lane(Wave& w, const Op& op, const Packing& packing, int lane) {
  const Conversion& c = packing.c;
  const Source& scale_source = op.src[op.sources - 1u];
  Words in[2];
  in[0] = read_words(w, op.src[0], packing.source_dwords, lane);
  if (c.two_sources) in[1] = read_words(w, op.src[1], packing.source_dwords, lane);
  const Words scale = read_words(w, scale_source, 1, lane);
  const Words seed = c.stochastic ? read_words(w, op.src[1], 1, lane) : Words{};
  const u32 exponent = scale.value[0] >> 23 & 0xff;

  // Bits around the result stay as they are.
  Words out = read_words(w, op.dst[0], packing.target_dwords, lane);
  const auto& values = small_values(c.small);
  const bool saturates = (w.mode >> kModeOverflowBit & 1) != 0;
  const Field& to = c.narrows ? packing.small : packing.wide;
  u32 random = seed.value[0];
  for (int n = 0; n < c.count; ++n) {
    const int from = c.two_sources ? n % 2 : 0;
    const int index = c.two_sources ? n / 2 : n;
    u32 code;
    if (c.narrows) {
      const u32 taken =
          in[from].take(packing.wide.first + packing.wide.bits * index, packing.wide.bits);
      const float x = read_wide(w, c.wide, taken, op.src[static_cast<std::size_t>(from)]);
      code = to_small(std::bit_cast<u32>(scaled_down(x, exponent)), c.small, saturates,
                      c.stochastic ? &random : nullptr);
      random = next_random(random);
    } else {
      const u32 taken =
          in[0].take(packing.small.first + packing.small.bits * index, packing.small.bits);
      code = write_wide(w, c.wide, scaled_up(values[taken], exponent));
    }
    out.put(to.first + to.bits * n, to.bits, code);
  }

  u32 unknown = seed.unknown[0] | (scale.unknown[0] & 0x7f800000u);
  if constexpr (Strict) {
    for (int i = 0; i < packing.source_dwords; ++i) unknown |= in[0].unknown[i] | in[1].unknown[i];
    if (unknown != 0) {
      for (int n = 0; n < c.count; ++n) {
        Words spread;
        spread.put(to.first + to.bits * n, to.bits, ~0u >> (32 - to.bits));
        for (int i = 0; i < packing.target_dwords; ++i) out.unknown[i] |= spread.value[i];
      }
    }
  }
  for (int i = 0; i < packing.target_dwords; ++i) {
    const int row = op.dst[0].index + i;
    w.vgpr[row].lane[lane] = out.value[i];
    if constexpr (Strict) {
      w.vgpr_undef[row].lane[lane] = out.unknown[i];
      if (out.unknown[i] != 0) w.vgpr_dirty[row] = 1;
    }
  }
}

template <bool Strict>
void run_convert(Wave& w, const Op& op) {
  const Packing packing(kConversions[op.parameter], op.op_sel);
  const Source& first = op.src[0];
  if ((first.file == File::Vgpr && first.dwords < packing.source_dwords) ||
      op.dst[0].dwords < packing.target_dwords) {
    raise(Fault::BadProgram, "a conversion operand has fewer registers than its format needs");
  }
  if constexpr (Strict) {
    for (std::size_t k = 0; k < op.sources; ++k) need_source(w, op.src[k]);
    need_vgpr(w, op.dst[0].index, packing.target_dwords);
  }
  for (u64 m = w.exec(); m != 0; m &= m - 1) {
    convert_lane<Strict>(w, op, packing, std::countr_zero(m));
  }
}

}  // namespace

void add_scaled_conversions(Registry& r) {
  u32 index = 0;
  for (const Conversion& c : kConversions) {
    Semantics s = executed(run_convert<false>, run_convert<true>, InstructionClass::Valu, index++);
    s.dst = Type::B32;
    s.src = {Type::B32, Type::B32, Type::B32};
    s.sources = c.two_sources || c.stochastic ? 3 : 2;
    r.add(c.name, s);
  }
}

}  // namespace rocflash::sim
