// Decode on AMD GPUs: attention of few queries, which reads the keys as fast as memory gives them. Each wave
// has a part of the keys to itself and writes a result of its own; combine/rows.hpp merges them. Waves never wait
// for each other.
//
//   registers   q, the scores of one tile, outputs, the next tile of k and v on its way
//   LDS         one tile of v, transposed, for each wave; of k too where operands are held twice
//
// Everything is computed transposed, as in forward/amd.hpp: scores = K·Qᵀ and out += Vᵀ·Pᵀ. Columns of the products
// are pairs of query and head (attention/packed.hpp).
#pragma once

#include "arch/arch.hpp"
#include "attention/epilogue.hpp"
#include "attention/exact.hpp"
#include "attention/packed.hpp"
#include "attention/rows.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "table/decode.hpp"
#include "tile/amd.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct DecodeTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr DecodeTile tile = decode_tile(this_family, spec);
  static constexpr int waves = tile.waves(arch::wave_size);

  using Mma = arch::Mma<dtype>;
  static_assert(tile.rows == Mma::columns && tile.keys == Mma::rows);
  // Where a lane's share of an operand is one chunk of a row, k goes from memory straight into it.
  static constexpr bool direct_keys =
      sizeof(typename Mma::Operand) == sizeof(Words4) && tile.stages > 0;

  using Keys = RowTile<bucket * number_bytes<dtype>, tile.keys>;
  using Values = Transposed<Mma, dtype, bucket, tile.keys>;
  using ValueOperand = typename Values::Operand;                       // Vᵀ
  using Queries = KeptLines<Mma, dtype, bucket, tile.shared_queries>;  // Qᵀ
  using Scores = Elements<Mma, tile.keys, tile.rows>;
  using Outputs = Accumulators<Mma, bucket, tile.rows>;  // of Oᵀ

  static constexpr int key_chunks = direct_keys ? 0 : Keys::chunks,
                       value_chunks = Values::Tile::chunks;
};

// A tile of k or v that a wave loads 16 bytes per lane at a time, and that goes to LDS as it is, in rounds.
template <class Tile, DType dtype, int columns, int rows>
struct StagedRows {
  static constexpr int row_chunks = columns / chunk_numbers<dtype>,
                       rounds = rows * row_chunks / arch::wave_size;
  static_assert(rounds * arch::wave_size == rows * row_chunks);
  static constexpr int rounds_together = rounds < 4 ? rounds : 4;
  Words4 words[rounds];

  template <class Block>
  void load(const Rows& source, const Block& block, int lane, int n) {
    words[n] =
        block.load8(Block::place(source, row(lane, n), chunk_numbers<dtype> * chunk(lane, n)));
  }
  void store(SharedWords4* tile, int lane, int n) const {
    tile[Tile::place(row(lane, n), chunk(lane, n))] = words[n];
  }

 private:
  static int row(int lane, int n) { return (lane + n * arch::wave_size) / row_chunks; }
  static int chunk(int lane, int n) { return (lane + n * arch::wave_size) % row_chunks; }
};

// The same for a tile that goes to LDS transposed: a lane takes chunks of four neighbouring positions
// of the order that the product wants (tile/order.hpp).
template <class Tile, class Layout, DType dtype, int columns, int rows>
struct StagedColumns {
  static constexpr int row_chunks = columns / chunk_numbers<dtype>,
                       rounds = rows / 4 * row_chunks / arch::wave_size;
  static_assert(rounds * arch::wave_size == rows / 4 * row_chunks && number_bytes<dtype> == 2);
  static constexpr int rounds_together = 1;
  Words4 words[rounds][4];

  template <class Block>
  void load(const Rows& source, const Block& block, int lane, int n) {
    const int four = quad(lane, n);
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int row = four / 4 * order_rows + operand_order<Layout>(4 * (four % 4) + e);
      words[n][e] = block.load8(Block::place(source, row, chunk_numbers<dtype> * chunk(lane, n)));
    }
  }
  void store(SharedWords4* tile, int lane, int n) const {
    const int four = quad(lane, n);
    ROCFLASH_UNROLL
    for (int c = 0; c < chunk_numbers<dtype>; ++c) {
      const int line = chunk_numbers<dtype> * chunk(lane, n) + c;
      ((SharedWords2*)tile)[2 * Tile::place(line, four / 2) + four % 2] = column(words[n], c);
    }
  }

 private:
  static int quad(int lane, int n) { return (lane + n * arch::wave_size) / row_chunks; }
  static int chunk(int lane, int n) { return (lane + n * arch::wave_size) % row_chunks; }
  // Column c of four rows.
  static Words2 column(const Words4 (&rows_of)[4], int c) {
    const int word = c / 2;
    return c % 2 == 0 ? Words2{arch::low_halves(rows_of[0][word], rows_of[1][word]),
                               arch::low_halves(rows_of[2][word], rows_of[3][word])}
                      : Words2{arch::high_halves(rows_of[0][word], rows_of[1][word]),
                               arch::high_halves(rows_of[2][word], rows_of[3][word])};
  }
};

// Loads a staged tile into registers, stores it to LDS, or does both a few rounds at a time. Addresses are computed
// anew, few at a time: registers are for what is on its way.
template <class Staged, class Block>
void load_tile(Staged& staged, const Rows& source, const Block& block) {
  const int lane = arch::renewed_lane();
  ROCFLASH_UNROLL
  for (int n = 0; n < Staged::rounds; ++n) {
    staged.load(source, block, lane, n);
    if ((n + 1) % Staged::rounds_together == 0) arch::end_phase();
  }
}
template <class Staged>
void store_tile(const Staged& staged, SharedWords4* tile) {
  const int lane = arch::renewed_lane();
  ROCFLASH_UNROLL
  for (int n = 0; n < Staged::rounds; ++n) staged.store(tile, lane, n);
}
template <class Staged, class Block>
void copy_tile(Staged& staged, const Rows& source, const Block& block, SharedWords4* tile) {
  const int lane = arch::renewed_lane();
  ROCFLASH_UNROLL
  for (int first = 0; first < Staged::rounds; first += Staged::rounds_together) {
    ROCFLASH_UNROLL
    for (int n = first; n < first + Staged::rounds_together; ++n)
      staged.load(source, block, lane, n);
    ROCFLASH_UNROLL
    for (int n = first; n < first + Staged::rounds_together; ++n) staged.store(tile, lane, n);
    arch::end_phase();
  }
}

template <bool transposing, class Tile, class Layout, DType dtype, int columns, int rows>
struct ChooseStaged {
  using Type = StagedColumns<Tile, Layout, dtype, columns, rows>;
};
template <class Tile, class Layout, DType dtype, int columns, int rows>
struct ChooseStaged<true, Tile, Layout, dtype, columns, rows> {
  using Type = StagedRows<Tile, dtype, columns, rows>;
};

// A tile of k as a left operand, straight from memory.
template <class Mma, DType dtype, int columns>
struct DirectLines {
  typename Mma::Operand words[columns / Mma::depth];

  template <class Block>
  void load(const Rows& source, const Block& block) {
    const int line = operand_line<Mma, Side::left>();
    ROCFLASH_UNROLL
    for (int step = 0; step < columns / Mma::depth; ++step)
      words[step] = fragment_of_chunks<Mma>(step, [&](int own, int fixed) {
        return block.load8(Block::place(source, line, chunk_numbers<dtype> * (own + fixed)));
      });
  }
  typename Mma::Operand fragment(int, int step) const { return words[step]; }
};
template <class Mma, DType dtype, int columns, class Block>
void load_tile(DirectLines<Mma, dtype, columns>& lines, const Rows& source, const Block& block) {
  lines.load(source, block);
}

template <bool direct, class Types>
struct ChooseKeys {
  using Type = DirectLines<typename Types::Mma, Types::dtype, Types::bucket>;
};
template <class Types>
struct ChooseKeys<false, Types> {
  using Type = StagedRows<typename Types::Keys, Types::dtype, Types::bucket, Types::tile.keys>;
};

// Rows of a tile that lie in several pages, each found by the lanes that load it. Rows and columns that do not
// exist repeat others that do: no query gives them weight, and columns beyond the last are not used.
template <DType dtype>
class FoundRows {
 public:
  struct Place {
    std::int32_t row, column;
  };
  static Place place(const Rows&, std::int32_t row, std::int32_t column) { return {row, column}; }

  FoundRows(const Rows& rows, std::int32_t caches, std::int64_t batch, std::int64_t first,
            std::int32_t count, std::int64_t head)
      : rows_(rows), batch_(batch), first_(first), head_(head), caches_(caches), count_(count) {}

  Words4 load8(Place place) const {
    const std::int32_t row = place.row < count_ ? place.row : count_ - 1,
                       column = place.column < rows_.columns ? place.column : 0;
    return arch::load(reinterpret_cast<const Words4*>(
        key_row<dtype>(rows_, caches_, batch_, first_ + row, head_) +
        number_bytes<dtype> * column));
  }

 private:
  const Rows& rows_;
  std::int64_t batch_, first_, head_;
  std::int32_t caches_, count_;
};

// The tiles of k and v of one wave on their way from memory.
template <KernelSpec spec>
class KeyStream {
  using Types = DecodeTypes<spec>;

 public:
  typename ChooseKeys<Types::direct_keys, Types>::Type k;
  typename ChooseStaged<arch::transposing_reads, typename Types::Values::Tile,
                        typename Types::Mma::Layout, spec.dtype, spec.bucket,
                        Types::tile.keys>::Type v;

  KeyStream(const DecodeArguments& a, const SequenceView& s, std::int32_t kv_head)
      : a_(a), sequence_(s), head_(kv_head) {}

  // Starts the loads of the tile from `key` on, of which `left` rows exist.
  void load(std::int32_t key, std::int32_t left) {
    visit(true, key, left, [&](const Rows& rows, const auto& block) { load_tile(k, rows, block); });
    visit(false, key, left,
          [&](const Rows& rows, const auto& block) { load_tile(v, rows, block); });
  }
  // The same, all the way to LDS.
  void copy(std::int32_t key, std::int32_t left, SharedWords4* keys, SharedWords4* values) {
    visit(true, key, left,
          [&](const Rows& rows, const auto& block) { copy_tile(k, rows, block, keys); });
    visit(false, key, left,
          [&](const Rows& rows, const auto& block) { copy_tile(v, rows, block, values); });
  }

 private:
  // A run of rows in one page, or in none, is seen through a descriptor whose bound ends it; other rows are
  // found one by one.
  template <class Visit>
  void visit(bool keys, std::int32_t key, std::int32_t left, Visit with) const {
    // Loaded again for each tile: all of it is more than the scalar registers hold.
    const DecodeArguments& a = arch::again(a_);
    const Rows& rows = keys ? a.problem.k : a.problem.v;
    const std::int64_t row = sequence_.k_row + key;
    std::int64_t page = sequence_.batch, in_page = row;
    find_page(rows, a.caches, page, in_page);
    if (!rows.blocks || rows.block_rows - in_page >= Types::tile.keys) {
      with(rows, RowBlock<spec.dtype, Variant::plain>(rows, 0, page, in_page, left, head_));
    } else {
      with(rows, FoundRows<spec.dtype>(rows, a.caches, sequence_.batch, row, left, head_));
    }
  }

  const DecodeArguments& a_;
  const SequenceView& sequence_;
  std::int32_t head_;
};

// K · Qᵀ, a few steps at a time: fragments that are read further ahead would take registers that the
// tile on its way needs.
template <KernelSpec spec, class K, class Q>
typename DecodeTypes<spec>::Scores multiply_keys(const K& k, const Q& q) {
  using Mma = typename DecodeTypes<spec>::Mma;
  typename DecodeTypes<spec>::Scores scores;
  typename Mma::Result sum = {};
  ROCFLASH_UNROLL
  for (int step = 0; step < spec.bucket / Mma::depth; ++step) {
    sum = Mma::multiply(k.fragment(0, step), q.fragment(0, step), sum);
    if (step % 2 == 1) arch::end_phase(sum);
  }
  ROCFLASH_UNROLL
  for (int r = 0; r < Mma::results; ++r) scores.at[0][r] = sum[r];
  return scores;
}

// out += Vᵀ · Pᵀ, likewise.
template <class V, class P, class Outputs>
void add_values(Outputs& out, const V& v, const P& weights, int keys) {
  using Mma = typename Outputs::Mma;
  ROCFLASH_UNROLL
  for (int step = 0; step < keys / Mma::depth; ++step) {
    const typename Mma::Operand right = weights.fragment(0, step);
    ROCFLASH_UNROLL
    for (int row = 0; row < Outputs::row_parts; ++row) {
      out.part[row][0] = Mma::multiply(v.fragment(row, step), right, out.part[row][0]);
      if (row % 2 == 1) arch::end_phase();
    }
  }
}

// The end of a wave's work: each row divided by its sum, in f32, and its lse. It computes its position again
// rather than keep it in registers during the loop.
template <KernelSpec spec>
void finish_part(const DecodeArguments& a, const OnlineSoftmax& softmax,
                 const typename DecodeTypes<spec>::Outputs& out) {
  using Types = DecodeTypes<spec>;
  using Mma = typename Types::Mma;
  const Problem& p = a.problem;
  const DecodeItem item(a, arch::group());
  const SequenceView sequence(p, item.batch);
  const std::int32_t number = item.split * Types::waves + arch::wave();
  const DecodePart part(a, sequence, item.block, Types::tile.rows, number, a.splits * Types::waves,
                        Types::tile.keys);
  const PartRows to{a, sequence, number};
  const auto group = static_cast<std::uint32_t>(a.group);
  const int own = Types::Scores::lane_column();
  const PackedRow packed(part.row_begin + own, group, item.kv_head);
  const bool in_use = own < part.rows;
  const Normaliser normaliser =
      Finish<Variant::full>(p, 0)(softmax.reference, column_sum(softmax.sum));
  if (in_use && Types::Scores::lane_row() == 0) arch::store(&to.lse(packed), normaliser.lse);

  float* columns = to.out(packed) + Quads<Mma>::lane_row();
  float probe = 0;  // NaN once an output is not finite
  ROCFLASH_UNROLL
  for (int r = 0; r < out.row_parts; ++r) {
    float o[Mma::results];
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; ++i) {
      o[i] = out.part[r][0][i];
      probe = __builtin_fmaf(o[i], 0.0f, probe);
      o[i] *= normaliser.factor;
    }
    Quads<Mma>::arrange(o);
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results && in_use; i += 4)
      arch::store(reinterpret_cast<Float4*>(columns + r * Mma::rows + Quads<Mma>::row(i)),
                  Float4{o[i], o[i + 1], o[i + 2], o[i + 3]});
  }

  constexpr std::uint64_t one_lane_per_row = (std::uint64_t{1} << Types::tile.rows) - 1;
  std::uint64_t broken =
      arch::ballot(in_use && (column_sum(probe) != 0 || products_overflow(p))) & one_lane_per_row;
  while (broken != 0) {
    const int lane = __builtin_ctzll(broken);
    broken &= broken - 1;
    const DecodeArguments& renewed = arch::again(a);
    const Problem& problem = renewed.problem;
    const PackedRow row(part.row_begin + lane, static_cast<std::uint32_t>(renewed.group),
                        item.kv_head);
    const PartRows results{renewed, sequence, number};
    repair(
        ExactScores<spec.dtype>{problem, sequence, row.head, renewed.caches},
        part.view(problem, sequence, row.query), arch::from_lane(softmax.base(), lane),
        arch::from_lane(normaliser.factor, lane), 0, problem.value_dim,
        [&](float lse) { arch::store(&results.lse(row), lse); },
        [&](int column, float x) { arch::store(results.out(row) + column, x); });
  }
}

template <KernelSpec spec>
void decode(const DecodeArguments& a) {
  using Types = DecodeTypes<spec>;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;

  ROCFLASH_SHARED_ARRAY Words4 shared_keys[Types::waves][Types::key_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_values[Types::waves][Types::value_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_queries[Types::waves][Types::Queries::shared_chunks];

  // The wave's rows, its part of the keys, and the lane's own row.
  const Problem& p = a.problem;
  const DecodeItem item(a, arch::group());
  const SequenceView sequence(p, item.batch);
  const int wave = arch::wave();
  const std::int32_t number = item.split * Types::waves + wave;
  const DecodePart part(a, sequence, item.block, tile.rows, number, a.splits * Types::waves,
                        tile.keys);
  if (part.rows == 0) return;
  const auto group = static_cast<std::uint32_t>(a.group);
  const int own = Scores::lane_column();
  const PackedRow packed(part.row_begin + own, group, item.kv_head);
  if (part.empty()) {
    if (own < part.rows && Scores::lane_row() == 0)
      arch::store(&PartRows{a, sequence, number}.lse(packed), infinity);
    return;
  }
  const QueryView query = part.view(p, sequence, packed.query);

  constexpr bool ahead = tile.stages > 0;
  KeyStream<spec> next(a, sequence, item.kv_head);
  if constexpr (ahead) next.load(part.begin, part.end - part.begin);

  const Scale scale(p.scale);
  const typename Types::Queries q(shared_queries[wave], [&](int row, int chunk) {
    const Words4 words =
        query_chunk<spec.dtype>(p.q, sequence, part, group, item.kv_head, row, chunk);
    return scale.turn_sign ? words ^ 0x80008000u : words;
  });

  const bool shaped = p.scale == 0 || p.softcap > 0 || p.alibi || p.bias || p.mask;
  const float unit = shaped ? 1 : scale.unit;
  OnlineSoftmax softmax;
  typename Types::Outputs out = {};
  for (std::int32_t begin = part.begin; begin < part.end; begin += tile.keys) {
    const std::int32_t end = begin + tile.keys;
    // scores = K · Qᵀ. The tile makes room for the next one as soon as it is in LDS or has been multiplied.
    const auto load_next = [&] {
      if (end < part.end) next.load(end, part.end - end);
    };
    Scores scores;
    arch::wave_fence();
    if constexpr (Types::direct_keys) {
      store_tile(next.v, shared_values[wave]);
      scores = multiply_keys<spec>(next.k, q);
      load_next();
      arch::wave_fence();
    } else {
      if constexpr (ahead) {
        store_tile(next.k, shared_keys[wave]);
        store_tile(next.v, shared_values[wave]);
        arch::end_phase();
        load_next();
      } else {
        next.copy(begin, part.end - begin, shared_keys[wave], shared_values[wave]);
      }
      arch::wave_fence();
      scores = multiply_keys<spec>(
          SharedLines<typename Types::Mma, typename Types::Keys, Side::left>{shared_keys[wave]}, q);
    }
    arch::end_phase();
    float (&s)[Scores::per_column] = scores.at[0];
    const auto at = [&](int i) -> float& { return s[i]; };
    const auto key = [&, offset = begin + Scores::lane_row()](int i) {
      return offset + Scores::row(i);
    };
    const Problem& again = arch::again(a).problem;  // scalar registers do not hold all of it
    // The lane's row, computed again for the options that need it.
    const auto own_row = [&] {
      const int column = Scores::Layout::lane_column(arch::renewed_lane());
      return PackedRow(part.row_begin + column, group, item.kv_head);
    };
    const auto own_query = [&](const PackedRow& row) {
      QueryView view = query;
      view.index = row.query;
      return view;
    };
    if (shaped) {
      const PackedRow row = own_row();
      ScoreShape(again, sequence, row.head)
          .template shape<Scores::per_column>(own_query(row), at, key);
    }
    if (shaped || begin < part.common_begin || end > part.common_end) {
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::per_column; ++i) s[i] = query.sees(key(i)) ? s[i] : -infinity;
    }

    // weights = exp2(scores · unit − reference)
    const float largest = column_maximum(scores, 0) * unit;
    if (arch::any(softmax.behind(largest))) out.scale(softmax.follow(largest));
    softmax.sum += exp2_and_sum(scores, 0, unit, softmax.base());
    constexpr int run = layout::results_within<typename Scores::Layout>(dropout_keys);
    if (again.dropout.on()) {
      const PackedRow row = own_row();
      ScoreShape(again, sequence, row.head)
          .template drop<Scores::per_column, run>(own_query(row), at, key);
    }

    // out += Vᵀ · Pᵀ
    add_values(out, typename Types::ValueOperand{shared_values[wave]},
               rounded_weights<spec.dtype>(scores), tile.keys);
  }
  finish_part<spec>(arch::again(a), softmax, out);
}

}  // namespace rocflash::kernel
