// WMMA: matrix multiply-accumulate of RDNA3 and RDNA4, always 16x16.
// gfx11: every lane l holds row l % 16 of A (column of B) with all its K values, so the halves of
// the wave hold the same; D row 2v + l/16 (wave32) or 4v + l/16 (wave64).
// gfx12: K is shared by the lane groups in runs of four; D row 8*(l/16) + v (wave32), or the
// calculator's order 8*(g&1) + 4*(g>>1) + v for group g = l/16 (wave64).
// Accumulation order as for MFMA: C, then k = 0, 1, 2, ... by fused multiply-adds in f32; 16-bit
// results are rounded once at the end.
#include <bit>
#include <cmath>
#include <cstring>

#include "isa/lane_math.h"
#include "isa/lanes.h"
#include "isa/matrix.h"
#include "isa/valu.h"

namespace rocflash::sim {
namespace {

struct Shape {
  std::string_view names;
  MatrixShape shape;
  Element out;  // F32, F16, BF16, or I8 for i32
};

using namespace element;
constexpr Element int32 = Element::I8;

constexpr Shape kShapes[] = {
    {"v_wmma_f32_16x16x16_f16", {16, 16, 16, 1, h, h}, Element::F32},
    {"v_wmma_f32_16x16x16_bf16", {16, 16, 16, 1, bf, bf}, Element::F32},
    {"v_wmma_f16_16x16x16_f16", {16, 16, 16, 1, h, h}, h},
    {"v_wmma_bf16_16x16x16_bf16", {16, 16, 16, 1, bf, bf}, bf},
    {"v_wmma_i32_16x16x16_iu8", {16, 16, 16, 1, Element::I8, Element::I8}, int32},
    {"v_wmma_i32_16x16x16_iu4", {16, 16, 16, 1, Element::I4, Element::I4}, int32},
    {"v_wmma_i32_16x16x32_iu4", {16, 16, 32, 1, Element::I4, Element::I4}, int32},
    {"v_wmma_f32_16x16x16_fp8_fp8", {16, 16, 16, 1, p8, p8}, Element::F32},
    {"v_wmma_f32_16x16x16_fp8_bf8", {16, 16, 16, 1, p8, q8}, Element::F32},
    {"v_wmma_f32_16x16x16_bf8_fp8", {16, 16, 16, 1, q8, p8}, Element::F32},
    {"v_wmma_f32_16x16x16_bf8_bf8", {16, 16, 16, 1, q8, q8}, Element::F32},
};

constexpr int kSide = 16;  // rows and columns, and lanes per group
using Values = float __attribute__((ext_vector_type(kSide)));

// Which k the element of a lane in this group is.
int k_of(bool gfx12, int wave, int group, int element) {
  if (!gfx12) return element;
  return element / 4 * (wave / 4) + group * 4 + element % 4;
}

// D: register v of the lanes of a group is this row; 16-bit results of gfx12 are packed in pairs.
int d_row(bool gfx12, int wave, int v, int group) {
  if (!gfx12) return (wave / kSide) * v + group;
  return wave == 32 ? 8 * group + v : 8 * (group & 1) + 4 * (group >> 1) + v;
}

struct Matrices {
  float a[32][kSide];  // [k][row]
  float b[32][kSide];  // [k][column]
  i32 ia[32][kSide];
  i32 ib[32][kSide];
  u32 c[kSide][kSide];  // C, then D: f32 or i32 bits
  u32 a_unknown[kSide];
  u32 b_unknown[kSide];
};

float to_float(u32 raw, Element e) {
  if (e == Element::F16) return float(std::bit_cast<f16>(u16(raw)));
  if (e == Element::BF16) return float(bf16{u16(raw)});
  return fp8_table(e, false)[raw & 0xff];
}

template <Element E>
void widen(const u32* row, int shift, float* out) {
  for (int l = 0; l < kMaxLanes; ++l) out[l] = to_float(row[l] >> shift, E);
}

// One operand's elements, a register's part at a time: sixteen lanes are one k.
void gather(const Wave& w, const Op& op, const Shape& entry, int source, bool gfx12,
            float (*floats)[kSide], i32 (*integers)[kSide]) {
  const Source& from = op.src[static_cast<std::size_t>(source)];
  const Element e = source == 0 ? entry.shape.a : entry.shape.b;
  const int bits = element_bits(e);
  const int groups = gfx12 ? w.size / kSide : 1;
  const int elements = entry.shape.k / groups;
  alignas(64) float f[kMaxLanes];
  for (int n = 0; n < elements; ++n) {
    const u32* row = w.vgpr[from.index + n * bits / 32].lane;
    const int shift = n * bits % 32;
    if (entry.out == int32) {
      const bool is_signed = (op.neg_lo >> source & 1) != 0;
      for (int g = 0; g < groups; ++g) {
        i32* to = integers[k_of(gfx12, w.size, g, n)];
        for (int i = 0; i < kSide; ++i) {
          const u32 raw = row[g * kSide + i] >> shift << (32 - bits);
          to[i] = is_signed ? i32(raw) >> (32 - bits) : i32(raw >> (32 - bits));
        }
      }
      continue;
    }
    switch (e) {
      case Element::F16:
        widen<Element::F16>(row, shift, f);
        break;
      case Element::BF16:
        widen<Element::BF16>(row, shift, f);
        break;
      case Element::FP8:
        widen<Element::FP8>(row, shift, f);
        break;
      default:
        widen<Element::BF8>(row, shift, f);
    }
    for (int g = 0; g < groups; ++g) {
      const int k = k_of(gfx12, w.size, g, n);
      // Negation is by even and odd k, as the halves of a register.
      const u8 neg = k % 2 == 0 ? op.neg_lo : op.neg_hi;
      Values x;
      std::memcpy(&x, f + g * kSide, sizeof x);
      if (bits == 16 && (neg >> source & 1) != 0) x = -x;
      std::memcpy(floats[k], &x, sizeof x);
    }
  }
}

// Undefined bits anywhere in a row of A or a column of B.
void gather_unknown(const Wave& w, const Op& op, const Shape& entry, int source, bool gfx12,
                    u32* unknown) {
  const Source& from = op.src[static_cast<std::size_t>(source)];
  std::fill_n(unknown, kSide, 0u);
  if (source_clean(w, from)) return;
  const int lanes = gfx12 ? w.size : kSide;
  const int bits = element_bits(entry.shape.a) * entry.shape.k / (lanes / kSide);
  for (int r = 0; r < (bits + 31) / 32; ++r) {
    for (int l = 0; l < lanes; ++l) unknown[l % kSide] |= w.vgpr_undef[from.index + r].lane[l];
  }
}

// D = A B + C, row by row so that the arithmetic runs over the sixteen columns.
void multiply(const Shape& entry, bool clamp, Matrices& m) {
  for (int row = 0; row < kSide; ++row) {
    if (entry.out == int32) {
      for (int col = 0; col < kSide; ++col) {
        i64 sum = i32(m.c[row][col]);
        for (int k = 0; k < entry.shape.k; ++k) sum += i64(m.ia[k][row]) * m.ib[k][col];
        m.c[row][col] = clamp ? u32(clamp_to<i32>(sum)) : u32(sum);
      }
      continue;
    }
    Values sum;
    std::memcpy(&sum, m.c[row], sizeof sum);
    for (int k = 0; k < entry.shape.k; ++k) {
      Values b;
      std::memcpy(&b, m.b[k], sizeof b);
      sum = __builtin_elementwise_fma(Values(m.a[k][row]), b, sum);
    }
    std::memcpy(m.c[row], &sum, sizeof sum);
  }
}

// C's value as the accumulator takes it, with its modifiers.
u32 accumulator(const Op& op, Element out, u32 raw) {
  if (out == int32) return raw;
  float x = out == Element::F32 ? std::bit_cast<float>(raw) : to_float(raw, out);
  if ((op.neg_hi & 4) != 0) x = std::abs(x);
  if ((op.neg_lo & 4) != 0) x = -x;
  return std::bit_cast<u32>(x);
}

u32 narrowed(Element out, u32 bits) {
  const float x = std::bit_cast<float>(bits);
  return out == h ? u32(bits_of(f16(x))) : out == bf ? u32(to_bf16(x)) : bits;
}

// gfx11 reads A and B from every group of sixteen lanes; kernels must put the same into each.
void check_copies(const Wave& w, const Source& source) {
  for (int r = 0; r < source.dwords; ++r) {
    const u32* row = w.vgpr[source.index + r].lane;
    for (int l = kSide; l < w.size; ++l) {
      if (row[l] == row[l % kSide]) continue;
      raise_at(Fault::BadProgram,
               "gfx11's WMMA needs the same rows of A and columns of B in every sixteen lanes", l,
               0);
    }
  }
}

template <bool Strict>
void run_wmma(Wave& w, const Op& op) {
  const Shape& entry = kShapes[op.parameter];
  const bool gfx12 = w.target->generation == Generation::Gfx12;
  const bool half = entry.out == h || entry.out == bf;
  if (w.exec() != w.full_mask()) {
    raise(Fault::BadProgram, "a matrix instruction needs every lane active");
  }
  if constexpr (Strict) {
    for (int k = 0; k < 3; ++k) need_source(w, op.src[static_cast<std::size_t>(k)]);
    need_vgpr(w, op.dst[0].index, op.dst[0].dwords);
    if (!gfx12) {
      check_copies(w, op.src[0]);
      check_copies(w, op.src[1]);
    }
  }
  static thread_local Matrices m;
  gather(w, op, entry, 0, gfx12, m.a, m.ia);
  gather(w, op, entry, 1, gfx12, m.b, m.ib);
  const Source& c = op.src[2];
  const bool from_rows = c.file == File::Vgpr;
  const int values = 256 / w.size;  // of D in a lane
  const int dst = op.dst[0].index;
  const bool high = !gfx12 && half && (op.op_sel & 4) != 0;
  // Register, half and row of the matrix for each value and group of lanes.
  const auto each_row = [&](auto&& f) {
    for (int n = 0; n < values; ++n) {
      // Packed pairs on gfx12, one value per register elsewhere.
      const int reg = half && gfx12 ? n / 2 : n;
      const int shift = half && (gfx12 ? n % 2 != 0 : high) ? 16 : 0;
      for (int g = 0; g < w.size / kSide; ++g) {
        f(reg, shift, g * kSide, d_row(gfx12, w.size, n, g));
      }
    }
  };
  each_row([&](int reg, int shift, int lane, int row) {
    const u32* from = from_rows ? w.vgpr[c.index + reg].lane + lane : nullptr;
    for (int i = 0; i < kSide; ++i) {
      m.c[row][i] = accumulator(op, entry.out, from_rows ? from[i] >> shift : u32(c.value));
    }
  });
  multiply(entry, op.clamp, m);
  Vgpr out[8] = {};
  each_row([&](int reg, int shift, int lane, int row) {
    u32* to = out[reg].lane + lane;
    for (int i = 0; i < kSide; ++i) to[i] |= narrowed(entry.out, m.c[row][i]) << shift;
  });
  Vgpr unknown[8] = {};
  bool clean = true;
  if constexpr (Strict) {
    for (int k = 0; k < 3; ++k) {
      clean = clean && source_clean(w, op.src[static_cast<std::size_t>(k)]);
    }
    if (!clean) {
      gather_unknown(w, op, entry, 0, gfx12, m.a_unknown);
      gather_unknown(w, op, entry, 1, gfx12, m.b_unknown);
      each_row([&](int reg, int shift, int lane, int row) {
        const u32 part = half ? 0xffffu << shift : ~0u;
        for (int i = 0; i < kSide; ++i) {
          const u32 c_bits = from_rows ? w.vgpr_undef[c.index + reg].lane[lane + i] & part : 0;
          const bool spoilt = (c_bits | m.a_unknown[row] | m.b_unknown[i]) != 0;
          if (spoilt) unknown[reg].lane[lane + i] |= part;
        }
      });
    }
  }
  const int registers = half && gfx12 ? values / 2 : values;
  const bool keeps = half && !gfx12;  // the other half of the destination is left alone
  for (int r = 0; r < registers; ++r) {
    if (keeps) {
      const u32 keep = high ? 0xffffu : 0xffff0000u;
      for (int l = 0; l < w.size; ++l) {
        out[r].lane[l] |= w.vgpr[dst + r].lane[l] & keep;
        if constexpr (Strict) unknown[r].lane[l] |= w.vgpr_undef[dst + r].lane[l] & keep;
      }
    }
    write_row<Strict>(w, dst + r, out[r].lane, clean && !keeps ? nullptr : unknown[r].lane,
                      w.full_mask());
  }
}

}  // namespace

const MatrixShape* find_mfma_shape(u32 parameter);
void add_mfma(Registry& r);

const MatrixShape* find_matrix_shape(u32 parameter, bool wmma) {
  if (!wmma) return find_mfma_shape(parameter);
  return parameter < std::size(kShapes) ? &kShapes[parameter].shape : nullptr;
}

void add_matrix(Registry& r) {
  add_mfma(r);
  u32 index = 0;
  for (const Shape& shape : kShapes) {
    Semantics s = executed(run_wmma<false>, run_wmma<true>, InstructionClass::Matrix, index++);
    const Type c = shape.out == Element::F32 ? Type::F32
                   : shape.out == h          ? Type::F16
                   : shape.out == bf         ? Type::BF16
                                             : Type::I32;
    s.dst = Type::B32;
    s.src = {Type::B32, Type::B32, c};
    s.sources = 3;
    s.flags = flag::kPacked16;
    r.add(shape.names, s);
  }
}

}  // namespace rocflash::sim
