// Backward in one kernel that computes each of the five products once (amd_fused.hpp), where the sums of dk and dv, k
// and v do not fit a wave's registers: on RDNA, which has 256, and on gfx950 above 128 columns. Two waves
// share some keys, and each has half of the work:
//
//   the wave of weights      S = Q·Kᵀ,  P = exp2(S − lse)                     dVᵀ += dOᵀ·P
//   the wave of gradients    dP = dO·Vᵀ,             dS = P (dP − delta)      dKᵀ += Qᵀ·dS
//   each wave of the group                                                   dQ = dS·K, columns of its own, all keys
//
// Both run the same instructions on other operands, but for what lies between the products. P passes from one to the
// other through LDS in f32, dS from all to all (backward/exchange.hpp). dQ of a tile is added to sums in memory, to
// which all workgroups of a head add. In which order they do so is not known, so dq's last bits differ from run to
// run; RDNA2, which cannot add to memory, has an order (backward/amd_in_turn.hpp). backward/round.hpp rounds the sums.
//
//   registers   k or v of the wave's keys, sums of dv or dk
//   LDS         a tile of q and dout, as rows and transposed; k of all keys transposed; P and dS of the tile
//
// A tile takes three barriers: when it is in LDS, when P is, when dS is. On RDNA other workgroups of the unit fill the
// time; on gfx950 a wave has its SIMD to itself and reads operands ahead.
#pragma once

#include "backward/amd_in_turn.hpp"
#include "backward/amd_keys.hpp"
#include "backward/exchange.hpp"
#include "backward/sums.hpp"
#include "tile/several.hpp"

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

template <KernelSpec spec>
struct PairTypes : BackwardTypes<spec> {
  using Base = BackwardTypes<spec>;
  using Base::tile, Base::bucket, Base::dtype, Base::waves;
  using typename Base::Mma, typename Base::Block;
  static_assert(tile.roles == 2 && tile.buffers == 1 && !tile.shared_owned);
  static constexpr int together =
      Base::full || tile.waves_per_simd > 4 ? 2 : 0;  // steps of a product at a time
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
  constexpr bool in_turn = adds_in_turn(this_family);

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
  const WorkItem item = key_item(a, in_turn ? start_number(a) : arch::group());
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

  // Tiles of queries of one head after the other, from a block of the sums on; in turn, the last ones first.
  const Range seen = SeeingQueries(p.visibility, sequence, block_begin, tile.owned).any;
  constexpr int tile_start = in_turn ? tile.streamed : Sums::rows;
  const auto first_query =
      arch::uniform(static_cast<std::int32_t>(seen.begin / tile_start * tile_start));
  const std::int32_t tiles = arch::uniform(
      seen.empty() ? 0
                   : (static_cast<std::int32_t>(seen.end) - first_query + tile.streamed - 1) /
                         tile.streamed);
  const auto group = static_cast<std::int32_t>(p.group());
  struct Turn {
    std::int32_t head, query;
  };
  const std::int32_t last_query = first_query + (tiles - 1) * tile.streamed;
  const auto after = [&](Turn turn) {
    turn.query += in_turn ? -tile.streamed : tile.streamed;
    if (in_turn ? turn.query < first_query : turn.query >= first_query + tiles * tile.streamed)
      turn = {turn.head + 1, in_turn ? last_query : first_query};
    return turn;
  };
  [[maybe_unused]] const KeyTurns<tile.owned, tile.streamed> block_turns(p.visibility, sequence,
                                                                         item.block);
  const auto counter = [&](Turn turn) {
    return DqTurns(arch::again(a), sequence).counter(turn.head, turn.query);
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

  // Elsewhere the plan takes other kernels for some of the gradients alone.
  const bool wanted = !in_turn || (weights ? a.tensors.dv : a.tensors.dk);
  const Exchange exchange(shared_ds);
  typename Types::Sums sums[parts] = {};
  const std::int32_t turns = tiles * group;
  Turn turn{item.head * group, in_turn ? last_query : first_query}, before{};
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
    if constexpr (in_turn) {
      ROCFLASH_UNROLL
      for (int c = 0; c < parts; ++c) own[c].renew_numbers();
    }
    if (sees) {
      // S = Q·Kᵀ, or dP = dO·Vᵀ
      products<Scores, spec.bucket, Types::together, in_turn>(
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
    const bool adds = !in_turn || arch::again(a).dq_sums;
    [[maybe_unused]] std::uint32_t blocks_done = 0;
    if constexpr (in_turn) arch::await_stores();  // of the tile before
    arch::barrier();
    if constexpr (in_turn) {
      if (adds) {
        if (n > 0) block_turns.pass(counter(before));
        blocks_done = block_turns.ask(counter(turn), begin);
      }
    }
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
    if (sees && wanted)
      add_products<tile.streamed, Types::together>(
          sums, turned<typename Types::TurnedOperand>(shared_turned[1 - role], line), packed);

    // A tile of dQ is products of 16 columns. Sums in blocks have room for rows behind the last one.
    const int query_part = wave * Types::wave_strips / Types::strips,
              strip = wave * Types::wave_strips % Types::strips;
    constexpr bool blocks = sums_in_blocks(this_family);
    constexpr int row_bytes = 4 * spec.bucket;
    const auto sums_of_wave = [&] {
      const std::int32_t first_row = begin + query_part * Mma::rows;
      const auto rows = static_cast<std::int32_t>(smaller(sequence.sq - first_row, Mma::rows));
      const BackwardArguments& now = arch::again(a);
      return arch::Window(blocks ? reinterpret_cast<std::byte*>(
                                       Sums(now, sequence, turn.head).start(first_row, strip))
                                 : row_address<DType::f32>(now.dq_sums, sequence.batch,
                                                           sequence.q_row + first_row, turn.head) +
                                       4 * Mma::columns * strip,
                          rows <= 0 ? 0
                          : blocks  ? 4 * Sums::block_floats * Types::wave_strips
                                    : rows * row_bytes);
    };
    using Layout = typename Mma::Layout;
    // In turn: quads of neighbouring columns of a query.
    constexpr int quads = Mma::results / 4;
    [[maybe_unused]] Words4 sums_before[in_turn ? Types::wave_strips : 1][quads];
    const auto quad_place = [&](int part, int quad) {
      const int lane = arch::renewed_lane();
      return static_cast<std::uint32_t>(
          4 * (Layout::lane_column(lane) * Mma::rows + Layout::lane_row(lane)) +
          4 * (part * Sums::block_floats + Layout::register_row(4 * quad)));
    };
    if constexpr (in_turn) {
      if (adds) {
        block_turns.wait(counter(turn), blocks_done);
        const arch::Window from = sums_of_wave();
        ROCFLASH_UNROLL
        for (int part = 0; part < Types::wave_strips; ++part) {
          ROCFLASH_UNROLL
          for (int quad = 0; quad < quads; ++quad)
            sums_before[part][quad] = from.load16_shared(quad_place(part, quad));
        }
      }
    }
    arch::barrier();

    // dQ = dS·K; in turn, transposed: then a lane has neighbouring columns of a query.
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
    } else if (adds) {
      ROCFLASH_UNROLL
      for (int step = 0; step < dq_steps; ++step) {
        const typename Mma::Operand ds =
            exchange.template fragment<in_turn ? Side::right : Side::left>(query_part, step);
        ROCFLASH_UNROLL
        for (int part = 0; part < Types::wave_strips; ++part) {
          const typename Mma::Operand k = columns_of(part, step);
          dq[part] = Mma::multiply(in_turn ? k : ds, in_turn ? ds : k, dq[part]);
        }
      }
    }
    if constexpr (in_turn) {
      if (adds) {
        const arch::Window to = sums_of_wave();
        ROCFLASH_UNROLL
        for (int part = 0; part < Types::wave_strips; ++part) {
          ROCFLASH_UNROLL
          for (int quad = 0; quad < quads; ++quad) {
            Float4 sum = __builtin_bit_cast(Float4, sums_before[part][quad]);
            ROCFLASH_UNROLL
            for (int r = 0; r < 4; ++r) sum[r] += dq[part][4 * quad + r];
            to.store16(__builtin_bit_cast(Words4, sum), quad_place(part, quad));
          }
        }
      }
    } else {
      const arch::Window to = sums_of_wave();
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
    }
    if (n + 1 < turns) store();
    before = turn;
    turn = next;
  }
  if constexpr (in_turn) {
    if (turns > 0 && arch::again(a).dq_sums) {
      arch::await_stores();
      arch::barrier();
      block_turns.pass(counter(before));
    }
  }

  // dv or dk. Each step finds its position again rather than keep it in registers.
  struct Position {
    WorkItem item;
    SequenceView sequence;
    std::int32_t first;
    Position(const BackwardArguments& now, int part)
        : item(key_item(now, in_turn ? start_number_again() : arch::group())),
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
