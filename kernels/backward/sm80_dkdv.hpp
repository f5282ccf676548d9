// Types, shared memory and epilogue of the kernels in sm80_fused.hpp.
#pragma once

#include "arch/arch.hpp"
#include "attention/cp_async_rows.hpp"
#include "attention/rows.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "backward/exact_recompute.hpp"
#include "table/backward.hpp"
#include "table/features.hpp"
#include "tile/sm80.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct KeyBlockTypes : OfSpec<spec> {
  using OfSpec<spec>::dtype, OfSpec<spec>::bucket, OfSpec<spec>::generic;
  static constexpr bool fused = spec.op == Op::backward;
  static constexpr BackwardTile tile = backward_tile(this_family, spec);
  static constexpr int warps = tile.threads / arch::wave_size;

  using Mma = arch::Mma<dtype>;
  using Unit = typename ScoreDomainOf<dtype, generic>::Type;
  using Rows = SharedRows<bucket * element_bytes<dtype>>;
  using Weights = SharedRows<tile.owned * element_bytes<dtype>>;  // one row per query

  // How many warps divide the rows of a product; the others divide its columns, at least 16 each.
  static constexpr int warps_down(int rows, int columns) {
    int down = rows / 32;
    while (columns * down / warps < 16) down *= 2;
    return down;
  }
  static constexpr int score_warps = warps_down(tile.streamed, tile.owned),
                       key_warps = warps_down(tile.owned, bucket),
                       query_warps = warps_down(tile.streamed, bucket);
  using Scores = WarpTile<Mma, tile.streamed / score_warps, tile.owned * score_warps / warps>;
  using DkDvTile = WarpTile<Mma, tile.owned / key_warps, bucket * key_warps / warps>;
  using DqTile = WarpTile<Mma, tile.streamed / query_warps, bucket * query_warps / warps>;

  template <int count>
  using Copy = CpAsyncTile<dtype, bucket, count, tile.threads, spec.variant>;

  // Shared memory: k, v; `buffers` stages of q and dout; P and dS; lse, delta and the visible key
  // range of each query.
  static constexpr std::uint32_t key_bytes = tile.owned * Rows::bytes,
                                 query_bytes = tile.streamed * Rows::bytes,
                                 weight_bytes = tile.streamed * Weights::bytes;
  static constexpr std::uint32_t halves = tile.buffers == 3 ? 2 : 1, buffers = tile.buffers;
  static constexpr std::uint32_t v_after_k = key_bytes, dout_after_q = buffers * query_bytes;
  static constexpr std::uint32_t statistic_bytes = 16 * tile.streamed;
  static constexpr std::uint32_t statistics_at =
      2 * key_bytes + 2 * buffers * query_bytes + 2 * halves * weight_bytes;
  static_assert(statistics_at + buffers * statistic_bytes == tile.dynamic_shared);
  static_assert(tile.threads >= 2 * tile.streamed);

  static SharedAddress k() { return arch::shared_begin(); }
  static SharedAddress v() { return k() + v_after_k; }
  static SharedAddress q(std::uint32_t buffer) {
    return k() + 2 * key_bytes + buffer * query_bytes;
  }
  static SharedAddress dout(std::uint32_t buffer) { return q(buffer) + dout_after_q; }
  static SharedAddress p(std::uint32_t half) {
    return k() + 2 * key_bytes + 2 * buffers * query_bytes + half * weight_bytes;
  }
  static constexpr std::uint32_t ds_after_p = halves * weight_bytes;
  static SharedAddress ds(std::uint32_t half) { return p(half) + ds_after_p; }
  static SharedAddress lse(std::uint32_t buffer, int query) {
    return k() + statistics_at + buffer * statistic_bytes + static_cast<std::uint32_t>(4 * query);
  }
  static SharedAddress delta(std::uint32_t buffer, int query) {
    return lse(buffer, query) + 4 * tile.streamed;
  }
  static SharedAddress visible(std::uint32_t buffer, int query) {
    return k() + statistics_at + buffer * statistic_bytes + 8 * tile.streamed +
           static_cast<std::uint32_t>(8 * query);
  }
  static std::uint32_t rows(int count) { return static_cast<std::uint32_t>(count * Rows::bytes); }

  // Under a causal mask most queries attend to the first keys, so those blocks start first (LPT
  // order).
  static std::int32_t block_begin(const BackwardArguments& a, const WorkTile& item) {
    return (a.work.blocks - 1 - item.block) * tile.owned;
  }

  // The warp tile of dK and dV.
  static int key_row(int warp) { return warp % key_warps * DkDvTile::rows; }
  static int key_column(int warp) { return warp / key_warps * DkDvTile::columns; }

  // Pᵀ or dSᵀ as the A operand, one row per key, from key_row(warp) on.
  using WeightsByKeys = MMajorA<Mma, Weights>;
  static WeightsByKeys weights_by_keys(SharedAddress weights, int warp, int lane) {
    return {weights, key_row(warp), lane};
  }
  // A tile as the B operand with its rows as the depth, from a column on.
  using Columns = NMajorB<Mma, Rows>;
  static Columns columns_of(SharedAddress tile_at, int column, int lane) {
    return {Columns::first(tile_at, column, lane)};
  }

  // Address of a lane's first pair of the warp tile of P or dS.
  static SharedAddress own_weights(SharedAddress weights, int row, int column, int lane) {
    return own_result<dtype, Weights, Scores>(weights, row, column, lane);
  }
  // Pairs of a lane are numbered column by column: consecutive pairs share most of their address.
  static constexpr int pairs = Scores::lane_rows * Scores::lane_columns / 2;
  static constexpr int pair_row(int n) { return n % Scores::lane_rows; }
  static constexpr int pair_column(int n) { return n / Scores::lane_rows; }
  // Rounds and stores the pairs [from, to).
  template <int from, int to>
  static void store_weights(SharedAddress own, const Scores& scores) {
    ROCFLASH_UNROLL
    for (int n = from; n < to; ++n)
      store_results<dtype, Weights>(own, scores, pair_row(n), pair_column(n));
  }
};

// Stages a warp's accumulator times `factor` as rows in shared memory, and a flag per row and
// column warp, not 0 where the row is not finite.
template <class Types>
void stage_accumulator(const typename Types::DkDvTile& sums, SharedAddress rows,
                       SharedAddress flags, float factor, int warp, int lane) {
  using Sums = typename Types::DkDvTile;
  using Rows = typename Types::Rows;
  const int first = Types::key_row(warp), column = Types::key_column(warp);
  ROCFLASH_UNROLL
  for (int i = 0; i < Sums::lane_rows; ++i) {
    const int row = first + Sums::row(lane, i);
    const float probe = stage_row<Types::dtype, Rows>(sums, i, factor, rows, row, column, lane);
    const std::uint32_t non_finite = row_union(probe != 0 ? 1u : 0u);
    if (lane % row_lanes == 0)
      arch::store_shared(
          flags + static_cast<std::uint32_t>(
                      4 * (row * (Types::warps / Types::key_warps) + warp / Types::key_warps)),
          non_finite);
  }
}

// Copies staged rows to the tensor. Non-finite rows, and all rows where products may overflow, are
// recomputed.
template <KernelSpec spec, bool is_dk>
void store_key_gradient(const BackwardArguments& a, const SequenceView& sequence,
                        const WorkTile& item, SharedAddress rows, SharedAddress flags) {
  using Types = KeyBlockTypes<spec>;
  using Rows = typename Types::Rows;
  using Block = RowBlock<spec.dtype, spec.variant, false>;
  const auto& to = is_dk ? a.tensors.dk : a.tensors.dv;
  const std::int32_t begin = Types::block_begin(a, item), left = sequence.sk - begin;
  const Block block(to, 0, sequence.batch, sequence.k_row + begin, left, item.head);
  for (int n = arch::thread(); n < Types::tile.owned * Rows::chunks; n += Types::tile.threads) {
    const int row = n / Rows::chunks, chunk = n % Rows::chunks;
    const Words4 words =
        arch::load_shared(rows + static_cast<std::uint32_t>(Rows::offset(row, chunk)));
    block.store8(words, Block::offset(to, row, 16 / element_bytes<spec.dtype> * chunk));
  }
  arch::barrier();
  constexpr int parts = Types::warps / Types::key_warps;
  // Usually all rows are finite: all lanes test the flags at once.
  bool any_non_finite = products_overflow(a.problem);
  for (int n = arch::lane(); n < Types::tile.owned * parts; n += arch::wave_size)
    any_non_finite |=
        __builtin_bit_cast(std::uint32_t,
                           arch::load_shared_float(flags + static_cast<std::uint32_t>(4 * n))) != 0;
  if (!arch::any(any_non_finite)) return;
  for (int row = arch::wave(); row < Types::tile.owned && row < left; row += Types::warps) {
    std::uint32_t non_finite = 0;
    for (int part = 0; part < parts; ++part)
      non_finite |= __builtin_bit_cast(
          std::uint32_t,
          arch::load_shared_float(flags + static_cast<std::uint32_t>(4 * (row * parts + part))));
    if (non_finite != 0 || products_overflow(a.problem))
      exact_dk_dv<spec.dtype>(a, sequence, item.head, begin + row, is_dk, !is_dk);
  }
}

template <KernelSpec spec>
void epilogue_dk_dv(const BackwardArguments& a, const typename KeyBlockTypes<spec>::DkDvTile& dk,
                    const typename KeyBlockTypes<spec>::DkDvTile& dv) {
  using Types = KeyBlockTypes<spec>;
  const Problem& p = a.problem;
  // Computed again, so that the main loop does not keep it.
  const WorkTile item(a.work, static_cast<std::int32_t>(p.kv_heads),
                      static_cast<std::int32_t>(
                          arch::opaque_vgpr(static_cast<std::uint32_t>(arch::workgroup_id()))));
  const SequenceView sequence(p, item.batch);
  const int thread = arch::opaque_thread(), lane = thread % arch::wave_size,
            warp = thread / arch::wave_size;
  const float dropout = p.dropout.scale(), scale = p.scale * dropout;
  constexpr std::uint32_t flag_bytes = 4u * Types::tile.owned * (Types::warps / Types::key_warps);
  static_assert(2 * flag_bytes <= 2 * Types::query_bytes);
  const SharedAddress dk_flags = Types::q(0), dv_flags = dk_flags + flag_bytes;

  arch::cp_async_wait<0>();
  arch::barrier();  // the last tiles may still be in use
  stage_accumulator<Types>(dk, Types::k(), dk_flags, scale, warp, lane);
  stage_accumulator<Types>(dv, Types::v(), dv_flags, dropout, warp, lane);
  arch::barrier();
  if (a.tensors.dk) store_key_gradient<spec, true>(a, sequence, item, Types::k(), dk_flags);
  if (a.tensors.dv) store_key_gradient<spec, false>(a, sequence, item, Types::v(), dv_flags);
}

}  // namespace rocflash::kernel
