// What a workgroup of sm90.hpp works on: its types and shared memory, the orders of blocks, and how tiles get to shared
// memory.
//
// Of keys in pages a tile is some boxes, each in one page, and each copied by a thread of its own. Tiles end where boxes
// end; values behind the sequence's end may be anything, and become 0 in shared memory (sm90.hpp).
#pragma once

#include "arch/arch.hpp"
#include "attention/page_box.hpp"
#include "attention/sequence.hpp"
#include "attention/sight.hpp"
#include "attention/turns.hpp"
#include "attention/work.hpp"
#include "table/forward.hpp"
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

}  // namespace rocflash::kernel
