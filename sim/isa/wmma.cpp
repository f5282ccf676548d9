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

#include "isa/lanes.h"
#include "isa/matrix.h"
#include "isa/scalar_math.h"
#include "isa/vector_exec.h"

namespace rocflash::sim {
namespace {

struct Shape {
  std::string_view names;
  MatrixShape shape;
  Element out;  // F32, F16, BF16, or I8 for i32
};

constexpr Element h = Element::F16;
constexpr Element bf = Element::BF16;
constexpr Element p8 = Element::FP8;
constexpr Element q8 = Element::BF8;
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

struct Spot {
  int lane, element;  // element counts from the lane's first register
};

// Where element (i, k) of A, or (k, i) of B, is read from.
Spot input_spot(bool gfx12, int wave, int i, int k) {
  if (!gfx12) return {i, k};
  const int groups = wave / 16;
  const int group = k / 4 % groups;
  return {i + 16 * group, k / (4 * groups) * 4 + k % 4};
}

// D: register v of lane l is this row; 16-bit results of gfx12 are packed in pairs.
int d_row(bool gfx12, int wave, int v, int lane) {
  const int group = lane / 16;
  if (!gfx12) return (wave / 16) * v + group;
  return wave == 32 ? 8 * group + v : 8 * (group & 1) + 4 * (group >> 1) + v;
}

struct Matrices {
  float a[16][32];
  float b[32][16];
  i32 ia[16][32];
  i32 ib[32][16];
  u32 c[16][16];  // C, then D: f32 or i32 bits
  u32 a_unknown[16];
  u32 b_unknown[16];
};

u32 raw_element(const Row* rows, const Source& s, Spot spot, int bits) {
  const int bit = spot.element * bits;
  const u32 word = rows[s.index + bit / 32].lane[spot.lane];
  return bits == 32 ? word : word >> (bit % 32) & ((1u << bits) - 1);
}

float to_float(u32 raw, Element e, bool fnuz) {
  if (e == Element::F16) return float(std::bit_cast<f16>(u16(raw)));
  if (e == Element::BF16) return float(bf16{u16(raw)});
  return fp8_table(e, fnuz)[raw & 0xff];
}

i32 to_int(u32 raw, int bits, bool is_signed) {
  return is_signed ? i32(raw << (32 - bits)) >> (32 - bits) : i32(raw);
}

template <bool Strict>
void gather(Wave& w, const Op& op, const Shape& entry, bool gfx12, Matrices& m) {
  const MatrixShape& s = entry.shape;
  const bool integer = entry.out == int32;
  const int bits = element_bits(s.a);
  const auto value = [&](u32 raw, Element e, int source, int k) {
    float x = to_float(raw, e, false);
    // Negation is by even and odd K, as the halves of a register.
    const u8 neg = k % 2 == 0 ? op.neg_lo : op.neg_hi;
    return bits == 16 && (neg >> source & 1) != 0 ? -x : x;
  };
  for (int i = 0; i < 16; ++i) {
    m.a_unknown[i] = m.b_unknown[i] = 0;
    for (int k = 0; k < s.k; ++k) {
      const Spot spot = input_spot(gfx12, w.size, i, k);
      const u32 ra = raw_element(w.v, op.src[0], spot, bits);
      const u32 rb = raw_element(w.v, op.src[1], spot, bits);
      if (integer) {
        m.ia[i][k] = to_int(ra, bits, (op.neg_lo & 1) != 0);
        m.ib[k][i] = to_int(rb, bits, (op.neg_lo & 2) != 0);
      } else {
        m.a[i][k] = value(ra, s.a, 0, k);
        m.b[k][i] = value(rb, s.b, 1, k);
      }
      if constexpr (Strict) {
        m.a_unknown[i] |= raw_element(w.v_undef, op.src[0], spot, bits);
        m.b_unknown[i] |= raw_element(w.v_undef, op.src[1], spot, bits);
      }
    }
  }
}

// D = A B + C, row by row so that the arithmetic runs over the sixteen columns.
void multiply(const Shape& entry, bool integer, bool clamp, Matrices& m) {
  using Values = float __attribute__((ext_vector_type(16)));
  for (int row = 0; row < 16; ++row) {
    if (integer) {
      for (int col = 0; col < 16; ++col) {
        i64 sum = i32(m.c[row][col]);
        for (int k = 0; k < entry.shape.k; ++k) sum += i64(m.ia[row][k]) * m.ib[k][col];
        m.c[row][col] = clamp ? u32(clamp_to<i32>(sum)) : u32(sum);
      }
      continue;
    }
    Values sum;
    std::memcpy(&sum, m.c[row], sizeof sum);
    for (int k = 0; k < entry.shape.k; ++k) {
      Values b;
      std::memcpy(&b, m.b[k], sizeof b);
      sum = __builtin_elementwise_fma(Values(m.a[row][k]), b, sum);
    }
    std::memcpy(m.c[row], &sum, sizeof sum);
  }
}

template <bool Strict>
void run_wmma(Wave& w, const Op& op) {
  const Shape& entry = kShapes[op.parameter];
  const bool gfx12 = w.target->generation == Generation::Gfx12;
  const bool integer = entry.out == int32;
  const bool half = entry.out == h || entry.out == bf;
  if (w.exec() != w.full_mask()) {
    raise(Fault::BadProgram, "a matrix instruction needs every lane active");
  }
  if constexpr (Strict) {
    for (int k = 0; k < 3; ++k) need_source(w, op.src[static_cast<std::size_t>(k)]);
    need_vgpr(w, op.dst[0].index, op.dst[0].dwords);
  }
  static thread_local Matrices m;
  gather<Strict>(w, op, entry, gfx12, m);
  const Source& c = op.src[2];
  const int values = 256 / w.size;  // of D in a lane
  const int dst = op.dst[0].index;
  const bool high = !gfx12 && half && (op.op_sel & 4) != 0;
  Row out[8] = {};
  Row unknown[8] = {};
  // Register, half and place in the matrix of each value a lane holds.
  const auto each_value = [&](auto&& f) {
    for (int n = 0; n < values; ++n) {
      // Packed pairs on gfx12, one value a register elsewhere.
      const int reg = half && gfx12 ? n / 2 : n;
      const int shift = half && (gfx12 ? n % 2 != 0 : high) ? 16 : 0;
      for (int l = 0; l < w.size; ++l) f(reg, shift, l, d_row(gfx12, w.size, n, l), l % 16);
    }
  };
  each_value([&](int reg, int shift, int l, int row, int col) {
    const u32 raw = c.file == File::Vgpr ? w.v[c.index + reg].lane[l] : u32(c.value);
    const u16 raw_half = u16(c.file == File::Vgpr ? raw >> shift : raw);
    float x = !half            ? std::bit_cast<float>(raw)
              : entry.out == h ? float(std::bit_cast<f16>(raw_half))
                               : float(bf16{raw_half});
    if ((op.neg_hi & 4) != 0) x = std::abs(x);
    if ((op.neg_lo & 4) != 0) x = -x;
    m.c[row][col] = integer ? raw : std::bit_cast<u32>(x);
  });
  multiply(entry, integer, op.clamp, m);
  each_value([&](int reg, int shift, int l, int row, int col) {
    const float x = std::bit_cast<float>(m.c[row][col]);
    const u32 result = !half            ? m.c[row][col]
                       : entry.out == h ? u32(bits_of(f16(x)))
                                        : u32(to_bf16(x));
    out[reg].lane[l] |= result << shift;
    if constexpr (Strict) {
      const u32 part = half ? 0xffffu << shift : ~0u;
      const u32 c_bits = c.file == File::Vgpr ? w.v_undef[c.index + reg].lane[l] & part : 0;
      if ((c_bits | m.a_unknown[row] | m.b_unknown[col]) != 0) unknown[reg].lane[l] |= part;
    }
  });
  const int registers = half && gfx12 ? values / 2 : values;
  for (int r = 0; r < registers; ++r) {
    if (half && !gfx12) {
      // The other half of the destination is left alone.
      const u32 keep = high ? 0xffffu : 0xffff0000u;
      for (int l = 0; l < w.size; ++l) {
        out[r].lane[l] |= w.v[dst + r].lane[l] & keep;
        if constexpr (Strict) unknown[r].lane[l] |= w.v_undef[dst + r].lane[l] & keep;
      }
    }
    write_row<Strict>(w, dst + r, out[r].lane, unknown[r].lane, w.full_mask());
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
    Semantics s;
    s.run = run_wmma<false>;
    s.run_strict = run_wmma<true>;
    s.kind = Class::Matrix;
    const Type c = shape.out == Element::F32 ? Type::F32
                   : shape.out == h          ? Type::F16
                   : shape.out == bf         ? Type::BF16
                                             : Type::I32;
    s.dst = Type::B32;
    s.src = {Type::B32, Type::B32, c};
    s.sources = 3;
    s.flags = flag::kPacked16;
    s.parameter = index++;
    r.add(shape.names, s);
  }
}

}  // namespace rocflash::sim
