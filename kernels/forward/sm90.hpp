// Forward on Hopper. A workgroup has one warpgroup that has tiles copied to shared memory, and two
// or three that compute, 64 queries each. It stays on its multiprocessor and takes one block of
// queries after the other.
//
//   registers       scores of one tile, weights of the tile before it, outputs
//   shared memory   q; two tiles each of k and v; which keys each query sees
//
// Tiles go from the last key that a query of the block sees to the first: under a causal mask the
// masked tiles come first, and rows past a sequence's last key are never touched. What lies before
// the first key is masked.
//
// A warpgroup starts the scores of one tile and the outputs of the tile before it, and computes the
// softmax of the scores while the outputs are on their way. Warpgroups take turns in starting
// products, so that one has its softmax while another multiplies.
#pragma once

#include "arch/arch.hpp"
#include "attention/broken_rows.hpp"
#include "attention/epilogue.hpp"
#include "attention/exact.hpp"
#include "attention/outside.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/sight.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"
#include "forward/sm90_tiles.hpp"
#include "table/forward.hpp"
#include "tile/quads.hpp"
#include "tile/sm90.hpp"

namespace rocflash::kernel {

// Which keys query `offset` of a block sees, for the edges.
template <class Types>
void store_seen_keys(const Visibility& visibility, BlockOrder block, int offset) {
  const Sight sight(visibility, block[BlockOrder::sq], block[BlockOrder::sk]);
  const std::int32_t query = block[BlockOrder::begin] + offset;
  std::int32_t begin = 0, end = 0;
  if (query < sight.sq) {
    begin = sight.begin(query);
    end = sight.end(query);
  }
  arch::store_shared(Types::seen_keys(offset),
                     Words2{static_cast<std::uint32_t>(begin),
                            static_cast<std::uint32_t>(end > begin ? end : begin)});
}

// Hides keys that a query does not see. Only tiles at edges need it.
template <class Types>
void hide_keys(typename Types::Scores& scores ROCFLASH_SETTLED, int first_row,
               std::int32_t tile_begin) {
  using Scores = typename Types::Scores;
  const int lane = arch::lane();
  ROCFLASH_UNROLL
  for (int i = 0; i < Scores::lane_rows; ++i) {
    const Words2 seen = arch::load_shared8(Types::seen_keys(first_row + Scores::row(lane, i)));
    const std::int32_t lane_begin = tile_begin + Scores::lane_column(lane);
    const auto begin = static_cast<std::int32_t>(seen.x) - lane_begin;
    const auto size = seen.y - seen.x;
    ROCFLASH_UNROLL
    for (int n = 0; n < Scores::lane_columns; ++n) {
      const bool sees = static_cast<std::uint32_t>(Scores::column(n) - begin) < size;
      scores.at(i, n) = sees ? scores.at(i, n) : -infinity;
    }
  }
}

// Moves references where the largest scores are far beyond them. Returns whether any did in this
// warp, and sets the factors for what was summed so far.
template <class Scores>
bool follow_largest(OnlineSoftmax (&softmax)[2], const Scores& scores ROCFLASH_SETTLED, float unit,
                    float (&factor)[2]) {
  float largest[2];
  bool behind = false;
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) {
    float x = scores.at(i, 0), y = scores.at(i, 1);
    ROCFLASH_UNROLL
    for (int n = 2; n < Scores::lane_columns; n += 2) {
      x = __builtin_fmaxf(x, scores.at(i, n));
      y = __builtin_fmaxf(y, scores.at(i, n + 1));
    }
    largest[i] = __builtin_fmaxf(x, y);
    behind |= softmax[i].behind(largest[i] * unit);
  }
  if (!arch::any(behind)) return false;
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) factor[i] = softmax[i].follow(row_maximum(largest[i]) * unit);
  return true;
}

// weights = exp2(scores · unit − reference), and their sums.
template <class Scores>
void weigh(OnlineSoftmax (&softmax)[2], Scores& scores ROCFLASH_SETTLED, float unit) {
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float base = softmax[i].base();
    float x = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < Scores::lane_columns; n += 2) {
      const float even = arch::exp2(__builtin_fmaf(scores.at(i, n), unit, -base));
      const float odd = arch::exp2(__builtin_fmaf(scores.at(i, n + 1), unit, -base));
      scores.at(i, n) = even;
      scores.at(i, n + 1) = odd;
      softmax[i].sum += even;
      x += odd;
    }
    softmax[i].sum += x;
  }
}

inline void store_lse(const ForwardOutputs& outputs, BlockOrder block, std::int32_t query,
                      float lse) {
  arch::store(&outputs.lse.at(block[BlockOrder::batch], block[BlockOrder::head],
                              block[BlockOrder::q_row] + query),
              query < block[BlockOrder::sq] ? lse : infinity);
}
template <DType dtype>
std::byte* out_row(const ForwardOutputs& outputs, BlockOrder block, std::int32_t query) {
  return row_address<dtype>(outputs.out, block[BlockOrder::batch], block[BlockOrder::q_row] + query,
                            block[BlockOrder::head]);
}

// The end of a block's sums: over the lanes of each query, and the lse. Sets the factors of the
// outputs.
template <class Outputs>
void close_sums(const ForwardOutputs& outputs, BlockOrder block, int first_row,
                const OnlineSoftmax (&softmax)[2], float (&factor)[2]) {
  const int lane = arch::lane();
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) {
    const Normaliser normaliser =
        normalise(softmax[i].reference, row_sum(softmax[i].sum), false, 0.0f);
    factor[i] = normaliser.factor;
    const std::int32_t query = block[BlockOrder::begin] + first_row + Outputs::row(lane, i);
    if (outputs.lse && lane % row_lanes == 0 && query < block[BlockOrder::q_rows])
      store_lse(outputs, block, query, normaliser.lse);
  }
}

// Queries of a warp again, whose outputs are not finite or not to be trusted. References and sums are
// not kept until here.
template <DType dtype, class Outputs>
void repair_rows(const ForwardArguments& a, BlockOrder block, int first_row, BrokenRows broken) {
  const Problem& p = a.problem;
  const WorkItem item(a.work, static_cast<std::int32_t>(p.heads), block[BlockOrder::number]);
  const SequenceView sequence(p, item.batch);
  constexpr float unknown = infinity;
  arch::wave_barrier();
  while (broken.any()) {
    const auto row = broken.take();
    const QueryView query(
        p.visibility, sequence,
        block[BlockOrder::begin] + first_row + Outputs::row(row.first_lane, row.which));
    repair(ExactScores<dtype>{p, sequence, item.head, a.caches}, query, 0, unknown, a.outputs);
  }
}

// The end of a block: one multiplication, and the stores.
template <DType dtype, class Outputs>
void finish(const ForwardArguments& a, BlockOrder block, int first_row, const float (&factor)[2],
            const Outputs& out ROCFLASH_SETTLED) {
  const Problem& p = a.problem;
  const int lane = arch::lane();
  BrokenRows broken;
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) {
    const std::int32_t query = block[BlockOrder::begin] + first_row + Outputs::row(lane, i);
    const bool in_use = query < block[BlockOrder::sq], exists = query < block[BlockOrder::q_rows];
    std::byte* const row = out_row<dtype>(a.outputs, block, query);
    const float probe = store_row<dtype>(out, i, factor[i], in_use, row, exists, p.value_dim);
    broken.add(i, in_use && (probe != 0 || products_overflow(p)));
  }
  if (broken.any()) repair_rows<dtype, Outputs>(a, block, first_row, broken);
}

// Rows of queries that see no keys.
template <DType dtype>
void finish_without_keys(const ForwardArguments& a, BlockOrder block, int first_row) {
  const std::int32_t query = block[BlockOrder::begin] + first_row + arch::lane();
  if (arch::lane() >= 16 || query >= block[BlockOrder::q_rows]) return;
  std::byte* const row = out_row<dtype>(a.outputs, block, query);
  for (int column = 0; column < a.problem.value_dim; column += 8)
    arch::store(reinterpret_cast<Words4*>(row + column * number_bytes<dtype>), Words4{});
  if (a.outputs.lse) store_lse(a.outputs, block, query, infinity);
}

// What a computing warpgroup does; they count from 0.
template <KernelSpec spec>
void compute_blocks(const ForwardArguments& a, int group) {
  using Types = GroupsTypes<spec>;
  using QueryTile = typename Types::QueryTile;
  using KeyTile = typename Types::KeyTile;
  using Outputs = typename Types::Outputs;
  constexpr ForwardGroups tile = Types::tile;
  constexpr DType dtype = spec.dtype;
  // Named barriers of the turns: each group has one, where the group before it reports.
  constexpr int first_turn = 1, turn_threads = 2 * arch::warpgroup_size;
  constexpr int all_groups = first_turn + tile.groups,
                computing_threads = tile.groups * arch::warpgroup_size;
  const int own_turn = first_turn + group,
            next_turn = first_turn + (group + 1 == tile.groups ? 0 : group + 1);

  const auto q_ring = Types::q_ring();
  const auto k_ring = Types::k_ring(), v_ring = Types::v_ring();
  int first_row = 0;  // of the warp
  bool reports = false;
  const auto find_rows = [&](int number) {
    const int thread = number % arch::warpgroup_size;
    first_row = group_rows * group + 16 * (thread / arch::wave_size);
    reports = thread == 0;
  };
  find_rows(arch::thread());
  const float unit = Scale(a.problem.scale).unit;
  DrainPlace<Types::q_stages> q_place;
  DrainPlace<Types::stages> k_place, v_place;
  if (tile.in_turns && group == 0) arch::reach_barrier(own_turn, turn_threads);

  for (std::uint32_t number = 0;; ++number, q_place.advance()) {
    if constexpr (Types::in_pages) find_rows(arch::thread_again());  // no registers to keep them in
    q_ring.wait(q_place);
    const BlockOrder block = Types::order(number);
    if (block[BlockOrder::number] < 0) break;
    std::int32_t left = block[BlockOrder::tiles];
    if (left == 0) {
      finish_without_keys<dtype>(a, block, first_row);
      if (reports) q_ring.release(q_place);
      continue;
    }
    std::int32_t tile_begin = block[BlockOrder::end_key] - tile.keys;
    const std::int32_t common_begin = block[BlockOrder::common_begin],
                       common_end = block[BlockOrder::common_end];
    const auto at_edge = [&] {
      return tile_begin < common_begin || tile_begin + tile.keys > common_end;
    };
    if constexpr (Types::in_pages) {
      // The last page may go on behind the sequence's end.
      if (const std::int32_t rows = block[BlockOrder::sk] - tile_begin; rows < tile.keys) {
        v_ring.wait(v_place);
        clear_rows<KeyTile>(Types::v(v_place.stage()), rows,
                            arch::thread_again() - arch::warpgroup_size, computing_threads);
        arch::barrier(all_groups, computing_threads);
      }
    }
    const RowLines<QueryTile> q(Types::q(q_place.stage()), group_rows * group);
    OnlineSoftmax softmax[2];
    typename Types::Scores scores;
    typename Types::Weights weights;
    Outputs out;
    float factor[2];

    // The first tile has no outputs of a tile before it beside it.
    k_ring.wait(k_place);
    Products first;
    first.template multiply<dtype, spec.bucket>(scores, q,
                                                RowLines<KeyTile>(Types::k(k_place.stage())));
    first.commit();
    if (const int lane = arch::lane(); lane < 16)
      store_seen_keys<Types>(a.problem.visibility, block, first_row + lane);
    arch::wave_barrier();
    out.clear();
    wait<0>(scores);
    if (reports) {
      k_ring.release(k_place);
      if (left == 1) q_ring.release(q_place);
    }
    k_place.advance();
    if (at_edge()) hide_keys<Types>(scores, first_row, tile_begin);
    follow_largest(softmax, scores, unit, factor);
    weigh(softmax, scores, unit);
    weights.template round<dtype>(scores);

#pragma clang loop unroll(disable)
    while (--left > 0) {
      tile_begin -= tile.keys;
      k_ring.wait(k_place);
      if (tile.in_turns) arch::barrier(own_turn, turn_threads);
      Products next(out, weights);
      next.template multiply<dtype, spec.bucket>(scores, q,
                                                 RowLines<KeyTile>(Types::k(k_place.stage())));
      next.commit();
      v_ring.wait(v_place);
      Products present;
      present.template add<dtype>(out, weights, ColumnLines<KeyTile>(Types::v(v_place.stage())));
      present.commit();
      if (tile.in_turns) arch::reach_barrier(next_turn, turn_threads);

      wait<1>(scores);
      if (reports) {
        k_ring.release(k_place);
        if (left == 1) q_ring.release(q_place);
      }
      k_place.advance();
      if (at_edge()) hide_keys<Types>(scores, first_row, tile_begin);
      const bool moved = follow_largest(softmax, scores, unit, factor);
      weigh(softmax, scores, unit);

      wait<0>(out, weights);
      if (reports) v_ring.release(v_place);
      v_place.advance();
      weights.template round<dtype>(scores);
      if (moved) {
        out.scale_row(0, factor[0]);
        out.scale_row(1, factor[1]);
      }
    }

    v_ring.wait(v_place);
    Products last(out, weights);
    last.template add<dtype>(out, weights, ColumnLines<KeyTile>(Types::v(v_place.stage())));
    last.commit();
    close_sums<Outputs>(a.outputs, block, first_row, softmax, factor);
    wait<0>(out, weights);
    if (reports) v_ring.release(v_place);
    v_place.advance();
    finish<dtype>(a, block, first_row, factor, out);
  }
}

template <KernelSpec spec>
void forward_warpgroups(const ForwardWarpgroupsArguments& a) {
  using Types = GroupsTypes<spec>;
  constexpr ForwardGroups tile = Types::tile;
  int copying = 1;  // threads
  if constexpr (Types::in_pages)
    copying = Types::KeyTile::rows / a.box_rows * Types::KeyTile::count;
  if (arch::thread() == 0) {
    Types::q_ring().make(tile.groups);
    Types::k_ring().make(tile.groups, copying);
    Types::v_ring().make(tile.groups, copying);
    arch::publish_barriers();
  }
  clear_outside(a.forward, spec.dtype, arch::group() * tile.threads() + arch::thread(),
                arch::groups() * tile.threads());
  arch::barrier();
  const int group = arch::warpgroup();
  if (group == 0) {
    arch::give_registers<tile.copying>();
    if ((Types::in_pages ? copying_thread() : arch::thread()) < copying) copy_tiles<spec>(a);
  } else {
    arch::take_registers<tile.computing>();
    compute_blocks<spec>(a.forward, group - 1);
  }
}

// Of keys in pages.
template <KernelSpec spec>
void forward_pages(const ForwardWarpgroupsArguments& a) {
  forward_warpgroups<spec>(a);
}

}  // namespace rocflash::kernel
