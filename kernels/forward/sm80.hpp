// Forward on NVIDIA GPUs from sm_80 on. Each workgroup has one block of queries, each of its warps
// 16 or 32 of them, and loops over the key tiles.
//
//   registers       S of one tile, O; Q too where registers suffice
//   shared memory   Q; double-buffered K and V tiles, row-major; mask bounds of each query
//
// S = Q·Kᵀ and O += P·V. A lane holds two rows (queries) of each product. Two adjacent results,
// rounded, are the left operand of the second product without any exchange (arch/layout.hpp).
//
// Iteration: wait for the current tile; issue the cp.async of the next one; S; softmax; P·V. V is
// transposed by ldmatrix. One barrier per iteration suffices: after it the current tile has arrived
// and no warp reads the previous one.
//
// Register pressure limits this kernel. What only masked tiles and the epilogue need is computed
// again there.
#pragma once

#include "arch/arch.hpp"
#include "attention/cp_async_rows.hpp"
#include "attention/epilogue.hpp"
#include "attention/exact_recompute.hpp"
#include "attention/non_finite_rows.hpp"
#include "attention/online_softmax.hpp"
#include "attention/rows.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "attention/zero_unused_rows.hpp"
#include "table/features.hpp"
#include "table/forward.hpp"
#include "tile/sm80.hpp"

namespace rocflash::kernel {

// Types and shared memory layout of one kernel.
template <KernelSpec spec>
struct ForwardTypes : OfSpec<spec> {
  using OfSpec<spec>::dtype, OfSpec<spec>::bucket, OfSpec<spec>::generic;
  static constexpr Variant variant = spec.variant;
  static constexpr ForwardTile tile = forward_tile(this_family, spec);

  using Mma = arch::Mma<dtype>;
  using Domain = typename ScoreDomainOf<dtype, generic>::Type;
  using Softmax = BasicOnlineSoftmax<Domain>;
  using Rows = SharedRows<bucket * element_bytes<dtype>>;
  static constexpr int warp_queries = tile.queries / (tile.threads / arch::wave_size);

  using Queries = ResidentA<Mma, Rows, warp_queries, bucket, tile.shared_queries>;  // Q
  using KeyOperand = KMajorB<Mma, Rows>;                                            // Kᵀ
  using ValueOperand = NMajorB<Mma, Rows>;                                          // V
  using Scores = WarpTile<Mma, warp_queries, tile.keys>;
  using Outputs = WarpTile<Mma, warp_queries, bucket>;
  static constexpr int lane_queries = Scores::lane_rows;

  template <int count>
  using Copy = CpAsyncTile<dtype, bucket, count, tile.threads, variant>;

  // Shared memory: Q, two K tiles, two V tiles, mask bounds of each query. With Q in registers the
  // tiles may reuse its storage.
  static constexpr int tile_bytes = tile.keys * Rows::bytes,
                       query_bytes = tile.queries * Rows::bytes;
  static constexpr int tiles_and_q_bytes = tile.dynamic_shared - tile.queries * 8;
  static constexpr bool tiles_reuse_q = tiles_and_q_bytes < query_bytes + 4 * tile_bytes;
  static_assert(tiles_and_q_bytes >= 4 * tile_bytes && tiles_and_q_bytes >= query_bytes &&
                (!tile.shared_queries || !tiles_reuse_q));
  static_assert(tile.threads >= tile.queries);
  static SharedAddress q() { return arch::shared_begin(); }
  static SharedAddress k() { return q() + (tiles_reuse_q ? 0 : query_bytes); }
  static SharedAddress v() { return k() + 2 * tile_bytes; }
  static SharedAddress mask_bounds(int query) {
    return q() + tiles_and_q_bytes + static_cast<std::uint32_t>(8 * query);
  }
};

// Mask bounds of a query, which only masked tiles need: kept in shared memory.
template <class Types>
void store_mask_bounds(int offset, const QueryView& query) {
  arch::store_shared(Types::mask_bounds(offset), Words2{static_cast<std::uint32_t>(query.begin),
                                                        static_cast<std::uint32_t>(query.end)});
}
template <class Types>
QueryView load_mask_bounds(int offset, std::int32_t block_begin) {
  const Words2 keys = arch::load_shared8(Types::mask_bounds(offset));
  QueryView query;
  query.index = block_begin + offset;
  query.begin = static_cast<std::int32_t>(keys.x);
  query.end = static_cast<std::int32_t>(keys.y);
  return query;
}

// Dropout mask of 32 keys from `first` on. Four adjacent lanes share a query: each draws eight
// keys.
inline std::uint32_t kept_by_row(const ScoreMod& score_mod, std::int32_t query,
                                 std::int32_t first) {
  const int lane_key = arch::lane() % row_lanes * dropout_keys;
  return row_union(score_mod.kept(query, first + lane_key) << lane_key);
}

// Updates the running max of rows whose largest score exceeds it by the threshold, and rescales O.
template <class Types, class Domain>
void update_row_max(BasicOnlineSoftmax<Domain> (&softmax)[Types::lane_queries],
                    const typename Types::Scores& scores, float score_scale,
                    typename Types::Outputs& out) {
  float largest[Types::lane_queries];
  bool needs_rescale = false;
  ROCFLASH_UNROLL
  for (int i = 0; i < Types::lane_queries; ++i) {
    largest[i] = row_maximum(scores, i) * score_scale;
    needs_rescale |= softmax[i].needs_rescale(largest[i]);
  }
  if (!arch::any(needs_rescale)) return;
  ROCFLASH_UNROLL
  for (int i = 0; i < Types::lane_queries; ++i) out.scale_row(i, softmax[i].rescale(largest[i]));
}

// P = exp(S · score_scale − row max) and O += P·V, 16 keys (f32: 32) at a time, so that the MMAs of
// some keys overlap with the exponentials of the next. kept(i, key) is kept_by_row of query i from
// key `key` of the tile on.
template <class Types, bool dropping, class Domain, class Kept>
void exp2_and_row_sum(BasicOnlineSoftmax<Domain> (&softmax)[Types::lane_queries],
                      typename Types::Scores& scores, float score_scale,
                      const typename Types::ValueOperand& v, typename Types::Outputs& out, int lane,
                      Kept kept) {
  using Mma = typename Types::Mma;
  constexpr int batch_keys = Mma::together * Mma::depth;
  constexpr int columns = batch_keys / row_lanes;  // of a lane
  constexpr int draw_keys = 32;                    // keys of one dropout mask
  [[maybe_unused]] std::uint32_t bits[Types::lane_queries];
  ROCFLASH_UNROLL
  for (int begin = 0; begin < Types::tile.keys; begin += batch_keys) {
    const int first = begin / row_lanes;
    ROCFLASH_UNROLL
    for (int i = 0; i < Types::lane_queries; ++i) {
      ROCFLASH_UNROLL
      for (int n = first; n < first + columns; ++n) {
        float& x = scores.at(i, n);
        x = Domain::exp(__builtin_fmaf(x, score_scale, -softmax[i].base()));
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

// Epilogue of a warp: row sums, sink, normalization, and coalesced stores through shared memory. It
// computes the work tile again, so that the main loop need not keep it in registers.
template <KernelSpec spec>
void store_outputs(
    const ForwardArguments& a,
    const typename ForwardTypes<spec>::Softmax (&softmax)[ForwardTypes<spec>::lane_queries],
    const typename ForwardTypes<spec>::Outputs& out) {
  using Types = ForwardTypes<spec>;
  using Outputs = typename Types::Outputs;
  using Rows = typename Types::Rows;
  using Block = RowBlock<spec.dtype, spec.variant, false>;
  constexpr int lane_queries = Types::lane_queries;

  const Problem& p = a.problem;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads),
                      static_cast<std::int32_t>(
                          arch::opaque_vgpr(static_cast<std::uint32_t>(arch::workgroup_id()))));
  const SequenceView sequence(p, item.batch);
  const int thread = arch::opaque_thread();
  const int lane = thread % arch::wave_size,
            warp_row = thread / arch::wave_size * Types::warp_queries;
  const std::int32_t warp_begin = item.block * Types::tile.queries + warp_row;
  const SharedAddress rows = Types::q() + static_cast<std::uint32_t>(warp_row * Rows::bytes);
  constexpr int chunk_columns = 16 / element_bytes<spec.dtype>;
  const SoftmaxFinalizer<spec.variant, typename Types::Domain> end(
      p, item.head, Types::generic && has_score_modifiers(p));

  arch::cp_async_wait<0>();
  arch::barrier();  // other warps may still read the last tiles
  NonFiniteRows non_finite;
  ROCFLASH_UNROLL
  for (int i = 0; i < lane_queries; ++i) {
    const Normalizer normalizer = end(softmax[i].row_max, row_sum(softmax[i].sum));
    const int row = Outputs::row(lane, i);
    const std::int32_t query = warp_begin + row;
    const bool in_use = query < sequence.sq;
    if (a.outputs.lse && lane % row_lanes == 0 && query < sequence.q_rows)
      store_lse(a.outputs, sequence, item.head, query, normalizer.lse);

    const float probe =
        stage_row<spec.dtype, Rows>(out, i, normalizer.factor, rows, row, 0, lane, in_use);
    non_finite.add(
        i, in_use && (__builtin_fmaf(normalizer.factor, 0.0f, probe) != 0 || products_overflow(p)));
  }
  arch::syncwarp();

  const Block to(a.outputs.out, 0, sequence.batch, sequence.q_row + warp_begin,
                 sequence.q_rows - warp_begin, item.head);
  for (int n = lane; n < Types::warp_queries * Rows::chunks; n += arch::wave_size) {
    const int row = n / Rows::chunks, chunk = n % Rows::chunks;
    const Words4 words =
        arch::load_shared(rows + static_cast<std::uint32_t>(Rows::offset(row, chunk)));
    to.store8(words, Block::offset(a.outputs.out, row, chunk_columns * chunk));
  }

  arch::syncwarp();
  while (non_finite.any()) {
    const auto row = non_finite.take();
    const QueryView query(p.visibility, sequence,
                          warp_begin + Outputs::row(row.first_lane, row.which));
    recompute_row(ExactScores<spec.dtype>{p, sequence, item.head, a.caches}, query, a.outputs);
  }
}

template <KernelSpec spec>
void forward(const ForwardArguments& a) {
  using Types = ForwardTypes<spec>;
  using Rows = typename Types::Rows;
  using Scores = typename Types::Scores;
  constexpr ForwardTile tile = Types::tile;
  constexpr bool generic = Types::generic, tiles_reuse_q = Types::tiles_reuse_q;
  constexpr int lane_queries = Types::lane_queries;

  // Work tile and visible keys.
  const Problem& p = a.problem;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), arch::workgroup_id());
  zero_unused_rows<tile.threads>(a, item, spec.dtype);
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.queries;
  if (block_begin >= sequence.q_rows) return;
  const VisibleKeys visible(p.visibility, sequence, block_begin, tile.queries);
  const auto first_key =
                 static_cast<std::int32_t>(visible.by_any.begin / dropout_keys * dropout_keys),
             end_key = static_cast<std::int32_t>(visible.by_any.end);
  if (const int n = arch::thread(); n < tile.queries)
    store_mask_bounds<Types>(n, QueryView(p.visibility, sequence, block_begin + n));

  const std::int64_t first_row = sequence.k_row + first_key, kv_head = p.kv_head(item.head);
  using KeyCopy = typename Types::template Copy<tile.keys>;
  KeyCopy next_k(p.k, a.caches, sequence.batch, first_row, kv_head);
  KeyCopy next_v(p.v, a.caches, sequence.batch, first_row, kv_head);
  // Issues the cp.async of the tile that starts `left` keys before the end of the visible keys.
  const auto load_tile = [&](std::int32_t left, std::uint32_t buffer) {
    if (left > 0) {
      next_k.next(Types::k() + buffer, left);
      next_v.next(Types::v() + buffer, left);
    }
    arch::cp_async_commit();
  };

  // Q to shared memory, and on to registers where they suffice.
  const ScaleOf<typename Types::Domain> scale(p.scale);
  using QueryCopy = typename Types::template Copy<tile.queries>;
  QueryCopy(p.q, 0, sequence.batch, sequence.q_row + block_begin, item.head)
      .next(Types::q(), sequence.sq - block_begin);
  arch::cp_async_commit();
  if (scale.negate_q) {
    arch::cp_async_wait<0>();
    negate_tile<spec.dtype, spec.bucket, tile.queries, tile.threads>(Types::q());
  }
  if (!tiles_reuse_q) load_tile(end_key - first_key, 0);
  const int l = arch::lane();
  typename Types::Queries q(operand_address<Rows>(
      Types::q() + static_cast<std::uint32_t>(arch::wave() * Types::warp_queries * Rows::bytes),
      matrices_down(l)));
  const SharedAddress own_k = operand_address<Rows>(Types::k(), matrices_across(l)),
                      own_v = Types::ValueOperand::first(Types::v(), 0, l);
  if constexpr (!tile.shared_queries) {
    arch::cp_async_wait<tiles_reuse_q ? 0 : 1>();
    arch::barrier();
    q.load();
    if (tiles_reuse_q) {
      arch::barrier();
      load_tile(end_key - first_key, 0);
    }
  }

  const ScoreMod score_mod(p, sequence, item.head);
  const bool modifies_scores = generic && has_score_modifiers(p);
  const float score_scale = modifies_scores ? 1 : scale.softmax_scale;
  const bool dropout = generic && p.dropout.on();
  typename Types::Softmax softmax[lane_queries];
  typename Types::Outputs out = {};

  // Keys that all queries attend to, counted backwards from the end of the visible keys.
  const auto unmasked_from = static_cast<std::int32_t>(end_key - visible.by_all.begin),
             unmasked_to = static_cast<std::int32_t>(end_key - visible.by_all.end);
  std::uint32_t buffer = 0;  // byte offset of the current tile in the storage of K and of V
  for (std::int32_t left = end_key - first_key; left > 0;
       left -= tile.keys, buffer = Types::tile_bytes - buffer) {
    arch::cp_async_wait<0>();
    arch::barrier();
    load_tile(left - tile.keys, Types::tile_bytes - buffer);

    const std::int32_t begin = end_key - left, end = begin + tile.keys;
    const bool masked = left > unmasked_from || left - tile.keys < unmasked_to;
    const int thread = arch::opaque_thread(), lane = thread % arch::wave_size;
    const auto query_at = [&](int i) {  // query i of the lane
      const int offset = thread / arch::wave_size * Types::warp_queries + Scores::row(lane, i);
      return load_mask_bounds<Types>(offset, block_begin);
    };
    if (masked) {
      bool attends_to = false;
      ROCFLASH_UNROLL
      for (int i = 0; i < lane_queries; ++i) {
        const QueryView query = query_at(i);
        attends_to |= begin < query.end && end > query.begin;
      }
      if (!arch::any(attends_to)) continue;
    }

    // S = Q·Kᵀ
    Scores scores = {};
    add_product<spec.bucket>(scores, q,
                             typename Types::KeyOperand{arch::opaque_vgpr(own_k + buffer)});
    if (modifies_scores || masked) {
      const auto key_at = [first = begin + Scores::lane_column(lane)](int n) {
        return first + Scores::column(n);
      };
      for_each<lane_queries>([&](int i) {
        const QueryView query = query_at(i);
        if constexpr (Types::generic) {
          if (modifies_scores)
            score_mod.template apply<Scores::lane_columns, typename Types::Domain>(
                OneQuery{query.index}, key_at, [&](int n) -> float& { return scores.at(i, n); });
        }
        if (masked) {
          ROCFLASH_UNROLL
          for (int n = 0; n < Scores::lane_columns; ++n)
            scores.at(i, n) = query.attends_to(key_at(n)) ? scores.at(i, n) : -infinity;
        }
      });
    }

    update_row_max<Types>(softmax, scores, score_scale, out);

    // O += P·V
    const typename Types::ValueOperand v{arch::opaque_vgpr(own_v + buffer)};
    const auto kept = [&](int i, int key) {
      return kept_by_row(score_mod, query_at(i).index, begin + key);
    };
    if (dropout) {
      exp2_and_row_sum<Types, true>(softmax, scores, score_scale, v, out, lane, kept);
    } else {
      exp2_and_row_sum<Types, false>(softmax, scores, score_scale, v, out, lane, kept);
    }
  }
  store_outputs<spec>(a, softmax, out);
}

}  // namespace rocflash::kernel
