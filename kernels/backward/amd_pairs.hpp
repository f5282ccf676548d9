// Backward in one kernel that computes each of the five products once (amd_fused.hpp), where the sums of dk and dv, k
// and v do not fit a wave's registers: on RDNA3 and RDNA4, which have 256, and on gfx950 above 128 columns. Two waves
// share some keys, and each has half of the work:
//
//   the wave of weights      S = Q·Kᵀ,  P = exp2(S − lse)                     dVᵀ += dOᵀ·P
//   the wave of gradients    dP = dO·Vᵀ,             dS = P (dP − delta)      dKᵀ += Qᵀ·dS
//   each wave of the group                                                   dQ = dS·K, columns of its own, all keys
//
// Both run the same instructions on other operands, but for what lies between the products. P passes from one to the
// other through LDS in f32, dS from all to all (backward/exchange.hpp). dQ of a tile is added to sums in memory, to
// which all workgroups of a head add. In which order they do so is not known, so dq's last bits differ from run to
// run; backward/round.hpp rounds the sums.
//
//   registers   k or v of the wave's keys, sums of dv or dk
//   LDS         a tile of q and dout, as rows and transposed; k of all keys transposed; P and dS of the tile
//
// A tile takes three barriers: when it is in LDS, when P is, when dS is. On RDNA other workgroups of the unit fill the
// time; on gfx950 a wave has its SIMD to itself and reads operands ahead.
#pragma once

#include "backward/amd_keys.hpp"
#include "backward/exchange.hpp"
#include "backward/sums.hpp"
#include "tile/ahead.hpp"

namespace rocflash::kernel {

// The rows of a tile in the order in which lanes have them as results, so that a lane's are side by side.
template <class Mma>
int result_place(int row) {
  constexpr bool every_other = Mma::Layout::register_row(1) == 2;
  return every_other ? row / Mma::rows * Mma::rows + row % 2 * Mma::results + row % Mma::rows / 2
                     : row;
}

// Columns of a tile as lines; `line` is the lane's, where it takes a whole one.
template <class Operand>
Operand turned(const SharedWords4* tile, [[maybe_unused]] int line) {
  if constexpr (arch::transposing_reads) {
    return {tile};
  } else {
    return {tile, line};
  }
}

// Several products' results with one left operand: each of its fragments is read once, ahead of its use for a wave
// that has its SIMD to itself. `together` as in `product`.
template <class Result, int depth, int together, int parts, class A, class B>
void products(Result (&to)[parts], const A& a, const B (&b)[parts]) {
  using Mma = typename Result::Mma;
  if constexpr (arch::wave_size == 64) {
    static_assert(parts == 1);
    to[0] = product_ahead<Result, depth>(a, b[0]);
    return;
  }
  ROCFLASH_UNROLL
  for (int row = 0; row < Result::row_parts; ++row) {
    typename Mma::Result sum[parts] = {};
    ROCFLASH_UNROLL
    for (int step = 0; step < depth / Mma::depth; ++step) {
      const typename Mma::Operand left = a.fragment(row, step);
      ROCFLASH_UNROLL
      for (int n = 0; n < parts; ++n) sum[n] = Mma::multiply(left, b[n].fragment(0, step), sum[n]);
      if constexpr (together > 0) {
        if (step % together == together - 1) arch::in_order();
      }
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < parts; ++n) {
      ROCFLASH_UNROLL
      for (int r = 0; r < Mma::results; ++r) to[n].at[0][row * Mma::results + r] = sum[n][r];
    }
  }
}
template <int depth, int together, class Sums, int parts, class A, class B>
void add_products(Sums (&to)[parts], const A& a, const B (&b)[parts]) {
  using Mma = typename Sums::Mma;
  if constexpr (arch::wave_size == 64) {
    add_product_ahead<depth>(to[0], a, b[0]);
    return;
  }
  ROCFLASH_UNROLL
  for (int step = 0; step < depth / Mma::depth; ++step) {
    typename Mma::Operand right[parts];
    ROCFLASH_UNROLL
    for (int n = 0; n < parts; ++n) right[n] = b[n].fragment(0, step);
    ROCFLASH_UNROLL
    for (int row = 0; row < Sums::row_parts; ++row) {
      const typename Mma::Operand left = a.fragment(row, step);
      ROCFLASH_UNROLL
      for (int n = 0; n < parts; ++n)
        to[n].part[row][0] = Mma::multiply(left, right[n], to[n].part[row][0]);
      if constexpr (together > 0) {
        if (row % together == together - 1) arch::in_order();
      }
    }
  }
}

template <KernelSpec spec>
struct PairTypes : BackwardTypes<spec> {
  using Base = BackwardTypes<spec>;
  using Base::tile, Base::bucket, Base::dtype, Base::waves;
  using typename Base::Mma, typename Base::Block;
  static_assert(tile.roles == 2 && tile.buffers == 1 && !tile.shared_owned);
  static constexpr int together = Base::full ? 2 : 0;  // steps of a product at a time
  static constexpr int pairs = waves / 2, parts = tile.parts, wave_keys = parts * Mma::columns;

  // Half of the threads have a tile of q on its way, the others one of dout.
  using Staging = typename ChooseStaging<arch::transposing_reads, Block, typename Mma::Layout,
                                         typename Base::Turned::Tile, dtype, bucket, tile.streamed,
                                         tile.threads / 2, typename Base::Streamed>::Type;

  using Exchange = ScoreExchange<Mma, tile.streamed, tile.owned, pairs, parts>;
  // All keys with columns as lines, 64 in a tile.
  static constexpr int column_keys = 64, column_tiles = tile.owned / column_keys;
  using KeyColumns = Transposed<Mma, dtype, bucket, column_keys>;
  using KeyStaging = typename ChooseStaging<arch::transposing_reads, Block,
                                            typename Exchange::KeyOrder, typename KeyColumns::Tile,
                                            dtype, bucket, column_keys, tile.threads>::Type;

  // A tile of dq in products of 16x16: those of a wave are of the same queries.
  static constexpr int strips = bucket / Mma::columns,
                       wave_strips = strips * (tile.streamed / Mma::rows) / waves;
  static_assert(wave_strips >= 1 && strips % wave_strips == 0);
};

template <KernelSpec spec>
void paired_fused(const BackwardArguments& a) {
  using Types = PairTypes<spec>;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  using Block = typename Types::Block;
  using Exchange = typename Types::Exchange;
  using Packed = PackedColumn<Mma, Types::tile.streamed>;
  using Kept = KeptScores<Types, true>;
  using Sums = SumsInBlocks<Mma::columns>;
  constexpr BackwardTile tile = Types::tile;
  constexpr int parts = Types::parts, count = Types::count;

  ROCFLASH_SHARED_ARRAY Words4 shared_rows[2][Types::Streamed::chunks];  // q, dout
  ROCFLASH_SHARED_ARRAY Words4 shared_turned[2][Types::Turned::Tile::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_k[Types::column_tiles][Types::KeyColumns::Tile::chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_ds[Exchange::chunks];
  ROCFLASH_SHARED_ARRAY Float4 shared_weights[Types::pairs][parts][count / 4][arch::wave_size];
  alignas(16) ROCFLASH_SHARED_ARRAY float shared_statistics[2][tile.streamed];  // lse, delta
  alignas(16)
      ROCFLASH_SHARED_ARRAY std::uint8_t shared_kept[Types::waves][Types::full ? Kept::room : 0];

  // The workgroup's keys, the wave's, and the lane's own.
  const Problem& p = a.problem;
  const int wave = arch::wave(), role = wave / Types::pairs, pair = wave % Types::pairs;
  const bool weights = role == 0;
  const WorkItem item = key_item(a);
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.owned;
  if (block_begin >= sequence.sk) return;
  const std::int32_t wave_begin = block_begin + pair * Types::wave_keys;
  const SeeingQueries wave_queries(p.visibility, sequence, wave_begin, Types::wave_keys);
  const Span seen_by_any = uniform(wave_queries.any), seen_by_all = uniform(wave_queries.all);
  const Scale scale(p.scale);
  typename Types::Owned own[parts];
  KeyView key[parts];
  ROCFLASH_UNROLL
  for (int n = 0; n < parts; ++n) {
    const std::int32_t first = wave_begin + n * Mma::columns;
    own[n] = own_rows<Types>(weights ? p.k : p.v, sequence.batch, sequence.k_row + first,
                             sequence.sk - first, item.head, weights && scale.turn_sign, nullptr);
    key[n] = KeyView(p.visibility, sequence, first + Scores::lane_column());
  }
  ROCFLASH_UNROLL
  for (int n = 0; n < Types::column_tiles; ++n) {
    const std::int32_t first = block_begin + n * Types::column_keys;
    Types::KeyStaging::copy(
        p.k, Block(p.k, 0, sequence.batch, sequence.k_row + first, sequence.sk - first, item.head),
        shared_k[n]);
  }

  // Tiles of queries of one head after the other, from a block of the sums on.
  const Range seen = SeeingQueries(p.visibility, sequence, block_begin, tile.owned).any;
  const auto first_query =
      arch::uniform(static_cast<std::int32_t>(seen.begin / Sums::rows * Sums::rows));
  const std::int32_t tiles = arch::uniform(
      seen.empty() ? 0
                   : (static_cast<std::int32_t>(seen.end) - first_query + tile.streamed - 1) /
                         tile.streamed);
  const auto group = static_cast<std::int32_t>(p.group());
  struct Turn {
    std::int32_t head, query;
  };
  const auto after = [&](Turn turn) {
    turn.query += tile.streamed;
    if (turn.query >= first_query + tiles * tile.streamed) turn = {turn.head + 1, first_query};
    return turn;
  };

  typename Types::Staging staged(weights ? p.q : a.tensors.dout,
                                 arch::thread() % (tile.threads / 2));
  float statistic_ahead = 0;  // lse or delta of a query
  const int own_query = arch::thread() % (tile.threads / 2);
  const auto load = [&](Turn turn) {
    const BackwardArguments& now = arch::again(a);
    staged.load(Block(weights ? now.problem.q : now.tensors.dout, 0, sequence.batch,
                      sequence.q_row + turn.query, sequence.sq - turn.query, turn.head));
    const std::int32_t query = turn.query + own_query;
    statistic_ahead = weights ? infinity : 0.0f;
    if (own_query < tile.streamed && query < sequence.sq)
      statistic_ahead = arch::load(&(weights ? now.tensors.lse : now.delta)
                                        .at(sequence.batch, turn.head, sequence.q_row + query));
  };
  const auto store = [&] {
    if (own_query < tile.streamed)
      shared_statistics[role][result_place<Mma>(own_query)] =
          weights ? statistic(statistic_ahead, log2_e) - Types::raised : statistic_ahead;
    staged.store(shared_rows[role], shared_turned[role]);
  };
  const auto* const statistics_of = (const ROCFLASH_SHARED Float4*)shared_statistics[role] +
                                    result_place<Mma>(Scores::lane_row()) / 4;

  const Exchange exchange(shared_ds);
  typename Types::Sums sums[parts] = {};
  const std::int32_t turns = tiles * group;
  Turn turn{item.head * group, first_query};
  if (turns > 0) {
    load(turn);
    store();
  }
  for (std::int32_t n = 0; n < turns; ++n) {
    const Turn next = after(turn);
    arch::barrier();
    if (n + 1 < turns) load(next);

    const std::int32_t begin = turn.query, end = begin + tile.streamed;
    const bool sees = begin < seen_by_any.end && end > seen_by_any.begin;
    Packed packed[parts];
    Scores scores[parts];
    [[maybe_unused]] Kept kept[parts];
    [[maybe_unused]] const bool drops = Types::full && arch::again(p).dropout.on();
    const int lane_row = Scores::lane_row();
    // New in each iteration where registers are few: addresses that follow from it are not kept in them.
    int line = operand_line<Mma, Side::left>();
    if constexpr (Types::together > 0) line = arch::renew(line);
    const auto query = [&](int i) { return begin + lane_row + Scores::row(i); };
    const auto statistic_of = [&](int i) {
      return statistics_of[result_place<Mma>(Scores::row(i)) / 4][i % 4];
    };
    if (sees) {
      // S = Q·Kᵀ, or dP = dO·Vᵀ
      products<Scores, spec.bucket, Types::together>(
          scores, typename Types::StreamedOperand{shared_rows[role], line}, own);
      ROCFLASH_UNROLL
      for (int c = 0; c < parts; ++c) {
        float (&s)[count] = scores[c].at[0];
        arch::settle(s);
        if constexpr (Types::full) {
          if (drops)
            kept[c].draw(shared_kept[wave], GradientShape(arch::again(p), sequence, turn.head),
                         begin, wave_begin + c * Mma::columns);
        }
        if (weights) {
          // P = exp2(S − lse); the other wave gets it times the slope of the score.
          float unit = scale.unit, slopes[Types::full ? count : 1];
          if constexpr (Types::full) {
            ROCFLASH_UNROLL
            for (int i = 0; i < count; ++i) slopes[i] = 1;
            GradientShape(arch::again(p), sequence, turn.head)
                .template shape<count>(
                    query, [&](int) { return key[c].index; }, [&](int i) -> float& { return s[i]; },
                    [&](int i, float slope) { slopes[i] = slope; });
            unit = 1;
          }
          const bool ragged = begin < seen_by_all.begin || end > seen_by_all.end;
          ROCFLASH_UNROLL
          for (int i = 0; i < count; ++i) s[i] = arch::exp2(s[i] * unit - statistic_of(i));
          if (ragged) {
            ROCFLASH_UNROLL
            for (int i = 0; i < count; ++i) s[i] = key[c].seen_by(query(i)) ? s[i] : 0.0f;
          }
          ROCFLASH_UNROLL
          for (int i = 0; i < count; i += 4) {
            Float4 shared{s[i], s[i + 1], s[i + 2], s[i + 3]};
            if constexpr (Types::full)
              shared *= Float4{slopes[i], slopes[i + 1], slopes[i + 2], slopes[i + 3]};
            shared_weights[pair][c][i / 4][arch::lane()] = shared;
          }
          if constexpr (Types::full) {
            if (drops) {
              ROCFLASH_UNROLL
              for (int i = 0; i < count; ++i) s[i] = kept[c](i) ? s[i] : 0.0f;
            }
          }
          packed[c] = Packed(rounded_weights<spec.dtype>(scores[c]));
        } else {
          if constexpr (Types::full) {
            if (drops) {
              ROCFLASH_UNROLL
              for (int i = 0; i < count; ++i) s[i] = kept[c](i) ? s[i] : 0.0f;
            }
          }
          ROCFLASH_UNROLL
          for (int i = 0; i < count; ++i) s[i] -= statistic_of(i);
        }
      }
    }
    arch::barrier();
    // dS = P (dP − delta)
    if (!weights) {
      ROCFLASH_UNROLL
      for (int c = 0; c < parts; ++c) {
        if (sees) {
          float (&ds)[count] = scores[c].at[0];
          ROCFLASH_UNROLL
          for (int i = 0; i < count; i += 4) {
            const Float4 weight = shared_weights[pair][c][i / 4][arch::lane()];
            ROCFLASH_UNROLL
            for (int e = 0; e < 4; ++e) {
              ds[i + e] *= weight[e];
              if constexpr (Types::full) ds[i + e] = weight[e] == 0 ? 0.0f : ds[i + e];
            }
          }
          packed[c] = Packed(rounded_weights<spec.dtype>(scores[c]));
        }
        exchange.write(packed[c], c);
      }
    }
    // dVᵀ += dOᵀ·P, or dKᵀ += Qᵀ·dS
    if (sees)
      add_products<tile.streamed, Types::together>(
          sums, turned<typename Types::TurnedOperand>(shared_turned[1 - role], line), packed);
    arch::barrier();

    // dQ = dS·K
    const int query_part = wave * Types::wave_strips / Types::strips,
              strip = wave * Types::wave_strips % Types::strips;
    typename Mma::Result dq[Types::wave_strips] = {};
    const auto columns_of = [&](int part, int step) {
      constexpr int steps = Types::column_keys / Mma::depth;
      return turned<typename Types::KeyColumns::Operand>(shared_k[step / steps], line)
          .fragment(strip + part, step % steps);
    };
    constexpr int dq_steps = tile.owned / Mma::depth;
    if constexpr (arch::wave_size == 64) {
      // k's fragments lie further from each other's use than dS's: as left operands they are read ahead.
      ROCFLASH_UNROLL
      for (int part = 0; part < Types::wave_strips; ++part) {
        typename Mma::Operand ds[dq_steps];
        ROCFLASH_UNROLL
        for (int step = 0; step < dq_steps; ++step) ds[step] = exchange.fragment(query_part, step);
        read_ahead<Mma, dq_steps>([&](int step) { return columns_of(part, step); },
                                  [&](int step, const typename Mma::Operand& right) {
                                    dq[part] = Mma::multiply(ds[step], right, dq[part]);
                                  });
      }
    } else {
      ROCFLASH_UNROLL
      for (int step = 0; step < dq_steps; ++step) {
        const typename Mma::Operand left = exchange.fragment(query_part, step);
        ROCFLASH_UNROLL
        for (int part = 0; part < Types::wave_strips; ++part)
          dq[part] = Mma::multiply(left, columns_of(part, step), dq[part]);
      }
    }
    const std::int32_t first_row = begin + query_part * Mma::rows;
    const auto rows = static_cast<std::int32_t>(smaller(sequence.sq - first_row, Mma::rows));
    const BackwardArguments& now = arch::again(a);
    using Layout = typename Mma::Layout;
    // Blocks have room for rows behind the last one.
    const bool blocks = sums_in_blocks(this_family);
    constexpr int row_bytes = 4 * spec.bucket;
    const arch::Window to(blocks ? reinterpret_cast<std::byte*>(
                                       Sums(now, sequence, turn.head).start(first_row, strip))
                                 : row_address<DType::f32>(now.dq_sums, sequence.batch,
                                                           sequence.q_row + first_row, turn.head) +
                                       4 * Mma::columns * strip,
                          rows <= 0 ? 0
                          : blocks  ? 4 * Sums::block_floats * Types::wave_strips
                                    : rows * row_bytes);
    const int own_place = arch::renew(blocks ? 4 * arch::lane()
                                             : Layout::lane_row(arch::lane()) * row_bytes +
                                                   4 * Layout::lane_column(arch::lane()));
    ROCFLASH_UNROLL
    for (int part = 0; part < Types::wave_strips; ++part) {
      ROCFLASH_UNROLL
      for (int r = 0; r < Mma::results; ++r)
        to.add(dq[part][r],
               static_cast<std::uint32_t>(
                   own_place +
                   (blocks ? 4 * (part * Sums::block_floats + arch::wave_size * r)
                           : Layout::register_row(r) * row_bytes + 4 * Mma::columns * part)));
    }
    if (n + 1 < turns) store();
    turn = next;
  }

  // dv or dk. Each step finds its position again rather than keep it in registers.
  struct Position {
    WorkItem item;
    SequenceView sequence;
    std::int32_t first;
    Position(const BackwardArguments& now, int part)
        : item(key_item(now)),
          sequence(now.problem, item.batch),
          first(item.block * tile.owned + arch::wave() % Types::pairs * Types::wave_keys +
                part * Mma::columns) {}
  };
  ROCFLASH_UNROLL
  for (int n = 0; n < parts; ++n) {
    const auto store_all = [&] {
      const BackwardArguments& now = arch::again(a);
      const Position at(now, n);
      const bool dv = arch::wave() < Types::pairs;
      return store_sums<Types>(now.problem, dv ? now.tensors.dv : now.tensors.dk, at.sequence.batch,
                               at.sequence.k_row + at.first, at.sequence.sk - at.first,
                               at.item.head, sums[n],
                               now.problem.dropout.scale() * (dv ? 1.0f : now.problem.scale));
    };
    repair_rows(store_all(), [&](int row) {
      const BackwardArguments& now = arch::again(a);
      const Position at(now, n);
      const bool dv = arch::wave() < Types::pairs;
      exact_dk_dv<spec.dtype>(now, at.sequence, at.item.head, at.first + row, !dv, dv);
    });
  }
}

}  // namespace rocflash::kernel
