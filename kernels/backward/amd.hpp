// What backward's kernels on AMD GPUs share. A workgroup owns rows of one kind, queries or keys, each of
// its waves `Mma::columns` of them; rows of the other kind stream past, tile by tile.
//
//   registers   both operands of the owned rows, scores and their gradients, sums, the next tile
//   LDS         tiles of streamed rows, as they are and transposed
//
// It is forward's schedule: streamed rows are the rows of a product and owned rows its columns, so all
// scores of a lane belong to one owned row, and what is computed from them is, rounded, the operand of
// the last products as it stands (tile/order.hpp).
//
//   queries  S = K·Qᵀ, dP = V·dOᵀ, dQᵀ += Kᵀ·dS
//   keys     S = Q·Kᵀ, dP = dO·Vᵀ, dVᵀ += dOᵀ·P, dKᵀ += Qᵀ·dS, over the queries of all heads of a key head
//
// S and dP are computed twice. In return no two workgroups add to the same number: there are no atomics,
// and results are equal bit for bit on every run.
#pragma once

#include "arch/arch.hpp"
#include "attention/rows.hpp"
#include "attention/sequence.hpp"
#include "attention/work.hpp"
#include "backward/exact.hpp"
#include "backward/gradient.hpp"
#include "table/backward.hpp"
#include "tile/amd.hpp"
#include "tile/staging.hpp"

namespace rocflash::kernel {

// The types of one kernel.
template <KernelSpec spec>
struct BackwardTypes : OfSpec<spec> {
  using OfSpec<spec>::dtype, OfSpec<spec>::bucket, OfSpec<spec>::full;
  static constexpr BackwardTile tile = backward_tile(this_family, spec);
  static constexpr bool staged = tile.buffers > 0;  // by way of registers
  static constexpr int buffers = staged ? tile.buffers : 1;

  using Mma = arch::Mma<dtype>;
  static constexpr int wave_rows = Mma::columns, waves = tile.threads / arch::wave_size;
  static_assert(waves * wave_rows * tile.parts == tile.owned * tile.roles);

  using Block = RowBlock<dtype, spec.variant, false>;  // rows in global memory
  using Streamed = RowTile<bucket * number_bytes<dtype>, tile.streamed>;
  using Turned = Transposed<Mma, dtype, bucket, tile.streamed>;
  using StreamedOperand = SharedLines<Mma, Streamed, Side::left>;
  using TurnedOperand = typename Turned::Operand;
  using Owned = KeptLines<Mma, dtype, bucket, tile.shared_owned>;
  using Scores = Elements<Mma, tile.streamed, wave_rows>;
  using Sums = Accumulators<Mma, bucket, wave_rows>;  // transposed: a column per owned row
  static constexpr int count = Scores::per_column;    // scores of a lane
  static constexpr int together = !tile.shared_owned ? 0
                                  : bucket > 128     ? 2
                                                     : 4;  // steps of a product at a time

  static constexpr int raised = raised_weights(this_family, dtype);

  using RowsStaging = RowStaging<Block, Streamed, dtype, bucket, tile.streamed, tile.threads>;
  using TurnedStaging = typename ChooseStaging<arch::transposing_reads, Block, typename Mma::Layout,
                                               typename Turned::Tile, dtype, bucket, tile.streamed,
                                               tile.threads>::Type;
  using BothStaging = typename ChooseStaging<arch::transposing_reads, Block, typename Mma::Layout,
                                             typename Turned::Tile, dtype, bucket, tile.streamed,
                                             tile.threads, Streamed>::Type;
};

// A tensor whose rows stream through LDS: as rows, transposed, or both. Tiles go by way of registers, so
// that loads are under way while the present tile is used, or, without room for that, directly.
enum class Shape { rows, turned, both };
template <class Types, Shape shape>
class Stream {
  template <Shape s, int = 0>
  struct Choose {
    using Type = typename Types::BothStaging;
  };
  template <int n>
  struct Choose<Shape::rows, n> {
    using Type = typename Types::RowsStaging;
  };
  template <int n>
  struct Choose<Shape::turned, n> {
    using Type = typename Types::TurnedStaging;
  };

 public:
  using Staging = typename Choose<shape>::Type;
  using Block = typename Types::Block;
  static constexpr int row_chunks = shape == Shape::turned ? 0 : Types::Streamed::chunks;
  static constexpr int turned_chunks = shape == Shape::rows ? 0 : Types::Turned::Tile::chunks;

  explicit Stream(const Rows& source) : staging_(source) {}

  void load(const Block& block) {
    if constexpr (Types::staged) staging_.load(block);
  }
  // Puts the tile that was loaded, or `block`, into LDS.
  void store(const Rows& source, const Block& block, SharedWords4* rows,
             SharedWords4* turned) const {
    if constexpr (shape == Shape::both) {
      if constexpr (Types::staged) {
        staging_.store(rows, turned);
      } else {
        Staging::copy(source, block, rows, turned);
      }
    } else {
      SharedWords4* tile = shape == Shape::rows ? rows : turned;
      if constexpr (Types::staged) {
        staging_.store(tile);
      } else {
        Staging::copy(source, block, tile);
      }
    }
  }

 private:
  Staging staging_;
};

// The owned rows of a wave as an operand, with the sign turned where the scale is negative.
template <class Types>
typename Types::Owned own_rows(const Rows& rows, std::int64_t batch, std::int64_t first,
                               std::int32_t count, std::int64_t head, bool turn_sign,
                               SharedWords4* room) {
  using Block = typename Types::Block;
  const Block block(rows, 0, batch, first, count, head);
  return typename Types::Owned(room, [&](int row, int chunk) {
    Words4 words = block.load8(Block::offset(rows, row, chunk_numbers<Types::dtype> * chunk));
    if (turn_sign) words ^= 0x80008000u;
    return words;
  });
}

// A span that is the same for all lanes, in scalar registers.
inline Span uniform(Span x) {
  x.begin = arch::uniform(x.begin);
  x.end = arch::uniform(x.end);
  return x;
}

// A lane's line of streamed rows, new in each iteration where registers are too few for addresses.
template <class Types>
int streamed_line() {
  const int line = operand_line<typename Types::Mma, Side::left>();
  return Types::tile.shared_owned ? arch::renew(line) : line;
}

// What dropout keeps of a wave's scores. A draw serves eight keys of a query, so the wave makes each of
// them once and its lanes exchange them through LDS.
template <class Types, bool own_keys>
class KeptScores {
  using Scores = typename Types::Scores;
  static constexpr int owned = Types::wave_rows, streamed = Types::tile.streamed;
  static constexpr int queries = own_keys ? streamed : owned, keys = own_keys ? owned : streamed;
  static constexpr int draws = keys / dropout_keys;
  static_assert(keys <= 32);

 public:
  static constexpr int room = queries * draws;  // bytes in LDS per wave
  using Room = ROCFLASH_SHARED std::uint8_t;

  // Both `first_` are those of the wave's scores.
  void draw(Room* bytes, const GradientShape& shape, std::int32_t first_query,
            std::int32_t first_key) {
    _Pragma("clang loop unroll(disable)") for (int n = arch::lane(); n < queries * draws;
                                               n += arch::wave_size) {
      const int query = n % queries, draw = n / queries;
      bytes[own_keys ? draw * queries + query : query * draws + draw] = static_cast<std::uint8_t>(
          shape.kept(first_query + query, first_key + dropout_keys * draw));
    }
    arch::wave_fence();
    const int own = Scores::lane_column(), row = Scores::lane_row();
    if constexpr (own_keys) {
      // A byte per query; which of its bits is the lane's key.
      const auto* from = (const ROCFLASH_SHARED std::uint32_t*)bytes +
                         own / dropout_keys * (queries / 4) + row / 4;
      ROCFLASH_UNROLL
      for (int n = 0; n < Types::count; n += steps)
        word_[n / steps] = from[Scores::row(n) / 4] >> (row % 4 * 8 + own % dropout_keys);
    } else if constexpr (draws == 4) {
      word_[0] = ((const ROCFLASH_SHARED std::uint32_t*)bytes)[own] >> row;
    } else {
      static_assert(draws == 2);
      word_[0] = std::uint32_t{((const ROCFLASH_SHARED std::uint16_t*)bytes)[own]} >> row;
    }
    arch::wave_fence();
  }
  bool operator()(int n) const {
    if constexpr (own_keys) return (word_[n / steps] >> Scores::row(n) % 4 * 8 & 1) != 0;
    return (word_[0] >> Scores::row(n) & 1) != 0;
  }

 private:
  // Scores of a lane whose rows lie in one group of four.
  static constexpr int steps = layout::results_within<typename Scores::Layout>(4);
  std::uint32_t word_[own_keys ? Types::count / steps : 1];
};

// The end of a wave's work on one result: its sums times `factor`, a row per lane's column. Returns one
// bit per row, set where sums are not finite or not to be trusted.
template <class Types>
std::uint64_t store_sums(const Problem& p, const Rows& to, std::int64_t batch, std::int64_t first,
                         std::int32_t count, std::int64_t head, const typename Types::Sums& sums,
                         float factor) {
  using Mma = typename Types::Mma;
  using Block = typename Types::Block;
  constexpr DType dtype = Types::dtype;
  if (!to) return 0;
  const Block rows(to, 0, batch, first, count, head);
  const int own = Types::Scores::lane_column();
  factor *= lowering(this_family, Types::dtype);
  float probe = 0;  // NaN once a sum is not finite
  ROCFLASH_UNROLL
  for (int part = 0; part < sums.row_parts; ++part) {
    float x[Mma::results];
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; ++i) {
      x[i] = sums.part[part][0][i];
      probe = __builtin_fmaf(x[i], 0.0f, probe);
      x[i] *= factor;
    }
    Quads<Mma>::arrange(x);
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; i += 4) {
      const Words2 words{narrow_pair<dtype>(x[i], x[i + 1]),
                         narrow_pair<dtype>(x[i + 2], x[i + 3])};
      const int column = part * Mma::rows + Quads<Mma>::row(i) + Quads<Mma>::lane_row();
      rows.store4(words, Block::offset(to, own, column));
    }
  }

  constexpr std::uint64_t one_lane_per_row = (std::uint64_t{1} << Types::wave_rows) - 1;
  return arch::ballot(own < count && (column_sum(probe) != 0 || products_overflow(p))) &
         one_lane_per_row;
}

// Calls exactly(row) for each row that `store_sums` told of.
template <class Exactly>
void repair_rows(std::uint64_t broken, Exactly exactly) {
  while (broken != 0) {
    const int row = __builtin_ctzll(broken);
    broken &= broken - 1;
    exactly(row);
  }
}

}  // namespace rocflash::kernel
