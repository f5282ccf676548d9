// Attention of few queries over rows that hold keys and values at once: the values are the first columns of the
// keys, as in models that cache one latent row per token (multi-head latent attention). What the schedules share.
//
// Each row is read once, by four waves that divide its columns: a wave has `own_values` of the columns that are
// keys and values, and `own_rest` of those that are keys alone. It multiplies queries with its columns; the
// sum over the four waves are the scores. Each wave then has all of them, and weighs its own columns with them.
//
//   columns   0 ... 127 | 128 ... 255 | 256 ... 383 | 384 ... 511 | 512-527 | 528-543 | 544-559 | 560-575
//   wave      0         | 1           | 2           | 3           | 0       | 1       | 2       | 3
#pragma once

#include "attention/numbers.hpp"
#include "attention/packed.hpp"
#include "table/decode.hpp"

namespace rocflash::kernel {

inline constexpr int own_values = latent_values / latent_waves,
                     own_rest = latent_rest / latent_waves, own_columns = own_values + own_rest;

// The column of the tensor that is column `own` of a wave.
inline int latent_column(int wave, int own) {
  return own < own_values ? wave * own_values + own
                          : latent_values + wave * own_rest + own - own_values;
}

// Where a workgroup's results go: to its part, or to the outputs where there is no other part.
template <DType dtype>
struct LatentResults {
  const DecodeArguments& a;
  const SequenceView& sequence;
  std::int32_t split;

  void store_lse(const PackedRow& row, float lse) const {
    if (!a.direct) {
      PartRows{a, sequence, split}.store_lse(row, lse);
    } else if (a.outputs.lse) {
      arch::store(&a.outputs.lse.at(sequence.batch, row.head, sequence.q_row + row.query), lse);
    }
  }
  void store(const PackedRow& row, int column, float x) const {
    if (!a.direct) {
      PartRows{a, sequence, split}.store(row, column, x);
    } else if (column < a.outputs.out.columns) {
      store_number(output(row), dtype, column, x);
    }
  }
  // Neighbouring columns.
  template <class Vector, int count = sizeof(Vector) / 4>
  void store(const PackedRow& row, int column, Vector x) const {
    if (!a.direct) return PartRows{a, sequence, split}.store(row, column, x);
    std::byte* to = output(row);
    ROCFLASH_UNROLL
    for (int e = 0; e < count; ++e)
      if (column + e < a.outputs.out.columns) store_number(to, dtype, column + e, x[e]);
  }

 private:
  std::byte* output(const PackedRow& row) const {
    return row_address<dtype>(a.outputs.out, sequence.batch, sequence.q_row + row.query, row.head);
  }
};

}  // namespace rocflash::kernel
