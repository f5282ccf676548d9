// The GEMMs of attention in f32. ISAs with bf16 instructions also have them on bf16 pairs
// (bf16.hpp).
//
// Forward and backward share the operand formats. Streamed rows are summed over their columns
// (Rows: scores) or over the rows (Values); rows in lanes are packed one row per lane (LaneOperand)
// or by column (ColumnOperand). Intermediate results are tiles of floats.
#pragma once

#include <type_traits>

#include "cpu/gemm/nonfinite.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// Computes in f32 for every tensor dtype.
template <int vectors_, Summation sums>
class F32Gemm {
 public:
  static constexpr int vectors = vectors_, panel = vectors * width;
  // f32 weights are used unrounded and need the accurate exponential.
  using Exponent = std::conditional_t<sums == Summation::blocked, Exponential, QuickExponential>;

  ROCFLASH_INLINE F32Gemm(Scratch& scratch, int max_columns)
      : spare_(scratch.take(operand_floats(stream_rows, max_columns))) {}

  static constexpr bool packs = false;  // whether weights are packed as they are computed
  static constexpr int rows_together = stream_rows;  // rows of v per GEMM in forward

  // All operands can be scaled by a power of two on load.
  struct Rows {
    ROCFLASH_INLINE Rows(Scratch& scratch, int widest, int rows = stream_rows)
        : data(scratch.take(operand_floats(rows, widest))), stride(padded_stride(widest)) {}
    ROCFLASH_INLINE void load(const RowBlock& block, float factor = 1.0f) {
      columns = block.rows.columns;
      origin = block;
      finite = load_rows(data, stride, block, factor);
    }
    ROCFLASH_INLINE Rows from(std::int64_t row) const {
      Rows part = *this;
      part.data += row * stride;
      part.origin = origin.from(row);
      return part;
    }
    float* data;
    std::int64_t stride;
    Origin origin;
    int columns = 0;
    bool finite = true;
  };
  // Non-finite elements are 0 here; `origin` still has them.
  struct Values : Rows {
    using Rows::Rows;
    ROCFLASH_INLINE void load(const RowBlock& block, float factor = 1.0f) {
      Rows::load(block, factor);
      if (!this->finite) clear_nonfinite(this->data, block.count * this->stride);
    }
    ROCFLASH_INLINE Values from(std::int64_t row) const {
      Values part = *this;
      static_cast<Rows&>(part) = Rows::from(row);
      return part;
    }
  };
  // Stored twice only if some element is not finite.
  struct RowsAndValues {
    ROCFLASH_INLINE RowsAndValues(Scratch& scratch, int widest)
        : rows(scratch, widest), values(scratch, widest), cleared(values.data) {}
    ROCFLASH_INLINE void load(const RowBlock& block, float factor = 1.0f) {
      rows.load(block, factor);
      static_cast<Rows&>(values) = rows;
      if (rows.finite) return;
      values.data = cleared;
      values.load(block, factor);
    }
    ROCFLASH_INLINE operator const Rows&() const { return rows; }
    ROCFLASH_INLINE operator const Values&() const { return values; }
    Rows rows;
    Values values;
    float* cleared;
  };

  struct LaneOperand {
    LaneOperand() = default;
    ROCFLASH_INLINE LaneOperand(Scratch& scratch, int columns)
        : data(scratch.take(operand_floats(panel, columns))) {}
    ROCFLASH_INLINE void load(const RowBlock& block, float factor = 1.0f) {
      load_lanes(data, panel, block, factor);
    }
    float* data;
  };
  struct ColumnOperand {
    ROCFLASH_INLINE ColumnOperand(Scratch& scratch, int rows, int columns)
        : data(scratch.take(operand_floats(rows, columns))), stride(padded_stride(columns)) {}
    ROCFLASH_INLINE void load(const RowBlock& block, float factor = 1.0f) {
      finite = load_rows(data, stride, block, factor);
      if (!finite) clear_nonfinite(data, block.count * stride);
    }
    float* data;
    std::int64_t stride;
    bool finite = true;
  };

  // c[row][lane] = row . lane, for `count` rows.
  ROCFLASH_INLINE void score(const Rows& rows, std::int64_t count, const LaneOperand& lanes,
                             Panel<float> c) {
    gemm<vectors, Into::overwrite, sums>(count, rows.columns, {rows.data, rows.stride, 1},
                                         Panel<const float>{lanes.data, panel}, c);
  }
  // c[column][lane] += sum over rows of weights[row][lane] * values[row][column]. Here and below a
  // weight of exactly 0 contributes nothing, even to an infinity or NaN.
  ROCFLASH_INLINE void accumulate(const Values& values, std::int64_t count,
                                  Panel<const float> weights, Panel<float> c,
                                  bool /*of_gradients*/ = false) {
    gemm<vectors, Into::add, sums>(values.columns, count, {values.data, 1, values.stride}, weights,
                                   c);
    if (values.finite) return;
    const std::int64_t stride = padded(values.columns);
    load_rows(spare_, stride, values.origin.block(count));
    add_nonfinite<vectors, Weights::right>(values.columns, count, {spare_, 1, stride}, weights, c);
  }
  // The same for few lanes with a transposed result: c[lane][column].
  ROCFLASH_INLINE void accumulate_in_rows(const Values& values, std::int64_t count,
                                          Panel<const float> weights, std::int64_t lanes,
                                          Panel<float> c) {
    const Strided by{weights.data, 1, weights.stride};
    add_rows(lanes, count, by, {values.data, values.stride}, values.columns, c);
    if (!values.finite) add_nonfinite_rows(lanes, by, values.origin.block(count), spare_, c);
  }
  // c[row][column] += sum over lanes of weights[row][lane] * values[lane][column].
  ROCFLASH_INLINE void reduce_lanes(Panel<const float> weights, std::int64_t count, Range lanes,
                                    const ColumnOperand& values, const RowBlock& block,
                                    Panel<float> c) {
    const Strided by{weights.at(0, lanes.begin).data, weights.stride, 1};
    add_rows(count, lanes.size(), by,
             Panel<const float>{values.data, values.stride}.at(lanes.begin, 0), block.rows.columns,
             c);
    if (!values.finite)
      add_nonfinite_rows(count, by, Origin(block).from(lanes.begin).block(lanes.size()), spare_, c);
  }

 private:
  ROCFLASH_INLINE static void add_rows(std::int64_t n, std::int64_t k, Strided weights,
                                       Panel<const float> values, int columns, Panel<float> c) {
    over_columns(columns, [&]<int wide>(int at) {
      gemm<wide, Into::add, sums>(n, k, weights, values.at(0, at), c.at(0, at));
    });
  }

  float* spare_;
};

template <int vectors>
using BlockedF32 = F32Gemm<vectors, Summation::blocked>;
template <int vectors>
using WholeF32 = F32Gemm<vectors, Summation::whole>;

// Calls body<Gemm<vectors>>. Few rows take a narrower panel, so that single queries do not pay for
// 64 lanes.
template <template <int> class Gemm, class Body>
ROCFLASH_INLINE void with_panel_width(std::int64_t rows, Body body) {
  if (rows <= width) return body.template operator()<Gemm<1>>();
  if constexpr (max_vectors == 4) {
    if (rows > 2 * width) return body.template operator()<Gemm<4>>();
  }
  body.template operator()<Gemm<2>>();
}
template <class Body>
ROCFLASH_INLINE void with_f32_gemm(std::int64_t rows, DType q, Body body) {
  q == DType::f32 ? with_panel_width<BlockedF32>(rows, body)
                  : with_panel_width<WholeF32>(rows, body);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
