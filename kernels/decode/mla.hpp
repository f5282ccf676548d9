// MLA decode (multi-head latent attention) over a latent KV cache: V is the first columns of K
// (d 576, dv 512), and Q is the absorbed query. Shared by the schedules without warp
// specialization.
//
// Each cached row is read once, by four waves that split its columns: a wave has `own_values` of
// the columns of V and `own_rest` of the RoPE columns, which are in K only. It multiplies Q with
// its columns; the sum over the four waves is S. Each wave then has all of S, and multiplies P with
// its columns of V.
//
//   columns   0–127 | 128–255 | 256–383 | 384–511 | 512–527 | 528–543 | 544–559 | 560–575
//   wave      0     | 1       | 2       | 3       | 0       | 1       | 2       | 3
#pragma once

#include "attention/elements.hpp"
#include "attention/gqa_packing.hpp"
#include "table/decode.hpp"

namespace rocflash::kernel {

inline constexpr int own_values = mla_values / mla_waves, own_rest = mla_rest / mla_waves,
                     own_columns = own_values + own_rest;

// Tensor column of a wave's column `own`.
inline int mla_column(int wave, int own) {
  return own < own_values ? wave * own_values + own
                          : mla_values + wave * own_rest + own - own_values;
}

// Destination of a workgroup's results: the partial results of its split, or the outputs if there
// is one split (`direct`).
template <DType dtype>
struct MlaResults {
  const DecodeArguments& a;
  const SequenceView& sequence;
  std::int32_t split;

  void store_lse(const PackedRow& row, SplitLse x) const {
    if (!a.direct) {
      SplitRows{a, sequence, split}.store_lse(row, x);
    } else if (a.outputs.lse) {
      arch::store(&a.outputs.lse.at(sequence.batch, row.head, sequence.q_row + row.query), x.lse);
    }
  }
  void store(const PackedRow& row, int column, float x) const {
    if (!a.direct) {
      SplitRows{a, sequence, split}.store(row, column, x);
    } else if (column < a.outputs.out.columns) {
      store_element(output(row), dtype, column, x);
    }
  }
  // Adjacent columns.
  template <class Vector, int count = sizeof(Vector) / 4>
  void store(const PackedRow& row, int column, Vector x) const {
    if (!a.direct) return SplitRows{a, sequence, split}.store(row, column, x);
    std::byte* to = output(row);
    ROCFLASH_UNROLL
    for (int e = 0; e < count; ++e)
      if (column + e < a.outputs.out.columns) store_element(to, dtype, column + e, x[e]);
  }

 private:
  std::byte* output(const PackedRow& row) const {
    return row_address<dtype>(a.outputs.out, sequence.batch, sequence.q_row + row.query, row.head);
  }
};

}  // namespace rocflash::kernel
