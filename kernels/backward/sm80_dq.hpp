// Deterministic dQ on NVIDIA GPUs from sm_80 on: each workgroup owns a block of queries, each warp
// 16 of them, and tiles of keys stream through shared memory. The loop of forward with other
// products:
//
//   S = Q·Kᵀ   dP = dO·Vᵀ   dQ += dS·K
//
// dS stays in registers: two adjacent results are, rounded, the A operand of the last product.
#pragma once

#include "arch/arch.hpp"
#include "attention/cp_async_rows.hpp"
#include "attention/rows.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "backward/exact_recompute.hpp"
#include "backward/sm80_scores.hpp"
#include "table/backward.hpp"
#include "table/features.hpp"
#include "tile/sm80.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct QueryBlockTypes {
  static constexpr BackwardTile tile = backward_tile(this_family, spec);
  static constexpr int warp_queries = 16;
  static_assert(tile.threads / arch::wave_size * warp_queries == tile.owned);
  using Mma = arch::Mma<spec.dtype>;
  using Rows = SharedRows<spec.bucket * element_bytes<spec.dtype>>;
  using Scores = WarpTile<Mma, warp_queries, tile.streamed>;
  using Sums = WarpTile<Mma, warp_queries, spec.bucket>;
  template <int count>
  using Copy = CpAsyncTile<spec.dtype, spec.bucket, count, tile.threads, spec.variant>;

  // Shared memory: q, dout, two stages of k and of v.
  static constexpr std::uint32_t query_bytes = tile.owned * Rows::bytes,
                                 tile_bytes = tile.streamed * Rows::bytes;
  static_assert(2 * query_bytes + 4 * tile_bytes == tile.dynamic_shared);
  static SharedAddress q() { return arch::shared_begin(); }
  static SharedAddress dout() { return q() + query_bytes; }
  static SharedAddress k() { return q() + 2 * query_bytes; }
  static SharedAddress v() { return k() + 2 * tile_bytes; }
};

// Epilogue of a warp: stages dQ in shared memory for row-contiguous stores.
template <KernelSpec spec>
void epilogue_dq(const BackwardArguments& a, const typename QueryBlockTypes<spec>::Sums& dq) {
  using Types = QueryBlockTypes<spec>;
  using Sums = typename Types::Sums;
  using Rows = typename Types::Rows;
  using Block = RowBlock<spec.dtype, spec.variant, false>;
  const Problem& p = a.problem;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads),
                      static_cast<std::int32_t>(
                          arch::opaque_vgpr(static_cast<std::uint32_t>(arch::workgroup_id()))));
  const SequenceView sequence(p, item.batch);
  const int thread = arch::opaque_thread(), lane = thread % arch::wave_size,
            first = thread / arch::wave_size * Types::warp_queries;
  const std::int32_t begin = item.block * Types::tile.owned + first;
  const SharedAddress rows = Types::q() + static_cast<std::uint32_t>(first * Rows::bytes);
  const float factor = p.scale * p.dropout.scale();

  arch::cp_async_wait<0>();
  arch::barrier();
  std::uint32_t non_finite = 0;  // bit 4 r + i: row i of the lanes of row r
  ROCFLASH_UNROLL
  for (int i = 0; i < Sums::lane_rows; ++i) {
    const int row = Sums::row(lane, i);
    const float probe = stage_row<spec.dtype, Rows>(dq, i, factor, rows, row, 0, lane);
    std::uint32_t lanes = arch::ballot(probe != 0 || products_overflow(p));
    lanes |= lanes >> 1;
    lanes |= lanes >> 2;
    non_finite |= (lanes & 0x11111111u) << i;
  }
  arch::syncwarp();

  const Block to(a.tensors.dq, 0, sequence.batch, sequence.q_row + begin, sequence.sq - begin,
                 item.head);
  for (int n = lane; n < Types::warp_queries * Rows::chunks; n += arch::wave_size) {
    const int row = n / Rows::chunks, chunk = n % Rows::chunks;
    const Words4 words =
        arch::load_shared(rows + static_cast<std::uint32_t>(Rows::offset(row, chunk)));
    to.store8(words, Block::offset(a.tensors.dq, row, 8 * chunk));
  }
  arch::syncwarp();
  while (non_finite != 0) {
    const int bit = __builtin_ctz(non_finite);
    non_finite &= non_finite - 1;
    const std::int32_t query = begin + Sums::row(bit, bit % row_lanes);
    if (query < sequence.sq) exact_dq<spec.dtype>(a, sequence, item.head, query, factor);
  }
}

template <KernelSpec spec>
void backward_dq(const BackwardArguments& a) {
  using Types = QueryBlockTypes<spec>;
  using Rows = typename Types::Rows;
  using Mma = typename Types::Mma;
  using Scores = typename Types::Scores;
  constexpr BackwardTile tile = Types::tile;

  const Problem& p = a.problem;
  const BackwardTensors& t = a.tensors;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const std::int32_t block_begin = item.block * tile.owned;
  if (block_begin >= sequence.sq) return;
  const VisibleKeys visible(p.visibility, sequence, block_begin, tile.owned);
  const Span common = block_begin + tile.owned > sequence.sq ? Range{} : visible.by_all;
  const auto first_key =
                 static_cast<std::int32_t>(visible.by_any.begin / dropout_keys * dropout_keys),
             end_key = static_cast<std::int32_t>(visible.by_any.end);

  using KeyCopy = typename Types::template Copy<tile.streamed>;
  const std::int64_t first_row = sequence.k_row + first_key, kv_head = p.kv_head(item.head);
  KeyCopy next_k(p.k, 0, sequence.batch, first_row, kv_head);
  KeyCopy next_v(p.v, 0, sequence.batch, first_row, kv_head);
  // Keys past the visible range are not loaded: they may not exist.
  const auto load_tile = [&](std::int32_t begin, std::uint32_t half) {
    if (begin < end_key) {
      next_k.next(Types::k() + half, end_key - begin);
      next_v.next(Types::v() + half, end_key - begin);
    }
    arch::cp_async_commit();
  };
  {
    using QueryCopy = typename Types::template Copy<tile.owned>;
    const std::int64_t row = sequence.q_row + block_begin;
    const std::int32_t left = sequence.sq - block_begin;
    QueryCopy(p.q, 0, sequence.batch, row, item.head).next(Types::q(), left);
    QueryCopy(t.dout, 0, sequence.batch, row, item.head).next(Types::dout(), left);
  }
  load_tile(first_key, 0);

  const int lane = arch::lane();
  using Unit = typename ScoreDomainOf<spec.dtype, OfSpec<spec>::generic>::Type;
  const ScoreOptions<spec.variant, Unit> options(p);
  ScoreRow rows[Scores::lane_rows];
  ROCFLASH_UNROLL
  for (int i = 0; i < Scores::lane_rows; ++i) {
    const std::int32_t query =
        block_begin + arch::wave() * Types::warp_queries + Scores::row(lane, i);
    rows[i].query = query;
    const bool in_bounds = query < sequence.sq;
    const std::int64_t row = sequence.q_row + query;
    rows[i].base = infinity;
    if (in_bounds) {
      const float lse = arch::load(&t.lse.at(sequence.batch, item.head, row));
      if constexpr (OfSpec<spec>::generic) {
        const RowSoftmax softmax = RowSoftmax::of_products(a, sequence.batch, item.head, row, lse);
        rows[i].base = softmax.base;
        rows[i].share = softmax.share;
      } else {
        rows[i].base = resolved_lse(lse, Unit::from_natural);
      }
    }
    rows[i].delta = in_bounds ? arch::load(&a.delta.at(sequence.batch, item.head, row)) : 0.0f;
  }
  const SharedAddress own_q = operand_address<Rows>(
                          Types::q() + static_cast<std::uint32_t>(
                                           arch::wave() * Types::warp_queries * Rows::bytes),
                          matrices_down(lane)),
                      own_k = operand_address<Rows>(Types::k(), matrices_across(lane)),
                      k_columns = operand_address<Rows>(Types::k(), matrices_down(lane));

  typename Types::Sums dq = {};
  std::uint32_t half = 0;
  for (std::int32_t begin = first_key; begin < end_key;
       begin += tile.streamed, half = Types::tile_bytes - half) {
    arch::cp_async_wait<0>();
    arch::barrier();
    load_tile(begin + tile.streamed, Types::tile_bytes - half);

    Scores s = {}, d = {};
    const SharedAddress k = arch::opaque_vgpr(own_k + half);
    add_product<spec.bucket>(s, KMajorA<Mma, Rows>{own_q}, KMajorB<Mma, Rows>{k});
    add_product<spec.bucket>(d, KMajorA<Mma, Rows>{own_q + Types::query_bytes},
                             KMajorB<Mma, Rows>{k + 2 * Types::tile_bytes});
    for_each<Scores::lane_rows>([&](int i) {
      compute_ds_row(options, p, sequence, item.head, begin, lane, rows[i], i, s, d);
    });
    if (begin < common.begin || begin + tile.streamed > common.end) {
      for_each<Scores::lane_rows>([&](int i) {
        apply_mask(QueryView(p.visibility, sequence, rows[i].query), begin, lane, i, d, 0);
      });
    }
    add_product<tile.streamed>(dq, rounded<spec.dtype>(d),
                               NMajorB<Mma, Rows>{arch::opaque_vgpr(k_columns + half)});
  }
  epilogue_dq<spec>(a, dq);
}

}  // namespace rocflash::kernel
