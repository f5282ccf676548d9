// MFMA: matrix multiply-accumulate of the CDNA family.
// Layouts (G = 64 / (M * blocks) lane groups share the K values): A element (i, k) of block b is in
// lane i + M * (b or k / (K/G)), element k % (K/G); B likewise with j. D is in rows of four.
// Accumulation order: C first, then k = 0, 1, 2, ... each by a fused multiply-add in f32.
// Hardware's own order is not documented; integer-valued data gives the same answer in any order.
#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "isa/lanes.h"
#include "isa/matrix.h"
#include "isa/valu.h"

namespace rocflash::sim {
namespace {

struct Shape {
  std::string_view names;
  MatrixShape shape;
  bool integer;
};

using namespace element;

constexpr Shape kShapes[] = {
    {"v_mfma_f32_32x32x1f32|v_mfma_f32_32x32x1_2b_f32", {32, 32, 1, 2, f32e, f32e}, false},
    {"v_mfma_f32_16x16x1f32|v_mfma_f32_16x16x1_4b_f32", {16, 16, 1, 4, f32e, f32e}, false},
    {"v_mfma_f32_4x4x1f32|v_mfma_f32_4x4x1_16b_f32", {4, 4, 1, 16, f32e, f32e}, false},
    {"v_mfma_f32_32x32x2f32|v_mfma_f32_32x32x2_f32", {32, 32, 2, 1, f32e, f32e}, false},
    {"v_mfma_f32_16x16x4f32|v_mfma_f32_16x16x4_f32", {16, 16, 4, 1, f32e, f32e}, false},
    {"v_mfma_f32_32x32x4f16|v_mfma_f32_32x32x4_2b_f16", {32, 32, 4, 2, h, h}, false},
    {"v_mfma_f32_16x16x4f16|v_mfma_f32_16x16x4_4b_f16", {16, 16, 4, 4, h, h}, false},
    {"v_mfma_f32_4x4x4f16|v_mfma_f32_4x4x4_16b_f16", {4, 4, 4, 16, h, h}, false},
    {"v_mfma_f32_32x32x8f16|v_mfma_f32_32x32x8_f16", {32, 32, 8, 1, h, h}, false},
    {"v_mfma_f32_16x16x16f16|v_mfma_f32_16x16x16_f16", {16, 16, 16, 1, h, h}, false},
    {"v_mfma_f32_32x32x16_f16", {32, 32, 16, 1, h, h}, false},
    {"v_mfma_f32_16x16x32_f16", {16, 16, 32, 1, h, h}, false},
    {"v_mfma_f32_32x32x2bf16", {32, 32, 2, 2, bf, bf}, false},
    {"v_mfma_f32_16x16x2bf16", {16, 16, 2, 4, bf, bf}, false},
    {"v_mfma_f32_4x4x2bf16", {4, 4, 2, 16, bf, bf}, false},
    {"v_mfma_f32_32x32x4bf16", {32, 32, 4, 1, bf, bf}, false},
    {"v_mfma_f32_16x16x8bf16", {16, 16, 8, 1, bf, bf}, false},
    {"v_mfma_f32_32x32x4bf16_1k|v_mfma_f32_32x32x4_2b_bf16", {32, 32, 4, 2, bf, bf}, false},
    {"v_mfma_f32_16x16x4bf16_1k|v_mfma_f32_16x16x4_4b_bf16", {16, 16, 4, 4, bf, bf}, false},
    {"v_mfma_f32_4x4x4bf16_1k|v_mfma_f32_4x4x4_16b_bf16", {4, 4, 4, 16, bf, bf}, false},
    {"v_mfma_f32_32x32x8bf16_1k|v_mfma_f32_32x32x8_bf16", {32, 32, 8, 1, bf, bf}, false},
    {"v_mfma_f32_16x16x16bf16_1k|v_mfma_f32_16x16x16_bf16", {16, 16, 16, 1, bf, bf}, false},
    {"v_mfma_f32_32x32x16_bf16", {32, 32, 16, 1, bf, bf}, false},
    {"v_mfma_f32_16x16x32_bf16", {16, 16, 32, 1, bf, bf}, false},
    {"v_mfma_i32_32x32x4i8|v_mfma_i32_32x32x4_2b_i8", {32, 32, 4, 2, i8e, i8e}, true},
    {"v_mfma_i32_16x16x4i8|v_mfma_i32_16x16x4_4b_i8", {16, 16, 4, 4, i8e, i8e}, true},
    {"v_mfma_i32_4x4x4i8|v_mfma_i32_4x4x4_16b_i8", {4, 4, 4, 16, i8e, i8e}, true},
    {"v_mfma_i32_32x32x8i8", {32, 32, 8, 1, i8e, i8e}, true},
    {"v_mfma_i32_16x16x16i8", {16, 16, 16, 1, i8e, i8e}, true},
    {"v_mfma_i32_32x32x16i8|v_mfma_i32_32x32x16_i8", {32, 32, 16, 1, i8e, i8e}, true},
    {"v_mfma_i32_16x16x32i8|v_mfma_i32_16x16x32_i8", {16, 16, 32, 1, i8e, i8e}, true},
    {"v_mfma_i32_32x32x32_i8", {32, 32, 32, 1, i8e, i8e}, true},
    {"v_mfma_i32_16x16x64_i8", {16, 16, 64, 1, i8e, i8e}, true},
    {"v_mfma_f32_32x32x16_fp8_fp8", {32, 32, 16, 1, p8, p8}, false},
    {"v_mfma_f32_32x32x16_fp8_bf8", {32, 32, 16, 1, p8, q8}, false},
    {"v_mfma_f32_32x32x16_bf8_fp8", {32, 32, 16, 1, q8, p8}, false},
    {"v_mfma_f32_32x32x16_bf8_bf8", {32, 32, 16, 1, q8, q8}, false},
    {"v_mfma_f32_16x16x32_fp8_fp8", {16, 16, 32, 1, p8, p8}, false},
    {"v_mfma_f32_16x16x32_fp8_bf8", {16, 16, 32, 1, p8, q8}, false},
    {"v_mfma_f32_16x16x32_bf8_fp8", {16, 16, 32, 1, q8, p8}, false},
    {"v_mfma_f32_16x16x32_bf8_bf8", {16, 16, 32, 1, q8, q8}, false},
};

constexpr int kMaxElements = 32;  // of A or B in one lane

// All elements a lane holds, as numbers: out[e][lane].
struct Unpacked {
  alignas(64) float f[kMaxElements][kMaxLanes];
  alignas(64) i32 i[kMaxElements][kMaxLanes];
};

inline float flush_half(float x) { return std::abs(x) < 0x1p-14f ? std::copysign(0.0f, x) : x; }
inline float flush_single(float x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

void unpack(const Wave& w, const Source& source, Element e, int count, const int* lane_map,
            Unpacked& out) {
  const bool flush = w.target->mfma_flushes_denormals;
  for (int n = 0; n < count; ++n) {
    const int bit = n * element_bits(e);
    if (source.file != File::Vgpr)
      raise(Fault::BadProgram, "a matrix operand is not a vector register");
    const u32* row = w.vgpr[source.index + bit / 32].lane;
    u32 broadcast[kMaxLanes];
    if (lane_map != nullptr) {
      for (int l = 0; l < kMaxLanes; ++l) broadcast[l] = row[lane_map[l]];
      row = broadcast;
    }
    const int shift = bit % 32;
    float* f = out.f[n];
    switch (e) {
      case Element::F32:
        for (int l = 0; l < kMaxLanes; ++l) f[l] = std::bit_cast<float>(row[l]);
        break;
      case Element::F16:
        for (int l = 0; l < kMaxLanes; ++l) {
          f[l] = float(std::bit_cast<f16>(u16(row[l] >> shift)));
        }
        if (flush) {
          for (int l = 0; l < kMaxLanes; ++l) f[l] = flush_half(f[l]);
        }
        break;
      case Element::BF16:
        for (int l = 0; l < kMaxLanes; ++l) f[l] = float(bf16{u16(row[l] >> shift)});
        if (flush) {
          for (int l = 0; l < kMaxLanes; ++l) f[l] = flush_single(f[l]);
        }
        break;
      case Element::I8:
        for (int l = 0; l < kMaxLanes; ++l) out.i[n][l] = i32(row[l] >> shift << 24) >> 24;
        break;
      case Element::FP8:
      case Element::BF8: {
        const auto& table = fp8_table(e, uses_fnuz(*w.target));
        for (int l = 0; l < kMaxLanes; ++l) f[l] = table[row[l] >> shift & 0xff];
        break;
      }
      default:
        raise(Fault::BadProgram, "the MFMA has an unknown element type");
    }
  }
}

// BLGP: how B's lane groups are rearranged before use.
const int* blgp_map(u8 blgp, int* map) {
  if (blgp == 0) return nullptr;
  for (int l = 0; l < kMaxLanes; ++l) {
    switch (blgp) {
      case 1:
        map[l] = l % 32;
        break;
      case 2:
        map[l] = 32 + l % 32;
        break;
      case 3:
        map[l] = (l + 16) % 64;
        break;
      default:
        map[l] = 16 * (blgp - 4) + l % 16;
        break;
    }
  }
  return map;
}

// Row of D that register v holds in the lanes of group g (lanes g*N .. g*N+N-1).
inline int d_row(int m, int v, int g) { return m == 32 ? 8 * (v / 4) + 4 * g + v % 4 : 4 * g + v; }

// One block: whole rows of D are contiguous in lanes, so the arithmetic runs over rows of N. Four
// registers at a time share each row of B and give the host independent sums to work on.
constexpr int kTogether = 4;

template <int N>
void multiply_rows(const MatrixShape& s, const Unpacked& a, const Unpacked& b, Vgpr* c, int v) {
  using Values = float __attribute__((ext_vector_type(N)));
  constexpr int kGroups = kMaxLanes / N;
  const int per_lane = s.k / kGroups;
  Values sum[kTogether][kGroups];
  for (int r = 0; r < kTogether; ++r) std::memcpy(sum[r], c[v + r].lane, sizeof sum[r]);
  for (int k = 0; k < s.k; ++k) {
    const int group = k / per_lane;
    const int e = k % per_lane;
    Values row;
    std::memcpy(&row, b.f[e] + group * N, sizeof row);
    const float* column = a.f[e] + group * N;
    for (int r = 0; r < kTogether; ++r) {
      for (int g = 0; g < kGroups; ++g) {
        const Values x = column[d_row(N, v + r, g)];
        sum[r][g] = __builtin_elementwise_fma(x, row, sum[r][g]);
      }
    }
  }
  for (int r = 0; r < kTogether; ++r) std::memcpy(c[v + r].lane, sum[r], sizeof sum[r]);
}

template <int N>
void multiply_rows_int(const MatrixShape& s, const Unpacked& a, const Unpacked& b, u32* acc,
                       int v) {
  constexpr int kGroups = kMaxLanes / N;
  const int per_lane = s.k / kGroups;
  for (int k = 0; k < s.k; ++k) {
    const int group = k / per_lane;
    const int e = k % per_lane;
    const i32* brow = b.i[e] + group * N;
    for (int g = 0; g < kGroups; ++g) {
      const i32 x = a.i[e][group * N + d_row(N, v, g)];
      u32* d = acc + g * N;
      for (int j = 0; j < N; ++j) d[j] += u32(x * brow[j]);
    }
  }
}

// Row and column of D's register v, lane l in a multi-block shape.
struct Cell {
  int block, row, col;
};
inline Cell block_cell(const MatrixShape& s, int v, int lane) {
  if (s.m == 4) return {lane / 4, v, lane % 4};
  const int per_block = s.m * s.m / kMaxLanes;
  return {v / per_block, d_row(s.m, v % per_block, lane / s.m), lane % s.m};
}

void multiply_blocks(const Op& op, const MatrixShape& s, const Unpacked& a, const Unpacked& b,
                     u32* acc, int v, bool integer) {
  for (int l = 0; l < kMaxLanes; ++l) {
    const Cell c = block_cell(s, v, l);
    // CBSZ and ABID let groups of blocks share one block of A.
    const int group = (1 << op.cbsz) - 1;
    const int a_block = (c.block & ~group) + (op.cbsz != 0 ? op.abid & group : c.block & group);
    for (int k = 0; k < s.k; ++k) {
      const int al = a_block * s.m + c.row;
      const int bl = c.block * s.n + c.col;
      if (integer) {
        acc[l] += u32(a.i[k][al] * b.i[k][bl]);
      } else {
        acc[l] = std::bit_cast<u32>(
            __builtin_fmaf(a.f[k][al], b.f[k][bl], std::bit_cast<float>(acc[l])));
      }
    }
  }
}

// An undefined input makes its row or column of D undefined.
void shadow(Wave& w, const Op& op, const MatrixShape& s, int registers, const Vgpr* c_unknown) {
  const auto any_row = [&](const Source& src, u32* lanes) {
    std::fill_n(lanes, kMaxLanes, 0u);
    for (int r = 0; r < src.dwords; ++r) {
      for (int l = 0; l < kMaxLanes; ++l) lanes[l] |= w.vgpr_undef[src.index + r].lane[l];
    }
  };
  u32 a[kMaxLanes];
  u32 b[kMaxLanes];
  any_row(op.src[0], a);
  any_row(op.src[1], b);
  const auto spoilt = [&](const u32* lanes, int block, int index) {
    if (s.blocks > 1) return lanes[block * s.m + index] != 0;
    for (int l = index; l < kMaxLanes; l += s.m) {
      if (lanes[l] != 0) return true;
    }
    return false;
  };
  for (int v = 0; v < registers; ++v) {
    Vgpr out = c_unknown[v];
    for (int l = 0; l < kMaxLanes; ++l) {
      const Cell c = s.blocks > 1 ? block_cell(s, v, l) : Cell{0, d_row(s.m, v, l / s.m), l % s.m};
      if (out.lane[l] != 0 || spoilt(a, c.block, c.row) || spoilt(b, c.block, c.col)) {
        out.lane[l] = ~0u;
      }
    }
    w.vgpr_undef[op.dst[0].index + v] = out;
    w.vgpr_dirty[op.dst[0].index + v] = 1;
  }
}

template <bool Strict>
void run_mfma(Wave& w, const Op& op) {
  const Shape& entry = kShapes[op.parameter];
  const MatrixShape& s = entry.shape;
  const int per_lane = s.k * s.m * s.blocks / kMaxLanes;
  const int registers = s.m * s.n * s.blocks / kMaxLanes;
  static thread_local Unpacked a;
  static thread_local Unpacked b;
  static thread_local Vgpr c[32];
  bool clean = true;
  if constexpr (Strict) {
    for (int k = 0; k < 3; ++k) {
      need_source(w, op.src[static_cast<std::size_t>(k)]);
      clean = clean && source_clean(w, op.src[static_cast<std::size_t>(k)]);
    }
    need_vgpr(w, op.dst[0].index, registers);
  }
  int map[kMaxLanes];
  unpack(w, op.src[0], s.a, per_lane, nullptr, a);
  unpack(w, op.src[1], s.b, per_lane, blgp_map(op.blgp, map), b);
  for (int v = 0; v < registers; ++v) {
    if (op.src[2].file == File::Vgpr) {
      c[v] = w.vgpr[op.src[2].index + v];
    } else {
      std::fill_n(c[v].lane, kMaxLanes, u32(op.src[2].value));
    }
  }
  const bool flush = w.target->mfma_flushes_denormals && s.a != Element::F32 && !entry.integer;
  static thread_local Vgpr unknown[32];
  if constexpr (Strict) {
    if (!clean) {
      for (int v = 0; v < registers; ++v) {
        unknown[v] = op.src[2].file == File::Vgpr ? w.vgpr_undef[op.src[2].index + v] : Vgpr{};
      }
    }
  }
  for (int v = 0; v < registers; ++v) {
    u32* d = c[v].lane;
    if (s.blocks > 1) {
      multiply_blocks(op, s, a, b, d, v, entry.integer);
    } else if (entry.integer) {
      s.m == 32 ? multiply_rows_int<32>(s, a, b, d, v) : multiply_rows_int<16>(s, a, b, d, v);
    } else if (v % kTogether == 0) {
      s.m == 32 ? multiply_rows<32>(s, a, b, c, v) : multiply_rows<16>(s, a, b, c, v);
    }
    if (flush) {
      for (int l = 0; l < kMaxLanes; ++l) {
        d[l] = std::bit_cast<u32>(flush_single(std::bit_cast<float>(d[l])));
      }
    }
  }
  for (int v = 0; v < registers; ++v)
    w.vgpr[op.dst[0].index + v] = c[v];  // matrix instructions ignore EXEC
  if constexpr (Strict) {
    if (clean) {
      for (int v = 0; v < registers; ++v) {
        write_row<true>(w, op.dst[0].index + v, c[v].lane, nullptr, w.full_mask());
      }
    } else {
      shadow(w, op, s, registers, unknown);
    }
  }
}

}  // namespace

u32 matrix_cycles(const Target& target, const MatrixShape& s) {
  // Floating-point (or integer) operations a SIMD's matrix pipe does in a clock.
  u32 rate = 256;
  const int bits = element_bits(s.a);
  if (target.name == "gfx90a" || target.name == "gfx908") {
    // The bf16 shapes with two values per register run at half rate, the "_1k" ones at full rate.
    const bool half_rate = s.a == Element::BF16 && s.m * s.k * s.blocks / kMaxLanes == 2;
    rate = bits == 32 ? 64 : half_rate ? 128 : 256;
  } else if (target.name == "gfx942") {
    rate = bits == 32 ? 64 : bits == 16 ? 512 : 1024;
  } else if (target.name == "gfx950") {
    // The shapes gfx942 has keep their cycles; the doubled ones cost the same.
    const bool doubled = s.blocks == 1 && s.m * s.k / kMaxLanes * bits > 64;
    rate = (bits == 32 ? 64 : bits == 16 ? 512 : 1024) * (doubled ? 2 : 1);
  } else if (target.generation == Generation::Gfx12) {
    rate = bits == 16 ? 512 : 1024;
  }
  return u32(2 * s.m * s.n * s.k * s.blocks) / rate;
}

const MatrixShape* find_mfma_shape(u32 parameter) {
  return parameter < std::size(kShapes) ? &kShapes[parameter].shape : nullptr;
}

void add_mfma(Registry& r) {
  u32 index = 0;
  for (const Shape& shape : kShapes) {
    Semantics s = executed(run_mfma<false>, run_mfma<true>, InstructionClass::Matrix, index++);
    s.dst = shape.integer ? Type::I32 : Type::F32;
    s.src = {Type::B32, Type::B32, shape.integer ? Type::I32 : Type::F32};
    s.sources = 3;
    r.add(shape.names, s);
  }
  r.mark_unsupported("v_mfma_f32_16x16x8_xf32|v_mfma_f32_32x32x4_xf32", "xf32 is not modeled");
}

}  // namespace rocflash::sim
