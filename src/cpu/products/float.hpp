// The products that attention is made of, in floats. Instruction sets with more offer them in pairs
// of bf16 numbers too (pairs.hpp).
//
// Forward and backward use the same few kinds of operands. Rows of a tensor stream past the lanes
// and are summed over along their columns (Rows: scores) or over the rows themselves (Values); or
// they stand in lanes, one row in each (InLanes), or column by column (InColumns). Everything else
// is a tile of floats that was computed in between.
#pragma once

#include <type_traits>

#include "cpu/products/nonfinite.hpp"

namespace rocflash::cpu::ROCFLASH_ISA {

// In f32, whatever the tensors' dtype.
template <int vectors_, Sums sums>
class InFloat {
 public:
  static constexpr int vectors = vectors_, panel = vectors * width;
  // What computed weights are good for: f32's are used as they are.
  using Exponent = std::conditional_t<sums == Sums::in_runs, Exponential, QuickExponential>;

  ROCFLASH_INLINE InFloat(Scratch& scratch, int most_columns)
      : spare_(scratch.take(operand_floats(stream_rows, most_columns))) {}

  static constexpr bool packs = false;  // whether weights can be packed as they are computed
  static constexpr int rows_together = stream_rows;  // that forward weighs at a time

  // All operands can be multiplied by a power of two as they are loaded.
  struct Rows {
    ROCFLASH_INLINE Rows(Scratch& scratch, int widest, int rows = stream_rows)
        : data(scratch.take(operand_floats(rows, widest))), stride(apart(widest)) {}
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
  // Numbers that are not finite become 0 here; `origin` still has them.
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
  // Only rows that are not finite exist twice.
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

  struct InLanes {
    InLanes() = default;
    ROCFLASH_INLINE InLanes(Scratch& scratch, int columns)
        : data(scratch.take(operand_floats(panel, columns))) {}
    ROCFLASH_INLINE void load(const RowBlock& block, float factor = 1.0f) {
      load_lanes(data, panel, block, factor);
    }
    float* data;
  };
  struct InColumns {
    ROCFLASH_INLINE InColumns(Scratch& scratch, int rows, int columns)
        : data(scratch.take(operand_floats(rows, columns))), stride(apart(columns)) {}
    ROCFLASH_INLINE void load(const RowBlock& block, float factor = 1.0f) {
      finite = load_rows(data, stride, block, factor);
      if (!finite) clear_nonfinite(data, block.count * stride);
    }
    float* data;
    std::int64_t stride;
    bool finite = true;
  };

  // c[row][lane] = row . lane, for so many rows
  ROCFLASH_INLINE void score(const Rows& rows, std::int64_t count, const InLanes& lanes,
                             Panel<float> c) {
    gemm<vectors, Into::overwrite, sums>(count, rows.columns, {rows.data, rows.stride, 1},
                                         Panel<const float>{lanes.data, panel}, c);
  }
  // c[column][lane] += sum over rows of weights[row][lane] * values[row][column], likewise. Here
  // and below a weight of exactly 0 contributes nothing, even to an infinite value or NaN.
  ROCFLASH_INLINE void weigh(const Values& values, std::int64_t count, Panel<const float> weights,
                             Panel<float> c, bool /*of_gradients*/ = false) {
    gemm<vectors, Into::add, sums>(values.columns, count, {values.data, 1, values.stride}, weights,
                                   c);
    if (values.finite) return;
    const std::int64_t stride = padded(values.columns);
    load_rows(spare_, stride, values.origin.block(count));
    add_nonfinite<vectors, Weights::right>(values.columns, count, {spare_, 1, stride}, weights, c);
  }
  // The same with a row of c for each of so few lanes: c[lane][column]
  ROCFLASH_INLINE void weigh_in_rows(const Values& values, std::int64_t count,
                                     Panel<const float> weights, std::int64_t lanes,
                                     Panel<float> c) {
    const Strided by{weights.data, 1, weights.stride};
    add_rows(lanes, count, by, {values.data, values.stride}, values.columns, c);
    if (!values.finite) add_nonfinite_rows(lanes, by, values.origin.block(count), spare_, c);
  }
  // c[row][column] += sum over lanes of weights[row][lane] * values[lane][column]
  ROCFLASH_INLINE void spread(Panel<const float> weights, std::int64_t count, Range lanes,
                              const InColumns& values, const RowBlock& block, Panel<float> c) {
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
using InShortRuns = InFloat<vectors, Sums::in_runs>;
template <int vectors>
using InLongRuns = InFloat<vectors, Sums::whole>;

// Calls body<Products<vectors>>. Few rows take a narrower panel, so that single queries do not pay
// for 64 lanes.
template <template <int> class Products, class Body>
ROCFLASH_INLINE void in_panels(std::int64_t rows, Body body) {
  if (rows <= width) return body.template operator()<Products<1>>();
  if constexpr (most_vectors == 4) {
    if (rows > 2 * width) return body.template operator()<Products<4>>();
  }
  body.template operator()<Products<2>>();
}
template <class Body>
ROCFLASH_INLINE void in_float_panels(std::int64_t rows, DType q, Body body) {
  q == DType::f32 ? in_panels<InShortRuns>(rows, body) : in_panels<InLongRuns>(rows, body);
}

}  // namespace rocflash::cpu::ROCFLASH_ISA
