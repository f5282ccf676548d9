// What backward does per query on NVIDIA GPUs, before and after the kernels that compute gradients. Each
// warp handles 16 queries.
//
//   delta   dout·out, by the same matrix instruction as dout·v in the same order: where all the weight of a
//           query is on one key, both have the same bits and the gradient of the score is exactly 0. It also
//           clears the sums of dq, if there are any, and Hopper's counters (planes.hpp).
//   round   dq from its f32 sums. Rows that are not finite are computed again.
#pragma once

#include "arch/arch.hpp"
#include "attention/rows.hpp"
#include "attention/sequence.hpp"
#include "attention/work.hpp"
#include "backward/dq_sums.hpp"
#include "backward/exact.hpp"
#include "backward/statistic.hpp"
#include "backward/turns.hpp"
#include "table/backward.hpp"
#include "tile/quads.hpp"
#include "tile/sm80.hpp"

namespace rocflash::kernel {

// Words of a row, of one number or two; 0 beyond its columns.
template <DType dtype>
class RowWords {
 public:
  static constexpr int numbers = 4 / number_bytes<dtype>;

  RowWords(const Rows& rows, std::int64_t batch, std::int64_t row, std::int64_t head)
      : row_(row_address<dtype>(rows, batch, row, head)), columns_(rows.columns) {}

  bool is_aligned() const { return reinterpret_cast<std::uintptr_t>(row_) % 4 == 0; }
  bool has_chunks() const { return reinterpret_cast<std::uintptr_t>(row_) % 16 == 0; }
  // Sixteen bytes of a row that has chunks, inside it.
  Words4 chunk(int number) const {
    return arch::load(reinterpret_cast<const Words4*>(row_) + number);
  }
  Words4 chunk_once(int number) const { return arch::load_once(row_ + 16 * number); }
  // Of an aligned row, inside it.
  std::uint32_t whole(int word) const {
    return arch::load(reinterpret_cast<const std::uint32_t*>(row_) + word);
  }
  std::uint32_t any(int word) const {
    if constexpr (numbers == 1) return word < columns_ ? whole(word) : 0;
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

// Sixteen rows in global memory as operands, of which a lane has two: a step takes eight words of each. `whole`:
// rows are aligned and end with a step. Of f32, numbers of each row are multiplied with its `factor`.
template <DType dtype>
struct QueryRows {
  RowWords<dtype> row[2];
  float factor[2] = {1, 1};
  bool whole = false;

  std::uint32_t at(int of, int word) const {
    const std::uint32_t bits = whole ? row[of].whole(word) : row[of].any(word);
    if constexpr (dtype != DType::f32) return bits;
    return __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, bits) * factor[of]);
  }
};
template <DType dtype>
struct LeftQueries : QueryRows<dtype> {
  Words4 fragment(int, int step) const {
    const int word = 8 * step + arch::lane() % 4;
    return {this->at(0, word), this->at(1, word), this->at(0, word + 4), this->at(1, word + 4)};
  }
};
template <DType dtype>
struct RightQueries : QueryRows<dtype> {
  Words4 fragment(int, int step) const {
    const int word = 8 * step + arch::lane() % 4;
    return {this->at(0, word), this->at(0, word + 4), this->at(1, word), this->at(1, word + 4)};
  }
};

// Operands of the steps of 64 columns, by loads of 16 bytes that are on their way together: lane n of four has chunk n
// of 32 columns, and all four exchange words. Rows have whole chunks.
template <DType dtype>
class ChunkSteps {
 public:
  static constexpr int columns = 64;

  void load(const LeftQueries<dtype>& dout, const RightQueries<dtype>& out, int first) {
    ROCFLASH_UNROLL
    for (int n = 0; n < 2; ++n) {
      ROCFLASH_UNROLL
      for (int of = 0; of < 2; ++of) {
        const int number = first / 8 + 4 * n + arch::lane() % 4;
        left_[n][of] = dout.row[of].chunk(number);
        right_[n][of] = out.row[of].chunk_once(number);
      }
    }
  }
  template <class Tile>
  void add_to(Tile& products) const {
    ROCFLASH_UNROLL
    for (int n = 0; n < 2; ++n) {
      const Words4 a = turned_in_quad(left_[n][0]), b = turned_in_quad(left_[n][1]),
                   c = turned_in_quad(right_[n][0]), d = turned_in_quad(right_[n][1]);
      add_steps(products, Step{{a.x, b.x, a.y, b.y}}, Step{{c.x, c.y, d.x, d.y}}, 0);
      add_steps(products, Step{{a.z, b.z, a.w, b.w}}, Step{{c.z, c.w, d.z, d.w}}, 0);
    }
  }

 private:
  struct Step {
    Words4 words;
    Words4 fragment(int, int) const { return words; }
  };
  Words4 left_[2][2], right_[2][2];  // of 32 columns, of a lane's two rows
};

// The sums of dq of 16 queries become 0, if there are any.
inline void clear_sums(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
                       std::int32_t begin) {
  if (!a.dq_sums) return;
  const DqSums sums(a, sequence, head);
  float* to = sums.block(begin, 0) + 3 * arch::lane();
  for (int strip = 0; strip < sums.strips(); ++strip)
    arch::store(reinterpret_cast<Words4*>(to + strip * DqSums::block_floats), Words4{});
  if (DqTurns::in_order(a) && arch::lane() == 0)
    arch::store(DqTurns(a, sequence).counter(head, begin), 0u);
}

template <KernelSpec spec>
void backward_delta(const BackwardArguments& a) {
  using Mma = arch::Mma<spec.dtype>;
  constexpr int owned = backward_tile(this_family, spec).owned;
  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t begin = item.block * owned + arch::wave() * Mma::rows;
  // Once for each plane of keys, also of a sequence without queries.
  if (a.planes && begin == 0 && item.head % p.group() == 0)
    arch::store(a.planes + item.batch * p.kv_heads + p.kv_head(item.head), 0u);
  if (begin >= sequence.sq) return;

  const int lane = arch::lane();
  // Row lane / 4 of the warp's and the one eight further on, of both tensors. Rows that are not in use are
  // replaced by the last one: each row has a delta of its own.
  const std::int32_t query = begin + lane / 4;
  const auto rows_of = [&](const Rows& rows, int further) {
    const auto row = smaller(query + further, sequence.sq - 1);
    return RowWords<spec.dtype>(rows, sequence.batch, sequence.q_row + row, item.head);
  };
  const float factor = p.dropout.on() ? 1 / p.dropout.scale() : 1.0f;
  LeftQueries<spec.dtype> dout{{{rows_of(t.dout, 0), rows_of(t.dout, 8)}}};
  RightQueries<spec.dtype> out{{{rows_of(t.out, 0), rows_of(t.out, 8)}, {factor, factor}}};
  if constexpr (spec.dtype == DType::f32) {
    // out with dropout's scale taken away again is not quite the value of a query's only key; that is at hand.
    _Pragma("clang loop unroll(disable)") for (int n = 0; n < 2 && p.dropout.on(); ++n) {
      const auto row = static_cast<std::int32_t>(smaller(query + 8 * n, sequence.sq - 1));
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
    using Chunks = ChunkSteps<spec.dtype>;
    const bool chunks = dout.row[0].has_chunks() && dout.row[1].has_chunks() &&
                        out.row[0].has_chunks() && out.row[1].has_chunks();
    if (p.value_dim >= Chunks::columns && !arch::any(!chunks)) {
      Chunks some;
      some.load(dout, out, 0);
      clear_sums(a, sequence, item.head, begin);  // while they are on their way
      some.add_to(products);
      for (first = Chunks::columns; first + Chunks::columns <= p.value_dim;
           first += Chunks::columns) {
        some.load(dout, out, first);
        some.add_to(products);
      }
    }
  }
  if (first == 0) clear_sums(a, sequence, item.head, begin);
  dout.whole = out.whole = !arch::any(!aligned);
  for (; first < p.value_dim; first += depth) steps(first);
  // The diagonal: of rows lane / 4, column 2 (lane % 4) + r is the row's own in one lane of four.
  if (lane / 8 != lane % 4) return;
  const bool odd = lane / 4 % 2 != 0;
  const auto store = [&](std::int32_t of, float x) {
    if (of >= sequence.sq) return;
    if constexpr (spec.dtype == DType::f32) {
      // The parts of a number that is not finite are none, and make an infinite sum none either.
      const std::int64_t row = sequence.q_row + of;
      const auto numbers = [&](const Rows& rows) {
        return row_address<spec.dtype>(rows, sequence.batch, row, item.head);
      };
      if (x - x != 0) {
        x = 0;
        for (int column = 0; column < p.value_dim; ++column)
          x = __builtin_fmaf(read<spec.dtype>(numbers(t.dout), column),
                             read<spec.dtype>(numbers(t.out), column) * factor, x);
      }
      arch::store(&a.delta.at(sequence.batch, item.head, row), statistic(x, 1));
    } else {
      store_delta<spec.dtype>(a, sequence, item.head, of, statistic(x, factor));
    }
  };
  // By value: a choice between two references would put the tile into memory.
  const auto of_own = [&](float even, float uneven) { return odd ? uneven : even; };
  store(query, of_own(products.at(0, 0), products.at(0, 1)));
  store(query + 8, of_own(products.at(1, 2), products.at(1, 3)));
}

// Whether rows start and end on 16 bytes.
template <DType dtype>
bool has_whole_chunks(const Rows& rows) {
  const std::int64_t strides =
      rows.batch_stride | rows.row_stride | rows.head_stride | rows.columns;
  return (reinterpret_cast<std::uintptr_t>(rows.data) |
          static_cast<std::uintptr_t>(strides * number_bytes<dtype>)) %
             16 ==
         0;
}

// Of the warp's 16 queries from `begin` on.
template <KernelSpec spec>
void round_rows(const BackwardArguments& a, const SequenceView& sequence, const WorkItem& item,
                std::int32_t begin) {
  constexpr int strips = 8;  // at a time
  using Block = RowBlock<spec.dtype, Variant::full>;
  const Problem& p = a.problem;
  const Rows& dq = a.tensors.dq;
  const int lane = arch::lane();
  const DqSums sums(a, sequence, item.head);
  const float* from = sums.block(begin, 0);
  const float factor = p.scale * p.dropout.scale();
  const Block to(dq, 0, sequence.batch, sequence.q_row + begin, sequence.sq - begin, item.head);
  const bool whole_chunks = has_whole_chunks<spec.dtype>(dq);
  float probe[2] = {};  // NaN once a sum of the row is not finite
  for (int strip = 0; strip < sums.strips(); strip += strips) {
    [[maybe_unused]] Words4 words[strips / 4][2];
    Float4 numbers[strips];
    ROCFLASH_UNROLL
    for (int n = 0; n < strips; ++n) {
      if (a.sums_by_lane) {
        numbers[n] = __builtin_bit_cast(
            Float4, arch::load_once(from + (strip + n) * DqSums::block_floats + 3 * lane));
      } else {
        ROCFLASH_UNROLL
        for (int r = 0; r < 4; ++r)
          numbers[n][r] =
              arch::load(from + (strip + n) * DqSums::block_floats + r * arch::wave_size);
      }
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < strips; ++n) {
      const Float4 sum = numbers[n];
      ROCFLASH_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float x = sum[2 * half], y = sum[2 * half + 1];
        probe[half] = __builtin_fmaf(y, 0.0f, __builtin_fmaf(x, 0.0f, probe[half]));
        if constexpr (spec.dtype == DType::f32) {
          to.store4(__builtin_bit_cast(Words2, (Float2{x * factor, y * factor})),
                    {lane / 4 + 8 * half, DqSums::columns * (strip + n) + 2 * (lane % 4)});
        } else {
          words[n / 4][half][n % 4] = arch::narrow_two<spec.dtype>(x * factor, y * factor);
        }
      }
    }
    if constexpr (spec.dtype == DType::f32) continue;
    ROCFLASH_UNROLL
    for (int n = 0; n < strips / 2; ++n) {
      const int half = n % 2;
      const Words4 chunk = turned_in_quad(words[n / 2][half]);
      const int row = lane / 4 + 8 * half,
                column = DqSums::columns * (strip + n / 2 * 4 + lane % 4);
      if (whole_chunks) {
        if (begin + row < sequence.sq && column < dq.columns)
          arch::store(reinterpret_cast<Words4*>(
                          row_address<spec.dtype>(dq, sequence.batch, sequence.q_row + begin + row,
                                                  item.head) +
                          number_bytes<spec.dtype> * column),
                      chunk);
      } else {
        to.store4(chunk.xy, {row, column});
        to.store4(chunk.zw, {row, column + 4});
      }
    }
  }

  arch::wave_barrier();
  // Bit 4 r + half: row r of that half is to be computed again.
  std::uint32_t broken = 0;
  ROCFLASH_UNROLL
  for (int half = 0; half < 2; ++half) {
    std::uint32_t lanes = arch::ballot(probe[half] != 0 || products_overflow(p));
    lanes |= lanes >> 1;
    lanes |= lanes >> 2;
    broken |= (lanes & 0x11111111u) << half;
  }
  while (broken != 0) {
    const int bit = __builtin_ctz(broken);
    broken &= broken - 1;
    const std::int32_t query = begin + bit / 4 + 8 * (bit % 4);
    if (query < sequence.sq)
      exact_dq<spec.dtype, spec.operation == Operation::backward_round_early>(
          a, sequence, item.head, query, factor);
  }
}

template <KernelSpec spec>
void backward_round(const BackwardArguments& a) {
  constexpr int owned = backward_tile(this_family, spec).owned;
  const WorkItem item(a.work, static_cast<std::int32_t>(a.problem.heads), arch::group());
  const SequenceView sequence(a.problem, item.batch);
  const std::int32_t begin = item.block * owned + arch::wave() * DqSums::rows;
  if (begin < sequence.sq) round_rows<spec>(a, sequence, item, begin);
}

}  // namespace rocflash::kernel
