// Preprocess and postprocess on NVIDIA GPUs. Each warp has 16 queries.
//
//   preprocess    delta = rowsum(dO·O), with the same matrix instruction and order as dP = dO·Vᵀ:
//                 for a query with all its weight on one key both have the same bits, and dS is
//                 exactly 0. It also clears the dQ accumulator and Hopper's counters
//                 (sm90_pdl.hpp).
//   postprocess   converts the f32 dQ accumulator to dQ, and recomputes non-finite rows.
#pragma once

#include "arch/arch.hpp"
#include "attention/rows.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "backward/dq_accumulator.hpp"
#include "backward/dq_ordered.hpp"
#include "backward/exact_recompute.hpp"
#include "backward/row_statistics.hpp"
#include "table/backward.hpp"
#include "table/features.hpp"
#include "tile/quads.hpp"
#include "tile/sm80.hpp"

namespace rocflash::kernel {

// 32-bit words of a row, of one or two elements; 0 past its columns.
template <DType dtype>
class RowWords {
 public:
  static constexpr int word_elements = 4 / element_bytes<dtype>;

  RowWords(const Rows& rows, std::int64_t batch, std::int64_t row, std::int64_t head)
      : row_(row_address<dtype>(rows, batch, row, head)), columns_(rows.columns) {}

  bool is_aligned() const { return reinterpret_cast<std::uintptr_t>(row_) % 4 == 0; }
  bool has_chunks() const { return reinterpret_cast<std::uintptr_t>(row_) % 16 == 0; }
  // 16 bytes of a 16-byte aligned row, in bounds.
  Words4 chunk(int number) const {
    return arch::load(reinterpret_cast<const Words4*>(row_) + number);
  }
  Words4 chunk_streaming(int number) const { return arch::load_streaming(row_ + 16 * number); }
  // One word of an aligned row, in bounds.
  std::uint32_t aligned_word(int word) const {
    return arch::load(reinterpret_cast<const std::uint32_t*>(row_) + word);
  }
  std::uint32_t word_at(int word) const {
    if constexpr (word_elements == 1) return word < columns_ ? aligned_word(word) : 0;
    return half(2 * word) | static_cast<std::uint32_t>(half(2 * word + 1)) << 16;
  }

 private:
  std::uint16_t half(int column) const {
    return column < columns_ ? arch::load(reinterpret_cast<const std::uint16_t*>(row_) + column)
                             : std::uint16_t{0};
  }
  const std::byte* row_;
  int columns_;
};

// Sixteen rows in global memory as an operand. A lane has two of them; a step takes eight words of
// each. `aligned`: rows are aligned and their length is a multiple of the step. f32 elements are
// multiplied by the `factor` of their row.
template <DType dtype>
struct GlobalRows {
  RowWords<dtype> row[2];
  float factor[2] = {1, 1};
  bool aligned = false;

  std::uint32_t at(int of, int word) const {
    const std::uint32_t bits = aligned ? row[of].aligned_word(word) : row[of].word_at(word);
    if constexpr (dtype != DType::f32) return bits;
    return __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, bits) * factor[of]);
  }
};
template <DType dtype>
struct GlobalRowsA : GlobalRows<dtype> {
  Words4 fragment(int, int step) const {
    const int word = 8 * step + arch::lane() % 4;
    return {this->at(0, word), this->at(1, word), this->at(0, word + 4), this->at(1, word + 4)};
  }
};
template <DType dtype>
struct GlobalRowsB : GlobalRows<dtype> {
  Words4 fragment(int, int step) const {
    const int word = 8 * step + arch::lane() % 4;
    return {this->at(0, word), this->at(0, word + 4), this->at(1, word), this->at(1, word + 4)};
  }
};

// Operands of 64 columns from 16-byte loads that are in flight together: lane n of a quad loads
// chunk n of 32 columns, and the quad transposes the words. Rows must be 16-byte aligned.
template <DType dtype>
class ChunkedRows {
 public:
  static constexpr int columns = 64;

  void load(const GlobalRowsA<dtype>& dout, const GlobalRowsB<dtype>& out, int first) {
    ROCFLASH_UNROLL
    for (int n = 0; n < 2; ++n) {
      ROCFLASH_UNROLL
      for (int of = 0; of < 2; ++of) {
        const int number = first / 8 + 4 * n + arch::lane() % 4;
        a_[n][of] = dout.row[of].chunk(number);
        b_[n][of] = out.row[of].chunk_streaming(number);
      }
    }
  }
  template <class Tile>
  void add_to(Tile& products) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < 2; ++n) {
      const Words4 a = transpose_in_quad(a_[n][0]), b = transpose_in_quad(a_[n][1]),
                   c = transpose_in_quad(b_[n][0]), d = transpose_in_quad(b_[n][1]);
      add_steps(products, Step{{a.x, b.x, a.y, b.y}}, Step{{c.x, c.y, d.x, d.y}}, 0);
      add_steps(products, Step{{a.z, b.z, a.w, b.w}}, Step{{c.z, c.w, d.z, d.w}}, 0);
    }
  }

 private:
  struct Step {
    Words4 words;
    Words4 fragment(int, int) const { return words; }
  };
  Words4 a_[2][2], b_[2][2];  // of 32 columns, of a lane's two rows
};

// Clears the dQ accumulator of 16 queries, if there is one.
inline void clear_dq_accumulator(const BackwardArguments& a, const SequenceView& sequence,
                                 std::int64_t head, std::int32_t begin) {
  if (!a.dq_accum) return;
  const DqAccumulator sums(a, sequence, head);
  float* to = sums.block(begin, 0) + 3 * arch::lane();
  for (int strip = 0; strip < sums.strips(); ++strip)
    arch::store(reinterpret_cast<Words4*>(to + strip * DqAccumulator::block_floats), Words4{});
  if (DqOrder::is_ordered(a) && arch::lane() == 0)
    arch::store(DqOrder(a, sequence).counter(head, begin), 0u);
}

// The softmax of rows with an unresolved lse, from scores that mma.sync computes as in the main
// kernels: S = Q·Kᵀ for the warp's 16 queries from `begin` on, with operands from global memory.
// Such rows come with an additive mask: padded queries have finfo.min for all keys. Bit i of the
// result says whether the softmax of row Scores::row(lane, i) was stored.
template <KernelSpec spec>
std::uint32_t store_masked_row_softmax(const BackwardArguments& a, const SequenceView& sequence,
                                       std::int64_t head, std::int32_t begin) {
  using Mma = arch::Mma<spec.dtype>;
  using Unit = typename ScoreDomainOf<spec.dtype, true>::Type;
  using Scores = WarpTile<Mma, 16, 16>;
  constexpr int rows = Scores::lane_rows, count = Scores::lane_columns;
  static_assert(rows == 2);
  const Problem& p = a.problem;
  const int lane = arch::lane();
  QueryView query[rows];
  bool unresolved[rows];
  ROCFLASH_UNROLL
  for (int i = 0; i < rows; ++i) {
    query[i] = QueryView(p.visibility, sequence, begin + Scores::row(lane, i));
    unresolved[i] = query[i].index < sequence.sq &&
                    is_unresolved(arch::load(
                        &a.tensors.lse.at(sequence.batch, head, sequence.q_row + query[i].index)));
  }
  if (!has_score_modifiers(p) || !arch::any(unresolved[0] || unresolved[1])) return 0;

  const ScoreModGradient score_mod(p, sequence, head);
  const auto row_of = [&](const Rows& tensor, std::int64_t first, std::int32_t row,
                          std::int32_t end, std::int64_t of_head) {
    return RowWords<spec.dtype>(tensor, sequence.batch, first + smaller(row, end - 1), of_head);
  };
  const std::int32_t row = begin + lane / 4;
  GlobalRowsA<spec.dtype> q{{{row_of(p.q, sequence.q_row, row, sequence.sq, head),
                              row_of(p.q, sequence.q_row, row + 8, sequence.sq, head)}}};
  const Span visible = VisibleKeys(p.visibility, sequence, begin, Scores::rows).by_any;
  BasicOnlineSoftmax<Unit> softmax[rows];  // of the lane's keys
  float large_product[rows] = {};          // 1 once |q·k · scale| is not below the limit
  for (std::int32_t first = visible.begin; first < visible.end; first += Scores::columns) {
    const std::int32_t key_row = first + lane / 4;
    const std::int64_t kv_head = p.kv_head(head);
    GlobalRowsB<spec.dtype> k{{{row_of(p.k, sequence.k_row, key_row, sequence.sk, kv_head),
                                row_of(p.k, sequence.k_row, key_row + 8, sequence.sk, kv_head)}}};
    constexpr int depth = Mma::depth * Mma::together;
    const bool aligned = p.head_dim % depth == 0 && q.row[0].is_aligned() &&
                         q.row[1].is_aligned() && k.row[0].is_aligned() && k.row[1].is_aligned();
    q.aligned = k.aligned = !arch::any(!aligned);
    Scores s = {};
    for (int column = 0; column < p.head_dim; column += depth)
      add_steps(s, q, k, column / Mma::depth);
    const auto key = [&](int n) { return first + Scores::lane_column(lane) + Scores::column(n); };
    for_each<rows>([&](int i) {
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n)
        if (query[i].attends_to(key(n)) &&
            !(__builtin_fabsf(s.at(i, n) * p.scale) < core::unresolved_lse))
          large_product[i] = 1;
      score_mod.template apply_scaled<count, Unit>(
          OneQuery{query[i].index}, key, [&](int n) -> float& { return s.at(i, n); }, p.scale);
      float largest = -infinity;
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n) {
        s.at(i, n) = query[i].attends_to(key(n)) ? s.at(i, n) : -infinity;
        largest = __builtin_fmaxf(largest, s.at(i, n));
      }
      softmax[i].rescale(largest);
      ROCFLASH_UNROLL
      for (int n = 0; n < count; ++n) softmax[i].sum += Unit::exp(s.at(i, n) - softmax[i].base());
    });
  }

  const float sink = p.sinks ? sink_of(p, head) : -infinity;
  std::uint32_t stored = 0;
  for_each<rows>([&](int i) {
    // The four lanes of a row have different keys.
    softmax[i].rescale(row_maximum(softmax[i].row_max));
    softmax[i].sum = row_sum(softmax[i].sum);
    if (sink != -infinity) {
      softmax[i].rescale(sink);
      softmax[i].sum += Unit::exp(sink - softmax[i].base());
    }
    if (row_maximum(large_product[i]) != 0) return;
    stored |= 1u << i;
    if (unresolved[i])
      RowSoftmax::store(a, sequence.batch, head, sequence.q_row + query[i].index, softmax[i].base(),
                        normalize<Unit>(softmax[i].row_max, softmax[i].sum, false, 0), true);
  });
  return stored;
}

template <KernelSpec spec>
void backward_preprocess(const BackwardArguments& a) {
  using Mma = arch::Mma<spec.dtype>;
  constexpr int owned = backward_tile(this_family, spec).owned;
  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t begin = item.block * owned + arch::wave() * Mma::rows;
  // Once per (batch, KV head) slice, also for a sequence without queries.
  if (a.bh_counters && begin == 0 && item.head % p.gqa_group() == 0)
    arch::store(a.bh_counters + item.batch * p.kv_heads + p.kv_head(item.head), 0u);
  if (begin >= sequence.sq) return;

  const int lane = arch::lane();
  // Rows lane / 4 and lane / 4 + 8 of both tensors. Out-of-bounds rows are replaced by the last
  // one, whose delta they do not affect.
  const std::int32_t query = begin + lane / 4;
  const auto rows_of = [&](const Rows& rows, int further) {
    const auto row = smaller(query + further, sequence.sq - 1);
    return RowWords<spec.dtype>(rows, sequence.batch, sequence.q_row + row, item.head);
  };
  const float factor = p.dropout.on() ? 1 / p.dropout.scale() : 1.0f;
  GlobalRowsA<spec.dtype> dout{{{rows_of(t.dout, 0), rows_of(t.dout, 8)}}};
  GlobalRowsB<spec.dtype> out{{{rows_of(t.out, 0), rows_of(t.out, 8)}, {factor, factor}}};
  std::uint32_t softmax_stored = 0;
  if constexpr (spec.dtype == DType::f32) {
    softmax_stored = store_masked_row_softmax<spec>(a, sequence, item.head, begin);
    // Dividing the dropout scale out of O does not give the exact value of a query's only key: use
    // V itself.
    _Pragma("clang loop unroll(disable)") for (int n = 0; n < 2 && p.dropout.on(); ++n) {
      const auto row = static_cast<std::int32_t>(smaller(query + 8 * n, sequence.sq - 1));
      if ((softmax_stored >> n & 1) == 0)
        store_row_softmax(a, ExactScores<spec.dtype>{p, sequence, item.head, 0}, row);
      const std::int32_t key = only_key<spec.dtype>(a, sequence, item.head, row).key;
      if (key < 0) continue;
      const RowWords<spec.dtype> value(p.v, sequence.batch, sequence.k_row + key,
                                       p.kv_head(item.head));
      if (n == 0) {
        out.row[0] = value;
        out.factor[0] = 1;
      } else {
        out.row[1] = value;
        out.factor[1] = 1;
      }
    }
  }
  WarpTile<Mma, 16, 16> products = {};
  constexpr int depth = Mma::depth * Mma::together;
  const bool aligned = p.value_dim % depth == 0 && dout.row[0].is_aligned() &&
                       dout.row[1].is_aligned() && out.row[0].is_aligned() &&
                       out.row[1].is_aligned();
  const auto steps = [&](int first) { add_steps(products, dout, out, first / Mma::depth); };
  int first = 0;
  if constexpr (spec.dtype != DType::f32) {
    using Chunks = ChunkedRows<spec.dtype>;
    const bool chunks = dout.row[0].has_chunks() && dout.row[1].has_chunks() &&
                        out.row[0].has_chunks() && out.row[1].has_chunks();
    if (p.value_dim >= Chunks::columns && !arch::any(!chunks)) {
      Chunks some;
      some.load(dout, out, 0);
      clear_dq_accumulator(a, sequence, item.head, begin);  // overlaps with the loads in flight
      some.add_to(products);
      for (first = Chunks::columns; first + Chunks::columns <= p.value_dim;
           first += Chunks::columns) {
        some.load(dout, out, first);
        some.add_to(products);
      }
    }
  }
  if (first == 0) clear_dq_accumulator(a, sequence, item.head, begin);
  dout.aligned = out.aligned = !arch::any(!aligned);
  for (; first < p.value_dim; first += depth) steps(first);
  if constexpr (spec.dtype != DType::f32)
    softmax_stored = store_masked_row_softmax<spec>(a, sequence, item.head, begin);
  // The diagonal: of row lane / 4, column 2 (lane % 4) + r is the row's own in one lane of the
  // quad.
  if (lane / 8 != lane % 4) return;
  const bool odd = lane / 4 % 2 != 0;
  const auto store = [&](std::int32_t of, float x, bool has_row_softmax) {
    if (of >= sequence.sq) return;
    if constexpr (spec.dtype == DType::f32) {
      // The tf32 parts of a non-finite element are NaN, so an infinite sum becomes NaN: sum in f32.
      const std::int64_t row = sequence.q_row + of;
      const auto row_of = [&](const Rows& rows) {
        return row_address<spec.dtype>(rows, sequence.batch, row, item.head);
      };
      if (x - x != 0) {
        x = 0;
        for (int column = 0; column < p.value_dim; ++column)
          x = __builtin_fmaf(read<spec.dtype>(row_of(t.dout), column),
                             read<spec.dtype>(row_of(t.out), column) * factor, x);
      }
      x = subtract_dlse(a, sequence.batch, item.head, row, x);
      arch::store(&a.delta.at(sequence.batch, item.head, row), statistic(x, 1));
      if (!has_row_softmax)
        store_row_softmax(a, ExactScores<spec.dtype>{p, sequence, item.head, 0}, of);
    } else {
      store_delta<spec.dtype>(a, sequence, item.head, of, statistic(x, factor), has_row_softmax);
    }
  };
  // By value: a choice between references would put the accumulator into local memory.
  const auto of_own = [&](float even, float uneven) { return odd ? uneven : even; };
  store(query, of_own(products.at(0, 0), products.at(0, 1)), (softmax_stored & 1) != 0);
  store(query + 8, of_own(products.at(1, 2), products.at(1, 3)), (softmax_stored & 2) != 0);
}

// Whether all rows are 16-byte aligned and their length is a multiple of 16 bytes.
template <DType dtype>
bool has_whole_chunks(const Rows& rows) {
  const std::int64_t strides =
      rows.batch_stride | rows.row_stride | rows.head_stride | rows.columns;
  return (reinterpret_cast<std::uintptr_t>(rows.data) |
          static_cast<std::uintptr_t>(strides * element_bytes<dtype>)) %
             16 ==
         0;
}

// Converts the warp's 16 queries from `begin` on.
template <KernelSpec spec>
void convert_dq_rows(const BackwardArguments& a, const SequenceView& sequence, const WorkTile& item,
                     std::int32_t begin) {
  constexpr int strips = 8;  // at a time
  using Block = RowBlock<spec.dtype, Variant::generic>;
  const Problem& p = a.problem;
  const Rows& dq = a.tensors.dq;
  const int lane = arch::lane();
  const DqAccumulator sums(a, sequence, item.head);
  const float* from = sums.block(begin, 0);
  const float factor = p.scale * p.dropout.scale();
  const Block to(dq, 0, sequence.batch, sequence.q_row + begin, sequence.sq - begin, item.head);
  const bool whole_chunks = has_whole_chunks<spec.dtype>(dq);
  float probe[2] = {};  // NaN once a sum of the row is not finite
  for (int strip = 0; strip < sums.strips(); strip += strips) {
    [[maybe_unused]] Words4 words[strips / 4][2];
    Float4 values[strips];
    ROCFLASH_UNROLL
    for (int n = 0; n < strips; ++n) {
      if (a.dq_accum_layout) {
        values[n] = __builtin_bit_cast(
            Float4,
            arch::load_streaming(from + (strip + n) * DqAccumulator::block_floats + 3 * lane));
      } else {
        ROCFLASH_UNROLL
        for (int r = 0; r < 4; ++r)
          values[n][r] =
              arch::load(from + (strip + n) * DqAccumulator::block_floats + r * arch::wave_size);
      }
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < strips; ++n) {
      const Float4 sum = values[n];
      ROCFLASH_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float x = sum[2 * half], y = sum[2 * half + 1];
        probe[half] = __builtin_fmaf(y, 0.0f, __builtin_fmaf(x, 0.0f, probe[half]));
        if constexpr (spec.dtype == DType::f32) {
          to.store4(__builtin_bit_cast(Words2, (Float2{x * factor, y * factor})),
                    {lane / 4 + 8 * half, DqAccumulator::columns * (strip + n) + 2 * (lane % 4)});
        } else {
          words[n / 4][half][n % 4] = arch::cvt_pack<spec.dtype>(x * factor, y * factor);
        }
      }
    }
    if constexpr (spec.dtype == DType::f32) continue;
    ROCFLASH_UNROLL
    for (int n = 0; n < strips / 2; ++n) {
      const int half = n % 2;
      const Words4 chunk = transpose_in_quad(words[n / 2][half]);
      const int row = lane / 4 + 8 * half,
                column = DqAccumulator::columns * (strip + n / 2 * 4 + lane % 4);
      if (whole_chunks) {
        if (begin + row < sequence.sq && column < dq.columns)
          arch::store(reinterpret_cast<Words4*>(
                          row_address<spec.dtype>(dq, sequence.batch, sequence.q_row + begin + row,
                                                  item.head) +
                          element_bytes<spec.dtype> * column),
                      chunk);
      } else {
        to.store4(chunk.xy, {row, column});
        to.store4(chunk.zw, {row, column + 4});
      }
    }
  }

  arch::syncwarp();
  // Bit 4 r + half: row r of that half is to be recomputed.
  std::uint32_t non_finite = 0;
  ROCFLASH_UNROLL
  for (int half = 0; half < 2; ++half) {
    std::uint32_t lanes = arch::ballot(probe[half] != 0 || products_overflow(p));
    lanes |= lanes >> 1;
    lanes |= lanes >> 2;
    non_finite |= (lanes & 0x11111111u) << half;
  }
  while (non_finite != 0) {
    const int bit = __builtin_ctz(non_finite);
    non_finite &= non_finite - 1;
    const std::int32_t query = begin + bit / 4 + 8 * (bit % 4);
    if (query < sequence.sq)
      exact_dq<spec.dtype, !OfSpec<spec>::generic>(a, sequence, item.head, query, factor);
  }
}

template <KernelSpec spec>
void backward_postprocess(const BackwardArguments& a) {
  constexpr int owned = backward_tile(this_family, spec).owned;
  const WorkTile item(a.work, static_cast<std::int32_t>(a.problem.heads), arch::workgroup_id());
  const SequenceView sequence(a.problem, item.batch);
  const std::int32_t begin = item.block * owned + arch::wave() * DqAccumulator::rows;
  if (begin < sequence.sq) convert_dq_rows<spec>(a, sequence, item, begin);
}

}  // namespace rocflash::kernel
