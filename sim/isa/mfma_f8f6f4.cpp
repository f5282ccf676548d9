// gfx950's matrix instructions on 8-, 6- and 4-bit floats, with and without block scales.
// Layouts (CDNA4 ISA document, 7.1.5 and 7.2): a lane holds 32 values of one row of A or column of
// B, packed without gaps. 6- and 4-bit values are 32 consecutive k; 8-bit ones two runs of 16, half
// of K apart. The scale of 32 consecutive k is a byte of the lane that holds 6- or 4-bit values of
// them. Each block of 32 is summed, scaled and added to C in double; the result is rounded once.
#include "isa/mfma_f8f6f4.h"

#include <bit>
#include <cmath>
#include <limits>

#include "isa/lanes.h"
#include "isa/small_float.h"
#include "isa/valu.h"

namespace rocflash::sim {
namespace {

constexpr u32 kLarge = 1;   // Semantics::parameter: 32x32x64, otherwise 16x16x128
constexpr u32 kScaled = 2;  // two more sources
constexpr int kPerLane = 32;
constexpr int kBlock = 32;  // k that share a scale
constexpr int kMaxSide = 32;
constexpr int kMaxDepth = 128;

struct Dimensions {
  int side;
  int depth;
  [[nodiscard]] int groups() const { return kMaxLanes / side; }  // of lanes, which share K
  [[nodiscard]] int registers() const { return side * side / kMaxLanes; }
};

Dimensions dimensions(const Op& op) {
  return (op.parameter & kLarge) != 0 ? Dimensions{32, 64} : Dimensions{16, 128};
}

Small format_of(u8 code) {
  if (code >= kSmallFormats) {
    raise(Fault::BadProgram,
          "cbsz or blgp selects a matrix format that does not exist; it can be 0 to 4");
  }
  return static_cast<Small>(code);
}

int dwords_of(Small f) { return small_format(f).bits; }  // 32 values in dwords of 32 bits

int depth_of(const Dimensions& d, Small f, int group, int element) {
  if (small_format(f).bits != 8) return kBlock * group + element;
  return element / 16 * (d.depth / 2) + 16 * group + element % 16;
}

// out[k][row or column].
struct Unpacked {
  alignas(64) float value[kMaxDepth][kMaxSide];
};

void unpack(const Wave& w, const Dimensions& d, const Source& source, Small f, Unpacked& out) {
  if (source.file != File::Vgpr || source.dwords < dwords_of(f)) {
    raise(Fault::BadProgram, "a matrix operand has fewer registers than its format needs");
  }
  const auto& values = small_values(f);
  const int bits = small_format(f).bits;
  const u32 mask = (1u << bits) - 1;
  for (int lane = 0; lane < kMaxLanes; ++lane) {
    for (int e = 0; e < kPerLane; ++e) {
      const int word = e * bits / 32;
      const int shift = e * bits % 32;
      u64 pair = w.vgpr[source.index + word].lane[lane];
      if (shift + bits > 32) pair |= u64{w.vgpr[source.index + word + 1].lane[lane]} << 32;
      const int k = depth_of(d, f, lane / d.side, e);
      out.value[k][lane % d.side] = values[u32(pair >> shift) & mask];
    }
  }
}

// E8M0: a power of two, or NaN.
double scale_value(u32 exponent) {
  if (exponent == 0xff) return std::numeric_limits<double>::quiet_NaN();
  return std::bit_cast<double>(u64{exponent - 127 + 1023} << 52);
}

struct Scales {
  double value[kMaxLanes];  // lane row + side * block
};

void read_scales(const Wave& w, const Source& source, u32 byte, Scales& out) {
  const u32 all = source.file == File::Vgpr ? 0 : read_scalar(w, source, nullptr);
  for (int lane = 0; lane < kMaxLanes; ++lane) {
    const u32 word = source.file == File::Vgpr ? w.vgpr[source.index].lane[lane] : all;
    out.value[lane] = scale_value(word >> (8 * byte) & 0xff);
  }
}

int row_of(const Dimensions& d, int reg, int lane) {
  const int group = lane / d.side;
  return d.side == 32 ? 8 * (reg / 4) + 4 * group + reg % 4 : 4 * group + reg;
}

// Undefined bits of any register of the source, for each lane.
void undefined_lanes(const Wave& w, const Source& source, int dwords, u32* lanes) {
  if (source.file == File::Vgpr) {
    for (int r = 0; r < dwords; ++r) {
      for (int l = 0; l < kMaxLanes; ++l) lanes[l] |= w.vgpr_undef[source.index + r].lane[l];
    }
  } else if (!source_clean(w, source)) {
    for (int l = 0; l < kMaxLanes; ++l) lanes[l] = ~0u;
  }
}

// An undefined input makes its row or column of D undefined.
void shadow(Wave& w, const Op& op, const Dimensions& d, const Vgpr* c_unknown) {
  u32 a[kMaxLanes] = {};
  u32 b[kMaxLanes] = {};
  undefined_lanes(w, op.src[0], op.src[0].dwords, a);
  undefined_lanes(w, op.src[1], op.src[1].dwords, b);
  if ((op.parameter & kScaled) != 0) {
    undefined_lanes(w, op.src[3], 1, a);
    undefined_lanes(w, op.src[4], 1, b);
  }
  const auto spoilt = [&](const u32* lanes, int index) {
    u32 any = 0;
    for (int l = index; l < kMaxLanes; l += d.side) any |= lanes[l];
    return any != 0;
  };
  for (int v = 0; v < d.registers(); ++v) {
    Vgpr out = c_unknown[v];
    for (int l = 0; l < kMaxLanes; ++l) {
      if (spoilt(a, row_of(d, v, l)) || spoilt(b, l % d.side)) out.lane[l] = ~0u;
    }
    w.vgpr_undef[op.dst[0].index + v] = out;
    w.vgpr_dirty[op.dst[0].index + v] = 1;
  }
}

float rounded(const Wave& w, double x) {
  const auto result = static_cast<float>(x);
  const bool clamps = (w.mode >> kModeOverflowBit & 1) != 0;
  if (!clamps || !std::isinf(result) || std::isinf(x)) return result;
  return std::copysign(std::numeric_limits<float>::max(), result);
}

// Rows of D are computed whole: sums[row][column].
using Sums = double[kMaxSide][kMaxSide];

template <int N>
void multiply(const Dimensions& d, const Unpacked& a, const Unpacked& b, const Scales* sa,
              const Scales* sb, Sums& sums) {
  for (int i = 0; i < N; ++i) {
    for (int block = 0; block < d.depth / kBlock; ++block) {
      double dot[N] = {};
      for (int k = kBlock * block; k < kBlock * (block + 1); ++k) {
        const double x = a.value[k][i];
        for (int j = 0; j < N; ++j) dot[j] += x * b.value[k][j];
      }
      for (int j = 0; j < N; ++j) {
        if (sa != nullptr) dot[j] *= sa->value[i + N * block] * sb->value[j + N * block];
        sums[i][j] += dot[j];
      }
    }
  }
}

template <bool Strict>
void run_f8f6f4(Wave& w, const Op& op) {
  const Dimensions d = dimensions(op);
  const bool scaled = (op.parameter & kScaled) != 0;
  const Small fa = format_of(op.cbsz);
  const Small fb = format_of(op.blgp);
  bool clean = true;
  if constexpr (Strict) {
    for (std::size_t k = 0; k < (scaled ? 5u : 3u); ++k) {
      need_source(w, op.src[k]);
      clean = clean && source_clean(w, op.src[k]);
    }
    need_vgpr(w, op.dst[0].index, d.registers());
  }
  static thread_local Unpacked a;
  static thread_local Unpacked b;
  unpack(w, d, op.src[0], fa, a);
  unpack(w, d, op.src[1], fb, b);
  Scales sa;
  Scales sb;
  if (scaled) {
    read_scales(w, op.src[3], (op.op_sel & 1u) | (op.op_sel_hi & 1u) << 1, sa);
    read_scales(w, op.src[4], (op.op_sel >> 1 & 1u) | (op.op_sel_hi >> 1 & 1u) << 1, sb);
  }
  Vgpr unknown[16];
  Sums sums;
  const Source& c = op.src[2];
  for (int v = 0; v < d.registers(); ++v) {
    for (int l = 0; l < kMaxLanes; ++l) {
      const u32 bits = c.file == File::Vgpr ? w.vgpr[c.index + v].lane[l] : u32(c.value);
      sums[row_of(d, v, l)][l % d.side] = std::bit_cast<float>(bits);
    }
    if (Strict && !clean) unknown[v] = c.file == File::Vgpr ? w.vgpr_undef[c.index + v] : Vgpr{};
  }
  const Scales* scales_a = scaled ? &sa : nullptr;
  d.side == 32 ? multiply<32>(d, a, b, scales_a, &sb, sums)
               : multiply<16>(d, a, b, scales_a, &sb, sums);
  if constexpr (Strict) {
    if (!clean) shadow(w, op, d, unknown);
  }
  for (int v = 0; v < d.registers(); ++v) {
    Vgpr out;
    for (int l = 0; l < kMaxLanes; ++l) {
      out.lane[l] = std::bit_cast<u32>(rounded(w, sums[row_of(d, v, l)][l % d.side]));
    }
    // matrix instructions ignore EXEC
    if (Strict && clean) {
      write_row<true>(w, op.dst[0].index + v, out.lane, nullptr, w.full_mask());
    } else {
      w.vgpr[op.dst[0].index + v] = out;
    }
  }
}

}  // namespace

bool is_f8f6f4(const Op& op) {
  return op.semantics != nullptr && op.semantics->run == run_f8f6f4<false>;
}

u32 f8f6f4_cycles(const Op& op) {
  const bool eight = op.cbsz < 2 || op.blgp < 2;
  return ((op.parameter & kLarge) != 0 ? 32u : 16u) * (eight ? 2 : 1);
}

void add_mfma_f8f6f4(Registry& r) {
  const auto add = [&](std::string_view name, u32 parameter) {
    Semantics s =
        executed(run_f8f6f4<false>, run_f8f6f4<true>, InstructionClass::Matrix, parameter);
    s.dst = Type::F32;
    s.src = {Type::B32, Type::B32, Type::F32, Type::B32, Type::B32};
    s.sources = (parameter & kScaled) != 0 ? 5 : 3;
    r.add(name, s);
  };
  add("v_mfma_f32_16x16x128_f8f6f4", 0);
  add("v_mfma_f32_32x32x64_f8f6f4", kLarge);
  add("v_mfma_scale_f32_16x16x128_f8f6f4", kScaled);
  add("v_mfma_scale_f32_32x32x64_f8f6f4", kLarge | kScaled);
  r.mark_unsupported("v_mfma_ld_scale_b32",
                     "it is half of a v_mfma_scale, which has no meaning alone");
}

}  // namespace rocflash::sim
