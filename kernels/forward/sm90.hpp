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
#include "attention/epilogue.hpp"
#include "attention/exact.hpp"
#include "attention/outside.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"
#include "table/forward.hpp"
#include "tile/quads.hpp"
#include "tile/sm90.hpp"

namespace rocflash::kernel {

// The types and the shared memory of one kernel.
template <KernelSpec spec>
struct GroupsTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr ForwardGroups tile = forward_groups(spec);
  static constexpr int stages = tile.stages, queries = tile.queries();

  using QueryTile = Panels<queries, bucket>;
  using KeyTile = Panels<tile.keys, bucket>;
  using Scores = GroupTile<tile.keys>;
  using Weights = Fragments<tile.keys / product_depth>;
  using Outputs = GroupTile<bucket>;

  static SharedAddress q() { return arch::shared_begin(); }
  static SharedAddress k(int stage) {
    return q() + static_cast<std::uint32_t>(QueryTile::bytes + stage * KeyTile::bytes);
  }
  static SharedAddress v(int stage) { return k(stages + stage); }
  static SharedAddress seen_keys(int query) {
    return k(2 * stages) + 8 * static_cast<std::uint32_t>(query);
  }
  static SharedAddress barriers() { return seen_keys(queries); }
  static Ring<1> q_ring() { return Ring<1>(barriers()); }
  static Ring<stages> k_ring() { return Ring<stages>(barriers() + Ring<1>::bytes); }
  static Ring<stages> v_ring() {
    return Ring<stages>(barriers() + Ring<1>::bytes + Ring<stages>::bytes);
  }
  static_assert(QueryTile::bytes % QueryTile::alignment == 0 &&
                KeyTile::bytes % KeyTile::alignment == 0);
};

// One block of queries: what it sees, and in how many tiles. All roles compute the same.
template <int queries, int keys>
struct QueryBlock {
  WorkItem item;
  SequenceView sequence;
  std::int32_t begin;  // its first query
  std::int32_t end_key = 0, tiles = 0;
  Span common;  // keys that all of its queries see

  QueryBlock(const ForwardArguments& a, std::int32_t number)
      : item(a.work, static_cast<std::int32_t>(a.problem.heads), number),
        sequence(a.problem, item.batch),
        begin(item.block * queries) {
    if (!exists()) return;
    const SeenKeys seen(a.problem.visibility, sequence, begin, queries);
    const auto first_key = static_cast<std::int32_t>(seen.by_any.begin);
    end_key = static_cast<std::int32_t>(seen.by_any.end);
    common = Span(seen.by_all);
    tiles = end_key > first_key ? (end_key - first_key + keys - 1) / keys : 0;
  }
  bool exists() const { return begin < sequence.q_rows; }
  // The first key of a tile; below 0 it is none of the sequence's.
  std::int32_t tile_begin(std::int32_t tile) const { return end_key - (tile + 1) * keys; }
};

// The blocks of a workgroup. They come in the order of their work, the longest first; every second
// round goes the other way, so that workgroups get about the same.
inline std::int32_t block_number(std::int32_t round) {
  const std::int32_t groups = arch::groups(), place = arch::group();
  return round * groups + (round % 2 == 0 ? place : groups - 1 - place);
}

// What the copying thread does.
template <KernelSpec spec>
void copy_tiles(const ForwardWarpgroupsArguments& a) {
  using Types = GroupsTypes<spec>;
  using QueryTile = typename Types::QueryTile;
  using KeyTile = typename Types::KeyTile;
  const Problem& p = a.forward.problem;
  const auto q_ring = Types::q_ring();
  const auto k_ring = Types::k_ring(), v_ring = Types::v_ring();
  arch::prefetch(a.q);
  arch::prefetch(a.k);
  arch::prefetch(a.v);
  FillPlace<1> q_place;
  FillPlace<Types::stages> place;
  for (std::int32_t round = 0;; ++round) {
    const std::int32_t number = block_number(round);
    if (round * arch::groups() >= a.forward.work.groups) break;
    if (number >= a.forward.work.groups) continue;
    const QueryBlock<Types::queries, Types::tile.keys> block(a.forward, number);
    if (block.tiles == 0) continue;
    const auto kv_head = static_cast<std::int32_t>(p.kv_head(block.item.head));
    const auto k_batch = p.lengths.packed_k() ? 0 : block.item.batch;
    auto row = static_cast<std::int32_t>(block.sequence.k_row) + block.tile_begin(0);
    for (std::int32_t tile = 0; tile < block.tiles; ++tile, row -= KeyTile::rows) {
      copy_tile<KeyTile>(Types::k(place.stage()), a.k, k_ring.fill(place, KeyTile::bytes), row,
                         kv_head, k_batch, arch::Reuse::much);
      if (tile == 0) {
        copy_tile<QueryTile>(Types::q(), a.q, q_ring.fill(q_place, QueryTile::bytes),
                             static_cast<std::int32_t>(block.sequence.q_row) + block.begin,
                             block.item.head, p.lengths.packed_q() ? 0 : block.item.batch,
                             arch::Reuse::none);
        q_place.advance();
      }
      copy_tile<KeyTile>(Types::v(place.stage()), a.v, v_ring.fill(place, KeyTile::bytes), row,
                         kv_head, k_batch, arch::Reuse::much);
      place.advance();
    }
  }
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
  for (int i = 0; i < 2; ++i) factor[i] = softmax[i].follow(quad_maximum(largest[i]) * unit);
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

// The end of a block: sums over the lanes of each query, one division, the stores. Four lanes that
// share a row turn their words so that each stores sixteen bytes.
template <KernelSpec spec>
void finish(const ForwardArguments& a, std::int32_t number, int first_row,
            const OnlineSoftmax (&softmax)[2],
            const typename GroupsTypes<spec>::Outputs& out ROCFLASH_SETTLED) {
  using Types = GroupsTypes<spec>;
  using Outputs = typename Types::Outputs;
  const Problem& p = a.problem;
  const QueryBlock<Types::queries, Types::tile.keys> block(a, number);
  const SequenceView& sequence = block.sequence;
  const std::int32_t head = block.item.head, warp_begin = block.begin + first_row;
  const int lane = arch::lane();
  const Finish<Variant::plain> end(p, head);
  float factors[2];
  std::uint32_t broken = 0;  // bit 4 r + i: query i of the lanes of row r is to be computed again
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) {
    const Normaliser normaliser = end(softmax[i].reference, quad_sum(softmax[i].sum));
    factors[i] = normaliser.factor;
    const std::int32_t query = warp_begin + Outputs::row(lane, i);
    const bool in_use = query < sequence.sq, exists = query < sequence.q_rows;
    if (a.outputs.lse && lane % quad_lanes == 0 && exists)
      store_lse(a.outputs, sequence, head, query, normaliser.lse);
    std::byte* const row =
        row_address<spec.dtype>(a.outputs.out, sequence.batch, sequence.q_row + query, head);

    float probe = 0;  // NaN once an output is not finite
    ROCFLASH_UNROLL
    for (int n = 0; n < Outputs::lane_columns; n += 2 * quad_lanes) {
      Words4 words;
      ROCFLASH_UNROLL
      for (int j = 0; j < quad_lanes; ++j) {
        const float x = out.at(i, n + 2 * j), y = out.at(i, n + 2 * j + 1);
        probe = __builtin_fmaf(y, 0.0f, __builtin_fmaf(x, 0.0f, probe));
        words[j] =
            in_use ? arch::narrow_two<spec.dtype>(x * normaliser.factor, y * normaliser.factor) : 0;
      }
      words = turned_in_quad(words);
      const int column = Outputs::column(n) + 8 * (lane % quad_lanes);
      if (exists && column < p.value_dim)
        arch::store(reinterpret_cast<Words4*>(row + column * number_bytes<spec.dtype>), words);
    }
    std::uint32_t lanes = arch::ballot(in_use && (probe != 0 || products_overflow(p)));
    lanes |= lanes >> 1;
    lanes |= lanes >> 2;
    broken |= (lanes & 0x11111111u) << i;
  }
  if (broken == 0) return;
  arch::wave_barrier();
  while (broken != 0) {
    const int bit = __builtin_ctz(broken), row = bit / quad_lanes, which = bit % quad_lanes;
    broken &= broken - 1;
    const float base = which == 0 ? softmax[0].base() : softmax[1].base();
    const float factor = which == 0 ? factors[0] : factors[1];
    const int first_lane = quad_lanes * row;
    const QueryView query(p.visibility, sequence, warp_begin + Outputs::row(first_lane, which));
    repair(ExactScores<spec.dtype>{p, sequence, head, a.caches}, query,
           arch::from_lane(base, first_lane), arch::from_lane(factor, first_lane), a.outputs);
  }
}

// What a computing warpgroup does; they count from 0.
template <KernelSpec spec>
void compute_blocks(const ForwardArguments& a, int group) {
  using Types = GroupsTypes<spec>;
  using QueryTile = typename Types::QueryTile;
  using KeyTile = typename Types::KeyTile;
  using Outputs = typename Types::Outputs;
  using Block = QueryBlock<Types::queries, Types::tile.keys>;
  constexpr ForwardGroups tile = Types::tile;
  constexpr DType dtype = spec.dtype;
  // Named barriers of the turns: each group has one, where the group before it reports.
  constexpr int first_turn = 1, turn_threads = 2 * arch::warpgroup_size;
  const int own_turn = first_turn + group,
            next_turn = first_turn + (group + 1 == tile.groups ? 0 : group + 1);

  const auto q_ring = Types::q_ring();
  const auto k_ring = Types::k_ring(), v_ring = Types::v_ring();
  const int lane = arch::lane(), thread = arch::thread() % arch::warpgroup_size;
  const int first_row = group_rows * group + 16 * (thread / arch::wave_size);  // of the warp
  const bool reports = thread == 0;
  const float unit = Scale(a.problem.scale).unit;
  const RowLines<QueryTile> q(Types::q(), group_rows * group);

  DrainPlace<1> q_place;
  DrainPlace<Types::stages> k_place, v_place;
  if (tile.in_turns && group == 0) arch::reach_barrier(own_turn, turn_threads);
  for (std::int32_t round = 0;; ++round) {
    const std::int32_t number = block_number(round);
    if (round * arch::groups() >= a.work.groups) break;
    if (number >= a.work.groups) continue;
    const Block block(a, number);
    if (!block.exists()) continue;

    OnlineSoftmax softmax[2];
    Outputs out;
    out.clear();
    if (block.tiles > 0) {
      typename Types::Scores scores;
      typename Types::Weights weights;
      float factor[2];
      if (lane < 16) {
        const QueryView query(a.problem.visibility, block.sequence, block.begin + first_row + lane);
        arch::store_shared(
            Types::seen_keys(first_row + lane),
            Words2{static_cast<std::uint32_t>(query.begin), static_cast<std::uint32_t>(query.end)});
      }
      arch::wave_barrier();
      std::int32_t tile_begin = block.tile_begin(0);
      const auto at_edge = [&](std::int32_t begin) {
        return begin < block.common.begin || begin + tile.keys > block.common.end;
      };

      // The first tile has no outputs of a tile before it beside it.
      q_ring.wait(q_place);
      k_ring.wait(k_place);
      Products first;
      first.template multiply<dtype, spec.bucket>(scores, q,
                                                  RowLines<KeyTile>(Types::k(k_place.stage())));
      first.commit();
      wait<0>(scores);
      if (reports) k_ring.release(k_place);
      k_place.advance();
      if (at_edge(tile_begin)) hide_keys<Types>(scores, first_row, tile_begin);
      follow_largest(softmax, scores, unit, factor);
      weigh(softmax, scores, unit);
      weights.template round<dtype>(scores);

#pragma clang loop unroll(disable)
      for (std::int32_t left = block.tiles - 1; left > 0; --left) {
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
        if (reports) k_ring.release(k_place);
        k_place.advance();
        if (at_edge(tile_begin)) hide_keys<Types>(scores, first_row, tile_begin);
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

      if (reports) q_ring.release(q_place);
      q_place.advance();
      v_ring.wait(v_place);
      Products last(out, weights);
      last.template add<dtype>(out, weights, ColumnLines<KeyTile>(Types::v(v_place.stage())));
      last.commit();
      wait<0>(out, weights);
      if (reports) v_ring.release(v_place);
      v_place.advance();
    }
    finish<spec>(a, arch::renewed(number), first_row, softmax, out);
  }
}

template <KernelSpec spec>
void forward_warpgroups(const ForwardWarpgroupsArguments& a) {
  using Types = GroupsTypes<spec>;
  constexpr ForwardGroups tile = Types::tile;
  if (arch::thread() == 0) {
    Types::q_ring().make(tile.groups);
    Types::k_ring().make(tile.groups);
    Types::v_ring().make(tile.groups);
    arch::publish_barriers();
  }
  clear_outside(a.forward, spec.dtype, arch::group() * tile.threads() + arch::thread(),
                arch::groups() * tile.threads());
  arch::barrier();
  const int group = arch::warpgroup();
  if (group == 0) {
    arch::give_registers<tile.copying>();
    if (arch::thread() == 0) copy_tiles<spec>(a);
  } else {
    arch::take_registers<tile.computing>();
    compute_blocks<spec>(a.forward, group - 1);
  }
}

}  // namespace rocflash::kernel
