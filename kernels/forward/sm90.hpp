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
// Of keys in pages a tile is some boxes, each in one page, and each copied by a thread of its own. Tiles end where boxes
// end; values behind the sequence's end may be anything, and become 0 in shared memory.
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
#include "attention/page_box.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "attention/sight.hpp"
#include "attention/softmax.hpp"
#include "attention/turns.hpp"
#include "attention/work.hpp"
#include "table/forward.hpp"
#include "tile/quads.hpp"
#include "tile/sm90.hpp"

namespace rocflash::kernel {

// What the copying thread tells the others about a block of queries, word by word in shared memory:
// they compute none of it, and keep it in registers only as long as they need it.
class BlockOrder {
 public:
  static constexpr std::uint32_t bytes = 48;
  enum Word {
    number,  // below 0: there are no more blocks
    tiles,   // of keys
    end_key,
    begin,  // its first query
    common_begin,
    common_end,  // keys that all of its queries see
    head,
    batch,  // where rows of q and out are
    q_row,
    q_rows,  // rows of the sequence
    sq,
    sk  // of them in use, and keys
  };

  explicit BlockOrder(SharedAddress at) : at_(at) {}
  std::int32_t operator[](Word word) const {
    return static_cast<std::int32_t>(arch::load_shared4(at_ + 4 * word));
  }
  void store(Word word, std::int32_t x) const {
    arch::store_shared(at_ + 4 * word, static_cast<std::uint32_t>(x));
  }

 private:
  SharedAddress at_;
};

// The types and the shared memory of one kernel.
template <KernelSpec spec>
struct GroupsTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int bucket = spec.bucket;
  static constexpr ForwardGroups tile = forward_groups(spec);
  static constexpr bool in_pages = spec.operation == Operation::forward_pages;
  static constexpr int q_stages = tile.q_stages, stages = tile.stages, queries = tile.queries();
  // Of the blocks that a ring of q holds, of the one that is being finished, and a power of two.
  static constexpr std::uint32_t orders = 4;
  static_assert(q_stages + 1 <= static_cast<int>(orders));

  using QueryTile = Panels<queries, bucket>;
  using KeyTile = Panels<tile.keys, bucket>;
  using Scores = GroupTile<tile.keys>;
  using Weights = Fragments<tile.keys / product_depth>;
  using Outputs = GroupTile<bucket>;

  static SharedAddress q(int stage) {
    return arch::shared_begin() + static_cast<std::uint32_t>(stage * QueryTile::bytes);
  }
  static SharedAddress k(int stage) {
    return q(q_stages) + static_cast<std::uint32_t>(stage * KeyTile::bytes);
  }
  static SharedAddress v(int stage) { return k(stages + stage); }
  static SharedAddress seen_keys(int query) {
    return k(2 * stages) + 8 * static_cast<std::uint32_t>(query);
  }
  static BlockOrder order(std::uint32_t block) {  // blocks of the workgroup count from 0
    return BlockOrder(seen_keys(queries) + BlockOrder::bytes * (block % orders));
  }
  static SharedAddress barriers() { return seen_keys(queries) + BlockOrder::bytes * orders; }
  static Ring<q_stages> q_ring() { return Ring<q_stages>(barriers()); }
  static Ring<stages> k_ring() { return Ring<stages>(barriers() + Ring<q_stages>::bytes); }
  static Ring<stages> v_ring() {
    return Ring<stages>(barriers() + Ring<q_stages>::bytes + Ring<stages>::bytes);
  }
  static_assert(QueryTile::bytes % QueryTile::alignment == 0 &&
                KeyTile::bytes % KeyTile::alignment == 0);
};

// The number of a thread among those that copy boxes. One warp after the other has one: a warp starts its copies one
// by one, which takes longer than they do.
inline int copying_thread() {
  constexpr int warps = arch::warpgroup_size / arch::wave_size;
  const int thread = arch::thread_again();
  return thread % arch::wave_size * warps + thread / arch::wave_size;
}

// What the copying thread does; in pages, as many threads as a tile has boxes, of which the first one leads.
template <KernelSpec spec>
void copy_tiles(const ForwardWarpgroupsArguments& a) {
  using Types = GroupsTypes<spec>;
  using QueryTile = typename Types::QueryTile;
  using KeyTile = typename Types::KeyTile;
  const Problem& p = a.forward.problem;
  const auto q_ring = Types::q_ring();
  const auto k_ring = Types::k_ring(), v_ring = Types::v_ring();
  constexpr bool in_pages = Types::in_pages;
  const auto leads = [] { return !in_pages || copying_thread() == 0; };
  if (leads()) {
    arch::prefetch(a.q);
    arch::prefetch(a.k);
    arch::prefetch(a.v);
  }
  FillPlace<Types::q_stages> q_place;
  FillPlace<Types::stages> place;
  std::uint32_t blocks = 0;
  const auto announce_q = [&](int bytes) {
    ++blocks;
    const SharedAddress full = leads() ? q_ring.announce(q_place, bytes) : 0;
    q_place.advance();
    return full;
  };
  // Where ptxas would keep the number of workgroups in memory from the kernel's start on.
  const int workers = in_pages && spec.bucket > 64 ? arch::groups_again() : arch::groups();
  for (BlockTurns turn(a.forward.work, a.pairs != 0, arch::group(), workers); turn.more();
       turn.next()) {
    const WorkItem item(a.forward.work, static_cast<std::int32_t>(p.heads), turn.number());
    const SequenceView sequence(p, item.batch);
    const std::int32_t begin = item.block * Types::queries;
    if (begin >= sequence.q_rows) continue;

    // What its queries see, and in how many tiles.
    std::int32_t tiles = 0, row = 0, first_row = 0;
    q_ring.wait_until_empty(q_place);
    const BlockOrder order = Types::order(blocks);
    const auto store = [&](BlockOrder::Word word, std::int32_t x) {
      if (leads()) order.store(word, x);
    };
    store(BlockOrder::number, turn.number());
    store(BlockOrder::begin, begin);
    store(BlockOrder::head, item.head);
    store(BlockOrder::batch, p.lengths.packed_q() ? 0 : item.batch);
    store(BlockOrder::q_row, static_cast<std::int32_t>(sequence.q_row));
    store(BlockOrder::q_rows, sequence.q_rows);
    store(BlockOrder::sq, sequence.sq);
    store(BlockOrder::sk, sequence.sk);
    const std::int32_t end =
        begin + Types::queries < sequence.sq ? begin + Types::queries : sequence.sq;
    if (begin < end) {
      const Sight sight(p.visibility, sequence.sq, sequence.sk);
      const std::int32_t first_key = sight.begin(begin),
                         k_row = static_cast<std::int32_t>(sequence.k_row);
      std::int32_t end_key = sight.end(end - 1);
      store(BlockOrder::common_begin, sight.begin(end - 1));
      store(BlockOrder::common_end, sight.end(begin));
      if (in_pages && end_key > first_key)
        end_key = (k_row + end_key + a.tile_grain - 1) / a.tile_grain * a.tile_grain - k_row;
      store(BlockOrder::end_key, end_key);
      if (end_key > first_key) tiles = (end_key - first_key + KeyTile::rows - 1) / KeyTile::rows;
      row = k_row + end_key;
      first_row = k_row + first_key;
    }
    store(BlockOrder::tiles, tiles);
    if (tiles == 0) {
      announce_q(0);
      continue;
    }

    const SharedAddress q = Types::q(q_place.stage());
    const SharedAddress q_full = announce_q(QueryTile::bytes);
    if (leads())
      copy_tile<QueryTile>(q, a.q, q_full, order[BlockOrder::q_row] + begin, item.head,
                           order[BlockOrder::batch], arch::Reuse::none);
    const auto kv_head = static_cast<std::int32_t>(p.kv_head(item.head));
    const std::int32_t k_batch = p.lengths.packed_k() ? 0 : item.batch;
    for (; tiles > 0; --tiles) {
      row -= KeyTile::rows;  // below the first key there may be rows of others
      if constexpr (in_pages) {
        // Each thread has one panel of a box.
        const int number = copying_thread(), panel = number % KeyTile::count,
                  tile_row = number / KeyTile::count * a.box_rows;
        const auto offset = static_cast<std::uint32_t>(panel * KeyTile::panel_bytes +
                                                       tile_row * KeyTile::row_bytes);
        const PageBox box(p.k, a.forward.caches, item.batch, row + tile_row, a.box_rows, first_row);
        const auto copy = [&](SharedAddress tile, const TensorMap& map, const auto& ring) {
          const SharedAddress full = ring.fill(place, a.box_rows * KeyTile::row_bytes);
          arch::copy_box(tile + offset, map, full, panel * KeyTile::width, box.row, kv_head,
                         box.page, arch::Reuse::much);
        };
        copy(Types::k(place.stage()), a.k, k_ring);
        copy(Types::v(place.stage()), a.v, v_ring);
      } else {
        copy_tile<KeyTile>(Types::k(place.stage()), a.k, k_ring.fill(place, KeyTile::bytes), row,
                           kv_head, k_batch, arch::Reuse::much);
        copy_tile<KeyTile>(Types::v(place.stage()), a.v, v_ring.fill(place, KeyTile::bytes), row,
                           kv_head, k_batch, arch::Reuse::much);
      }
      place.advance();
    }
  }
  q_ring.wait_until_empty(q_place);
  if (leads()) Types::order(blocks).store(BlockOrder::number, -1);
  announce_q(0);
}

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
