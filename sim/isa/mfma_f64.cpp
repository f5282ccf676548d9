// MFMA of f64 (CDNA ISA documents, 7.1.4): every item is a pair of registers. A's element (i, k) of
// block b is in lane i + M * (b + blocks * k), B's likewise with j; D's rows follow each
// other in the lanes, four rows of each block to an item.
#include "isa/mfma_f64.h"

#include <bit>
#include <cmath>

#include "isa/lanes.h"
#include "isa/valu.h"

namespace rocflash::sim {
namespace {

constexpr int kDepth = 4;

struct Shape {
  int side;
  int blocks;
  [[nodiscard]] int items() const { return side * side * blocks / kMaxLanes; }
};

Shape shape_of(const Op& op) { return op.parameter == 16 ? Shape{16, 1} : Shape{4, 4}; }

struct Cell {
  int block, row, column;
};
Cell cell_of(const Shape& s, int item, int lane) {
  const int column = lane % s.side;
  if (s.side == 4) return {lane / 16, lane / 4 % 4, column};
  return {0, 4 * item + lane / 16, column};
}

double read_pair(const Wave& w, int row, int lane) {
  return std::bit_cast<double>(u64{w.vgpr[row].lane[lane]} | u64{w.vgpr[row + 1].lane[lane]} << 32);
}

bool pair_undefined(const Wave& w, const Source& s, int first, int lane) {
  return s.file == File::Vgpr && (w.vgpr_undef[s.index + first].lane[lane] |
                                  w.vgpr_undef[s.index + first + 1].lane[lane]) != 0;
}

template <bool Strict>
void run_f64(Wave& w, const Op& op) {
  const Shape s = shape_of(op);
  const Source& c = op.src[2];
  bool clean = true;
  if constexpr (Strict) {
    for (std::size_t k = 0; k < 3; ++k) {
      need_source(w, op.src[k]);
      clean = clean && source_clean(w, op.src[k]);
    }
    need_vgpr(w, op.dst[0].index, 2 * s.items());
  }
  // BLGP negates A, B and C here.
  const double sign_ab = ((op.blgp ^ op.blgp >> 1) & 1) != 0 ? -1.0 : 1.0;
  const double sign_c = (op.blgp >> 2 & 1) != 0 ? -1.0 : 1.0;
  Vgpr out[8];
  Vgpr unknown[8];
  for (int item = 0; item < s.items(); ++item) {
    for (int lane = 0; lane < kMaxLanes; ++lane) {
      const Cell at = cell_of(s, item, lane);
      double sum = sign_c * (c.file == File::Vgpr ? read_pair(w, c.index + 2 * item, lane)
                                                  : std::bit_cast<double>(c.value));
      bool spoilt = Strict && !clean && pair_undefined(w, c, 2 * item, lane);
      for (int k = 0; k < kDepth; ++k) {
        const int from_a = at.row + s.side * (at.block + s.blocks * k);
        const int from_b = at.column + s.side * (at.block + s.blocks * k);
        sum = std::fma(sign_ab * read_pair(w, op.src[0].index, from_a),
                       read_pair(w, op.src[1].index, from_b), sum);
        if (Strict && !clean) {
          spoilt = spoilt || pair_undefined(w, op.src[0], 0, from_a) ||
                   pair_undefined(w, op.src[1], 0, from_b);
        }
      }
      const u64 bits = std::bit_cast<u64>(sum);
      for (int half = 0; half < 2; ++half) {
        out[2 * item + half].lane[lane] = u32(bits >> (32 * half));
        unknown[2 * item + half].lane[lane] = spoilt ? ~0u : 0u;
      }
    }
  }
  for (int r = 0; r < 2 * s.items(); ++r) {
    write_row<Strict>(w, op.dst[0].index + r, out[r].lane, clean ? nullptr : unknown[r].lane,
                      w.full_mask());
  }
}

}  // namespace

bool is_mfma_f64(const Op& op) {
  return op.semantics != nullptr && op.semantics->run == run_f64<false>;
}

u32 mfma_f64_cycles(const Target& target, const Op& op) {
  if (op.parameter == 4) return 16;
  return target.name == "gfx950" ? 64 : 32;
}

void add_mfma_f64(Registry& r) {
  const auto add = [&](std::string_view names, u32 side) {
    Semantics s = executed(run_f64<false>, run_f64<true>, InstructionClass::Matrix, side);
    s.dst = Type::F64;
    s.src = {Type::F64, Type::F64, Type::F64};
    s.sources = 3;
    r.add(names, s);
  };
  add("v_mfma_f64_16x16x4f64|v_mfma_f64_16x16x4_f64", 16);
  add("v_mfma_f64_4x4x4f64|v_mfma_f64_4x4x4_4b_f64", 4);
}

}  // namespace rocflash::sim
