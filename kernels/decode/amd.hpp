// Split-KV decode on AMD GPUs: few queries, limited by the bandwidth of the KV cache. Each wave has
// a split of the keys and writes a partial result; combine/rows.hpp combines them. Waves never wait
// for each other.
//
//   VGPRs   Q, S of one tile, O, the next K and V tiles in flight
//   LDS     per wave one V tile, transposed; a K tile too where operands are replicated in both
//           halves of the wave
//
// Both products are transposed, as in forward/amd_common.hpp: Sᵀ = K·Qᵀ and Oᵀ += Vᵀ·Pᵀ. Their
// columns are packed (query, head) rows (attention/gqa_packing.hpp).
#pragma once

#include "arch/arch.hpp"
#include "attention/gqa_packing.hpp"
#include "attention/online_softmax.hpp"
#include "attention/rows.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "decode/amd_epilogue.hpp"
#include "decode/amd_scores.hpp"
#include "decode/amd_staged.hpp"
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
  // Where a lane's fragment is one chunk of a row, K is loaded from global memory into fragments.
  static constexpr bool direct_keys =
      sizeof(typename Mma::Operand) == sizeof(Words4) && tile.stages > 0;

  using Keys = RowTile<bucket * element_bytes<dtype>, tile.keys>;
  using Values = Transposed<Mma, dtype, bucket, tile.keys>;
  using ValueOperand = typename Values::Operand;                             // Vᵀ
  using Queries = ResidentOperand<Mma, dtype, bucket, tile.shared_queries>;  // Qᵀ
  using Scores = Elements<Mma, tile.keys, tile.rows>;
  using Outputs = Accumulators<Mma, bucket, tile.rows>;  // of Oᵀ

  static constexpr int key_chunks = direct_keys ? 0 : Keys::chunks,
                       value_chunks = Values::Tile::chunks;
};

template <bool direct, class Types>
struct SelectKeyStaging {
  using Type = DirectFragments<typename Types::Mma, Types::dtype, Types::bucket>;
};
template <class Types>
struct SelectKeyStaging<false, Types> {
  using Type = StagedRows<typename Types::Keys, Types::dtype, Types::bucket, Types::tile.keys>;
};

// Register staging of the K and V tiles of one wave.
template <KernelSpec spec>
class KvStaging {
  using Types = DecodeTypes<spec>;

 public:
  typename SelectKeyStaging<Types::direct_keys, Types>::Type k;
  typename SelectStagedTile<arch::has_ds_read_tr, typename Types::Values::Tile,
                            typename Types::Mma::Layout, spec.dtype, spec.bucket,
                            Types::tile.keys>::Type v;

  KvStaging(const DecodeArguments& a, const SequenceView& s, std::int32_t kv_head)
      : a_(a), sequence_(s), head_(kv_head) {}

  // Issues the loads of the tile from `key` on, of which `left` rows exist.
  void load(std::int32_t key, std::int32_t left) {
    visit(true, key, left, [&](const Rows& rows, const auto& block) { load_tile(k, rows, block); });
    visit(false, key, left,
          [&](const Rows& rows, const auto& block) { load_tile(v, rows, block); });
  }
  // Loads the tile and stores it to LDS.
  void load_to_lds(std::int32_t key, std::int32_t left, SharedWords4* keys, SharedWords4* values) {
    visit(true, key, left,
          [&](const Rows& rows, const auto& block) { load_tile_to_lds(k, rows, block, keys); });
    visit(false, key, left,
          [&](const Rows& rows, const auto& block) { load_tile_to_lds(v, rows, block, values); });
  }

 private:
  template <class Visit>
  void visit(bool keys, std::int32_t key, std::int32_t left, Visit with) const {
    // Reloaded for each tile: the arguments do not fit into the SGPRs.
    const DecodeArguments& a = arch::reload_kernargs(a_);
    visit_rows<spec.dtype, Types::tile.keys>(keys ? a.problem.k : a.problem.v, a.caches, sequence_,
                                             key, left, head_, with);
  }

  const DecodeArguments& a_;
  const SequenceView& sequence_;
  std::int32_t head_;
};

// S = K·Qᵀ, scheduled in groups of two steps: more fragments in flight would take VGPRs from the
// next tile.
template <KernelSpec spec, class K, class Q>
typename DecodeTypes<spec>::Scores multiply_keys(const K& k, const Q& q) {
  using Mma = typename DecodeTypes<spec>::Mma;
  typename DecodeTypes<spec>::Scores scores;
  typename Mma::Result sum = {};
  ROCFLASH_UNROLL
  for (int step = 0; step < spec.bucket / Mma::depth; ++step) {
    sum = Mma::multiply(k.fragment(0, step), q.fragment(0, step), sum);
    if (step % 2 == 1) arch::sched_barrier(sum);
  }
  ROCFLASH_UNROLL
  for (int r = 0; r < Mma::results; ++r) scores.at[0][r] = sum[r];
  return scores;
}

// Epilogue: the partial result of the wave's split. It computes the work tile again, so that the
// main loop need not keep it in registers.
template <KernelSpec spec>
void store_split(const DecodeArguments& a, const GenericSoftmax& softmax,
                 const typename DecodeTypes<spec>::Outputs& out) {
  using Types = DecodeTypes<spec>;
  const DecodeWorkTile item(a, arch::workgroup_id());
  const SequenceView sequence(a.problem, item.batch);
  const std::int32_t split_index = item.split * Types::waves + arch::wave();
  const KeySplit split(a, sequence, item.block, Types::tile.rows, split_index,
                       a.splits * Types::waves, Types::tile.keys);
  store_partial_results<spec.dtype, Types, SplitRows>(a, item, sequence, split,
                                                      {split_index, 0, true}, softmax, out);
}

template <KernelSpec spec>
void decode(const DecodeArguments& a) {
  using Types = DecodeTypes<spec>;
  using Scores = typename Types::Scores;
  constexpr DecodeTile tile = Types::tile;

  ROCFLASH_SHARED_ARRAY Words4 shared_keys[Types::waves][Types::key_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_values[Types::waves][Types::value_chunks];
  ROCFLASH_SHARED_ARRAY Words4 shared_queries[Types::waves][Types::Queries::shared_chunks];

  // Work tile: packed rows, split of the keys, row of the lane.
  const Problem& p = a.problem;
  const DecodeWorkTile item(a, arch::workgroup_id());
  const SequenceView sequence(p, item.batch);
  const int wave = arch::wave();
  const std::int32_t split_index = item.split * Types::waves + wave;
  const KeySplit split(a, sequence, item.block, tile.rows, split_index, a.splits * Types::waves,
                       tile.keys);
  if (split.rows == 0) return;
  const auto gqa_group = static_cast<std::uint32_t>(a.gqa_group);
  const int lane_row = Scores::lane_column();
  const PackedRow packed(split.row_begin + lane_row, gqa_group, item.kv_head);
  if (split.empty()) {
    if (lane_row < split.rows && Scores::lane_row() == 0)
      SplitRows{a, sequence, split_index}.store_lse(packed, {infinity, 0});
    return;
  }
  const QueryView query = split.view(p, sequence, packed.query);

  constexpr bool prefetches = tile.stages > 0;
  KvStaging<spec> next(a, sequence, item.kv_head);
  if constexpr (prefetches) next.load(split.begin, split.end - split.begin);

  const GenericScale scale(p.scale);
  const typename Types::Queries q(shared_queries[wave], [&](int row, int chunk) {
    const Words4 words =
        query_chunk<spec.dtype>(p.q, sequence, split, gqa_group, item.kv_head, row, chunk);
    return scale.negate_q ? negated<spec.dtype>(words) : words;
  });

  const bool modifies_scores = has_score_modifiers(p);
  const float score_scale = modifies_scores ? 1 : scale.softmax_scale;
  GenericSoftmax softmax;
  typename Types::Outputs out = {};
  for (std::int32_t begin = split.begin; begin < split.end; begin += tile.keys) {
    const std::int32_t end = begin + tile.keys;
    // S = K·Qᵀ. The loads of the next tile are issued as soon as the staging registers are free.
    const auto load_next = [&] {
      if (end < split.end) next.load(end, split.end - end);
    };
    Scores scores;
    arch::wave_fence();
    if constexpr (Types::direct_keys) {
      store_tile(next.v, shared_values[wave]);
      scores = multiply_keys<spec>(next.k, q);
      load_next();
      arch::wave_fence();
    } else {
      if constexpr (prefetches) {
        store_tile(next.k, shared_keys[wave]);
        store_tile(next.v, shared_values[wave]);
        arch::sched_barrier();
        load_next();
      } else {
        next.load_to_lds(begin, split.end - begin, shared_keys[wave], shared_values[wave]);
      }
      arch::wave_fence();
      scores = multiply_keys<spec>(
          SharedOperand<typename Types::Mma, typename Types::Keys, Side::left>{shared_keys[wave]},
          q);
    }
    arch::sched_barrier();
    softmax_tile(a, sequence, split, item.kv_head, query, begin, end, modifies_scores, score_scale,
                 softmax, scores, out);

    // O += P·V
    accumulate_pv(out, typename Types::ValueOperand{shared_values[wave]},
                  rounded_weights<spec.dtype>(scores), tile.keys);
  }
  store_split<spec>(arch::reload_kernargs(a), softmax, out);
}

}  // namespace rocflash::kernel
