// Forward on NVIDIA GPUs from sm_80 on. Each workgroup handles one block of queries, each of its
// warps 16 or 32 of them; it takes one tile of keys after the other.
//
//   registers       the scores of one tile, outputs; q too where there is room for it
//   shared memory   q; two tiles of k and of v as they are in memory, one in use and one on its
//   way; which keys each
//                   query sees
//
// scores = Q·Kᵀ and out += P·V. A lane holds two rows (queries) of each product, and two results
// side by side are, rounded, the left operand of the second product as they stand
// (arch/layout.hpp).
//
// An iteration of the loop: wait for the present tile; start the copies of the next one; scores;
// softmax; outputs. Copies go from global to shared memory past the registers, and v is transposed
// on its way into them. One barrier per iteration is enough: after it the present tile has arrived,
// and no warp reads the tile before it any more.
//
// Registers limit this kernel, and ptxas allocates them. What only edges and the end need is
// computed again there.
#pragma once

#include "arch/arch.hpp"
#include "attention/async_rows.hpp"
#include "attention/broken_rows.hpp"
#include "attention/epilogue.hpp"
#include "attention/exact.hpp"
#include "attention/outside.hpp"
#include "attention/rows.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"
#include "table/forward.hpp"
#include "tile/sm80.hpp"

namespace rocflash::kernel {

// The types and the shared memory of one kernel.
template <KernelSpec spec>
struct ForwardTypes : OfSpec<spec> {
  using OfSpec<spec>::dtype, OfSpec<spec>::bucket, OfSpec<spec>::full;
  static constexpr Variant variant = spec.variant;
  static constexpr ForwardTile tile = forward_tile(this_family, spec);

  using Mma = arch::Mma<dtype>;
  using Unit = typename UnitOf<dtype>::Type;
  using Softmax = SoftmaxOf<Unit>;
  using Rows = SharedRows<bucket * number_bytes<dtype>>;
  static constexpr int warp_queries = tile.queries / (tile.threads / arch::wave_size);

  using Queries = KeptRows<Mma, Rows, warp_queries, bucket, tile.shared_queries>;  // Q
  using KeyOperand = RightRows<Mma, Rows>;                                         // Kᵀ
  using ValueOperand = RightColumns<Mma, Rows>;                                    // V
  using Scores = WarpTile<Mma, warp_queries, tile.keys>;
  using Outputs = WarpTile<Mma, warp_queries, bucket>;
  static constexpr int lane_queries = Scores::lane_rows;

  template <int count>
  using Copy = TileCopy<dtype, bucket, count, tile.threads, variant>;

  // Shared memory: q, then two tiles of k, two of v, and the keys that each query sees. Where q
  // moves to registers the tiles may take its place.
  static constexpr int tile_bytes = tile.keys * Rows::bytes,
                       query_bytes = tile.queries * Rows::bytes;
  static constexpr int room = tile.dynamic_shared - tile.queries * 8;
  static constexpr bool q_makes_room = room < query_bytes + 4 * tile_bytes;
  static_assert(room >= 4 * tile_bytes && room >= query_bytes &&
                (!tile.shared_queries || !q_makes_room));
  static_assert(tile.threads >= tile.queries);
  static SharedAddress q() { return arch::shared_begin(); }
  static SharedAddress k() { return q() + (q_makes_room ? 0 : query_bytes); }
  static SharedAddress v() { return k() + 2 * tile_bytes; }
  static SharedAddress seen_keys(int query) {
    return q() + room + static_cast<std::uint32_t>(8 * query);
  }
};

// The keys that a query of the block sees, which only edges need: kept in shared memory.
template <class Types>
void store_seen_keys(int offset, const QueryView& query) {
  arch::store_shared(Types::seen_keys(offset), Words2{static_cast<std::uint32_t>(query.begin),
                                                      static_cast<std::uint32_t>(query.end)});
}
template <class Types>
QueryView load_seen_keys(int offset, std::int32_t block_begin) {
  const Words2 keys = arch::load_shared8(Types::seen_keys(offset));
  QueryView query;
  query.index = block_begin + offset;
  query.begin = static_cast<std::int32_t>(keys.x);
  query.end = static_cast<std::int32_t>(keys.y);
  return query;
}

// Which of 32 keys, from `first` on, dropout keeps for a query that four neighbouring lanes share:
// each lane draws for eight of them.
inline std::uint32_t kept_by_row(const ScoreShape& shape, const QueryView& query,
                                 std::int32_t first) {
  const int part = arch::lane() % row_lanes * dropout_keys;
  return row_union(shape.kept(query, first + part) << part);
}

// Where the largest scores have grown far beyond the references, moves those and rescales the
// outputs.
template <class Types, class Unit>
void follow_largest(SoftmaxOf<Unit> (&softmax)[Types::lane_queries],
                    const typename Types::Scores& scores, float unit,
                    typename Types::Outputs& out) {
  float largest[Types::lane_queries];
  bool behind = false;
  ROCFLASH_UNROLL
  for (int i = 0; i < Types::lane_queries; ++i) {
    largest[i] = row_maximum(scores, i) * unit;
    behind |= softmax[i].behind(largest[i]);
  }
  if (!arch::any(behind)) return;
  ROCFLASH_UNROLL
  for (int i = 0; i < Types::lane_queries; ++i) out.scale_row(i, softmax[i].follow(largest[i]));
}

// weights = exp(scores · unit − reference) and out += P · V, 16 keys (f32: 32) at a time, so that the
// products of some run beside the exponentials of the next. kept(i, key) is kept_by_row of query i,
// from key `key` of the tile on.
template <class Types, bool dropping, class Unit, class Kept>
void weigh_values(SoftmaxOf<Unit> (&softmax)[Types::lane_queries], typename Types::Scores& scores,
                  float unit, const typename Types::ValueOperand& v, typename Types::Outputs& out,
                  int lane, Kept kept) {
  using Mma = typename Types::Mma;
  constexpr int together = Mma::together * Mma::depth;           // keys
  constexpr int columns = together / row_lanes, draw_keys = 32;  // of a lane
  [[maybe_unused]] std::uint32_t bits[Types::lane_queries];
  ROCFLASH_UNROLL
  for (int begin = 0; begin < Types::tile.keys; begin += together) {
    const int first = begin / row_lanes;
    ROCFLASH_UNROLL
    for (int i = 0; i < Types::lane_queries; ++i) {
      ROCFLASH_UNROLL
      for (int n = first; n < first + columns; ++n) {
        float& x = scores.at(i, n);
        x = Unit::exp(__builtin_fmaf(x, unit, -softmax[i].base()));
        softmax[i].sum += x;
      }
      if constexpr (dropping) {
        if (begin % draw_keys == 0) bits[i] = kept(i, begin) >> Types::Scores::lane_column(lane);
        ROCFLASH_UNROLL
        for (int n = 0; n < columns; ++n) {
          const bool keep = bits[i] >> (begin % draw_keys + Types::Scores::column(n)) & 1u;
          scores.at(i, first + n) = keep ? scores.at(i, first + n) : 0;
        }
      }
    }
    add_steps(out, rounded<Types::dtype>(scores), v, begin / Mma::depth);
  }
}

// The end of a warp's work: sums over the lanes of each query, the sink, one division, and the
// stores, by way of shared memory, which brings the columns of a row together. It computes its
// position again, so that the loop need not keep it.
template <KernelSpec spec>
void finish(const ForwardArguments& a,
            const typename ForwardTypes<spec>::Softmax (&softmax)[ForwardTypes<spec>::lane_queries],
            const typename ForwardTypes<spec>::Outputs& out) {
  using Types = ForwardTypes<spec>;
  using Outputs = typename Types::Outputs;
  using Rows = typename Types::Rows;
  using Block = RowBlock<spec.dtype, spec.variant, false>;
  constexpr int lane_queries = Types::lane_queries;

  const Problem& p = a.problem;
  const WorkItem item(
      a.work, static_cast<std::int32_t>(p.heads),
      static_cast<std::int32_t>(arch::renew(static_cast<std::uint32_t>(arch::group()))));
  const SequenceView sequence(p, item.batch);
  const int thread = arch::renewed_thread();
  const int lane = thread % arch::wave_size,
            warp_row = thread / arch::wave_size * Types::warp_queries;
  const std::int32_t warp_begin = item.block * Types::tile.queries + warp_row;
  const SharedAddress rows = Types::q() + static_cast<std::uint32_t>(warp_row * Rows::bytes);
  constexpr int chunk_columns = 16 / number_bytes<spec.dtype>;
  const Finish<spec.variant, typename Types::Unit> end(p, item.head);

  arch::wait_for_copies<0>();
  arch::barrier();  // the last tiles may still be in use
  float factors[lane_queries];
  BrokenRows broken;
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) {
    const Normaliser normaliser = end(softmax[i].reference, row_sum(softmax[i].sum));
    factors[i] = normaliser.factor;
    const int row = Outputs::row(lane, i);
    const std::int32_t query = warp_begin + row;
    const bool in_use = query < sequence.sq;
    if (a.outputs.lse && lane % row_lanes == 0 && query < sequence.q_rows)
      store_lse(a.outputs, sequence, item.head, query, normaliser.lse);

    const float probe =
        stage_row<spec.dtype, Rows>(out, i, normaliser.factor, rows, row, 0, lane, in_use);
    broken.add(i, in_use && (probe != 0 || products_overflow(p)));
  }
  arch::wave_barrier();

  const Block to(a.outputs.out, 0, sequence.batch, sequence.q_row + warp_begin,
                 sequence.q_rows - warp_begin, item.head);
  for (int n = lane; n < Types::warp_queries * Rows::chunks; n += arch::wave_size) {
    const int row = n / Rows::chunks, chunk = n % Rows::chunks;
    const Words4 words =
        arch::load_shared(rows + static_cast<std::uint32_t>(Rows::offset(row, chunk)));
    to.store8(words, Block::offset(a.outputs.out, row, chunk_columns * chunk));
  }

  arch::wave_barrier();
  while (broken.any()) {
    const auto row = broken.take();
    const RowNormal normal(row, softmax, factors);
    const QueryView query(p.visibility, sequence,
                          warp_begin + Outputs::row(row.first_lane, row.which));
    repair(ExactScores<spec.dtype>{p, sequence, item.head, a.caches}, query, normal.base,
           normal.factor, a.outputs);
  }
}

template <KernelSpec spec>
void forward(const ForwardArguments& a) {
  using Types = ForwardTypes<spec>;
  using Rows = typename Types::Rows;
  using Scores = typename Types::Scores;
  constexpr ForwardTile tile = Types::tile;
  constexpr bool full = Types::full, q_makes_room = Types::q_makes_room;
  constexpr int lane_queries = Types::lane_queries;

  // The workgroup's queries and the keys that they see.
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), arch::group());
  clear_outside<tile.threads>(a, item, spec.dtype);
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.queries;
  if (block_begin >= sequence.q_rows) return;
  const SeenKeys seen(p.visibility, sequence, block_begin, tile.queries);
  const auto first_key = static_cast<std::int32_t>(seen.by_any.begin / dropout_keys * dropout_keys),
             end_key = static_cast<std::int32_t>(seen.by_any.end);
  if (const int n = arch::thread(); n < tile.queries)
    store_seen_keys<Types>(n, QueryView(p.visibility, sequence, block_begin + n));

  const std::int64_t first_row = sequence.k_row + first_key, kv_head = p.kv_head(item.head);
  using KeyCopy = typename Types::template Copy<tile.keys>;
  KeyCopy next_k(p.k, a.caches, sequence.batch, first_row, kv_head);
  KeyCopy next_v(p.v, a.caches, sequence.batch, first_row, kv_head);
  // Starts the copies of the tile that starts `left` keys before the last one seen.
  const auto copy_tile = [&](std::int32_t left, std::uint32_t half) {
    if (left > 0) {
      next_k.next(Types::k() + half, left);
      next_v.next(Types::v() + half, left);
    }
    arch::commit_copies();
  };

  // q to shared memory, and from there to registers where they hold it.
  const ScaleOf<typename Types::Unit> scale(p.scale);
  using QueryCopy = typename Types::template Copy<tile.queries>;
  QueryCopy(p.q, 0, sequence.batch, sequence.q_row + block_begin, item.head)
      .next(Types::q(), sequence.sq - block_begin);
  arch::commit_copies();
  if (scale.turn_sign) {
    arch::wait_for_copies<0>();
    turn_signs<spec.dtype, spec.bucket, tile.queries, tile.threads>(Types::q());
  }
  if (!q_makes_room) copy_tile(end_key - first_key, 0);
  const int l = arch::lane();
  typename Types::Queries q(operand_address<Rows>(
      Types::q() + static_cast<std::uint32_t>(arch::wave() * Types::warp_queries * Rows::bytes),
      matrices_down(l)));
  const SharedAddress own_k = operand_address<Rows>(Types::k(), matrices_across(l)),
                      own_v = Types::ValueOperand::first(Types::v(), 0, l);
  if constexpr (!tile.shared_queries) {
    arch::wait_for_copies<q_makes_room ? 0 : 1>();
    arch::barrier();
    q.load();
    if (q_makes_room) {
      arch::barrier();
      copy_tile(end_key - first_key, 0);
    }
  }

  const ScoreShape shape(p, sequence, item.head);
  const bool shaped = full && (p.scale == 0 || p.softcap > 0 || p.alibi || p.bias || p.mask);
  const float unit = shaped ? 1 : scale.unit;
  const bool dropout = full && p.dropout.on();
  typename Types::Softmax softmax[lane_queries];
  typename Types::Outputs out = {};

  // What all queries see, counted backwards from the last key that one of them sees.
  const auto common_from = static_cast<std::int32_t>(end_key - seen.by_all.begin),
             common_to = static_cast<std::int32_t>(end_key - seen.by_all.end);
  std::uint32_t half = 0;  // of the shared memory of k and v, where the present tile is
  for (std::int32_t left = end_key - first_key; left > 0;
       left -= tile.keys, half = Types::tile_bytes - half) {
    arch::wait_for_copies<0>();
    arch::barrier();
    copy_tile(left - tile.keys, Types::tile_bytes - half);

    const std::int32_t begin = end_key - left, end = begin + tile.keys;
    const bool edge = left > common_from || left - tile.keys < common_to;
    const int thread = arch::renewed_thread(), lane = thread % arch::wave_size;
    const auto query_at = [&](int i) {  // query i of the lane
      const int offset = thread / arch::wave_size * Types::warp_queries + Scores::row(lane, i);
      return load_seen_keys<Types>(offset, block_begin);
    };
    if (edge) {
      bool sees = false;
      ROCFLASH_UNROLL
      for (int i = 0; i < lane_queries; ++i) {
        const QueryView query = query_at(i);
        sees |= begin < query.end && end > query.begin;
      }
      if (!arch::any(sees)) continue;
    }

    // scores = Q · Kᵀ
    Scores scores = {};
    add_product<spec.bucket>(scores, q, typename Types::KeyOperand{arch::renew(own_k + half)});
    if (shaped || edge) {
      const auto key_at = [first = begin + Scores::lane_column(lane)](int n) {
        return first + Scores::column(n);
      };
      for_each<lane_queries>([&](int i) {
        const QueryView query = query_at(i);
        if (shaped) {
          shape.template shape<Scores::lane_columns, typename Types::Unit>(
              query, [&](int n) -> float& { return scores.at(i, n); }, key_at);
        }
        if (edge) {
          ROCFLASH_UNROLL
          for (int n = 0; n < Scores::lane_columns; ++n)
            scores.at(i, n) = query.sees(key_at(n)) ? scores.at(i, n) : -infinity;
        }
      });
    }

    follow_largest<Types>(softmax, scores, unit, out);

    // out += P · V
    const typename Types::ValueOperand v{arch::renew(own_v + half)};
    const auto kept = [&](int i, int key) { return kept_by_row(shape, query_at(i), begin + key); };
    if (dropout) {
      weigh_values<Types, true>(softmax, scores, unit, v, out, lane, kept);
    } else {
      weigh_values<Types, false>(softmax, scores, unit, v, out, lane, kept);
    }
  }
  finish<spec>(a, softmax, out);
}

}  // namespace rocflash::kernel
