// What a workgroup of sm90.hpp and sm90_large.hpp works on: its types and shared memory, the block of keys, and
// how tiles of queries get to shared memory.
//
//   shared memory   k, v; tiles of q and of dout, and what belongs to their queries; two tiles of dS; one of
//                   dQ; which queries see each key; what the copying warpgroup tells the others
#pragma once

#include "arch/arch.hpp"
#include "attention/sequence.hpp"
#include "attention/softmax.hpp"
#include "attention/work.hpp"
#include "backward/dq_sums.hpp"
#include "backward/gradient.hpp"
#include "backward/planes.hpp"
#include "backward/query_tiles.hpp"
#include "backward/statistic.hpp"
#include "backward/turns.hpp"
#include "table/backward.hpp"
#include "tile/sm90.hpp"

namespace rocflash::kernel {

// Words in shared memory that one thread writes for others: nobody keeps them in registers.
template <class Word>
class SharedWords {
 public:
  explicit SharedWords(SharedAddress at) : at_(at) {}
  std::int32_t operator[](Word word) const {
    return static_cast<std::int32_t>(arch::load_shared4(at_ + 4 * word));
  }
  float* floats(Word word) const {
    return __builtin_bit_cast(float*, arch::load_shared8(at_ + 4 * word));
  }
  void store(Word word, std::int32_t x) const {
    arch::store_shared(at_ + 4 * word, static_cast<std::uint32_t>(x));
  }
  void store(Word word, const float* x) const {
    arch::store_shared(at_ + 4 * word, __builtin_bit_cast(Words2, x));
  }

 private:
  SharedAddress at_;
};

// A tile of queries.
struct TileOrder {
  enum Word {
    sums = 0,     // where dq of its first queries is, 2 words
    query = 2,    // its first
    rows,         // of the sequence from there on
    left,         // tiles behind it
    is_first,     // of all
    is_edge,      // some query does not see some key
    number,       // tiles before it
    counter,      // of blocks that have added to its sums, 2 words
    before = 10,  // that of the tile before; null if there is none
    turn = 12     // what the counter says once it is the block's turn
  };
  static constexpr std::uint32_t bytes = 64;
};

// The keys of a workgroup and the queries that they meet.
struct BlockOrder {
  enum Word {
    lse = 0,
    delta = 2,
    sums = 4,  // of the first query of the first head, 2 words each
    keys = 6,  // of the sequence, from the block's first on
    k_row,     // of the tensor, and so on: what copies are told
    k_batch,
    k_head,
    q_row,
    q_batch,
    sq,
    first,
    end,
    common_begin,
    common_end,
    start,
    count,               // as QueryTiles has them
    number,              // of the block in its sequence
    counters = 20,       // of additions to the sums of the first query of the first head, 2 words
    head_counters = 22,  // of one head
    sk
  };
  static constexpr std::uint32_t bytes = 96;
};

// Which stages of the rings a tile has: those of q, and those of dout and of the statistics. Where the rings
// have as many stages, one place is enough.
template <int q_stages, int stages>
class TilePlaces {
 public:
  const DrainPlace<q_stages>& q() const { return q_; }
  const DrainPlace<stages>& rest() const {
    if constexpr (q_stages == stages) {
      return q_;
    } else {
      return rest_;
    }
  }
  void advance() {
    q_.advance();
    if constexpr (q_stages != stages) rest_.advance();
  }

 private:
  DrainPlace<q_stages> q_;
  DrainPlace<stages> rest_;
};

// The types and the shared memory of one kernel.
template <KernelSpec spec>
struct KeyGroupsTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr bool keys_add = true;  // the warpgroups that own keys add to dq
  static constexpr int bucket = spec.bucket;
  static constexpr BackwardGroups tile = backward_groups(spec);
  static constexpr int q_stages = tile.q_stages;
  static constexpr int stages = tile.stages, queries = tile.queries, keys = tile.keys();
  static constexpr int computing_threads = tile.groups * arch::warpgroup_size;

  using KeyTile = Panels<keys, bucket>;
  using QueryTile = Panels<queries, bucket>;
  using ScoreTile = Panels<keys, queries>;  // one row per key
  using Scores = GroupTile<queries>;
  using Weights = Fragments<queries / product_depth>;  // P and dS as operands
  using KeySums = GroupTile<bucket>;
  // dQ: 64 queries of a warpgroup, and the share of the columns that is left for it, or a part of them.
  static constexpr int query_columns = tile.query_columns(bucket),
                       query_groups = tile.query_groups();
  using QuerySums = GroupTile<query_columns>;
  static constexpr int strips = query_columns / DqSums::columns;  // of a warp's 16 queries
  static constexpr std::uint32_t warp_sums = 4 * DqSums::block_floats * strips;
  static_assert(queries == group_rows);
  static_assert(query_columns % KeyTile::width == 0 && ScoreTile::width == group_rows);

  using Tiles = QueryTiles<keys, queries>;
  using TileWords = SharedWords<TileOrder::Word>;
  using BlockWords = SharedWords<BlockOrder::Word>;
  using QRing = Ring<q_stages>;
  using QueryRing = Ring<stages>;

  static SharedAddress k() { return arch::shared_begin(); }
  static SharedAddress v() { return k() + KeyTile::bytes; }
  static SharedAddress q(int stage) {
    return k() + 2 * KeyTile::bytes + static_cast<std::uint32_t>(stage * QueryTile::bytes);
  }
  static SharedAddress dout(int stage) { return q(q_stages + stage); }
  static SharedAddress ds(std::uint32_t half) { return dout(stages) + half * ScoreTile::bytes; }
  static SharedAddress dq(int group, int warp) {
    return ds(2) + static_cast<std::uint32_t>(4 * group + warp) * warp_sums;
  }
  // Of a stage: -lse of each query in powers of two, delta of each, the order.
  static constexpr std::uint32_t statistic_bytes = 8 * queries + TileOrder::bytes;
  static SharedAddress minus_lse(int stage) {
    return dq(query_groups, 0) + static_cast<std::uint32_t>(stage) * statistic_bytes;
  }
  static SharedAddress delta(int stage) { return minus_lse(stage) + 4 * queries; }
  static TileWords order(int stage) { return TileWords(minus_lse(stage) + 8 * queries); }
  static SharedAddress seeing(int key) {  // its first query and how many
    return minus_lse(stages) + 8 * static_cast<std::uint32_t>(key);
  }
  static BlockWords block() { return BlockWords(seeing(keys)); }
  static Ring<1> key_ring() { return Ring<1>(seeing(keys) + BlockOrder::bytes); }
  static QRing q_ring() { return QRing(seeing(keys) + BlockOrder::bytes + Ring<1>::bytes); }
  static SharedAddress ring(std::uint32_t n) {
    return seeing(keys) + BlockOrder::bytes + Ring<1>::bytes + QRing::bytes + n * QueryRing::bytes;
  }
  static QueryRing dout_ring() { return QueryRing(ring(0)); }
  static QueryRing statistics_ring() { return QueryRing(ring(1)); }
  // Weights that pass from one warpgroup to the other (tile.same_keys), through the second tile of dS.
  static Ring<1> weights_ring() { return Ring<1>(ring(2)); }
  // Tiles of dq whose additions are done, where blocks take turns (tile.same_keys).
  static Ring<1> added_ring() { return Ring<1>(ring(2) + Ring<1>::bytes); }
  static constexpr int shared_bytes =
      2 * KeyTile::bytes + (q_stages + stages) * QueryTile::bytes + 2 * ScoreTile::bytes +
      query_groups * 4 * static_cast<int>(warp_sums) + stages * static_cast<int>(statistic_bytes) +
      8 * keys + static_cast<int>(BlockOrder::bytes) + Ring<1>::bytes + QRing::bytes +
      2 * QueryRing::bytes + (tile.same_keys ? 2 * Ring<1>::bytes : 0);
  static_assert(shared_bytes == backward_groups_shared(spec));
  static_assert(KeyTile::bytes % 1024 == 0 && QueryTile::bytes % 1024 == 0 &&
                ScoreTile::bytes % 1024 == 0);
};

// The keys of a workgroup. Under a causal mask the first ones are seen by most queries: they go first. Where blocks
// take turns they go last, as that is the order of the turns.
template <class Types>
struct OwnKeys {
  WorkItem item;
  SequenceView sequence;
  std::int32_t begin;

  explicit OwnKeys(const BackwardArguments& a, int group = arch::group())
      : item(a.work, static_cast<std::int32_t>(a.problem.kv_heads), group),
        sequence(a.problem, item.batch),
        begin((DqTurns::in_order(a) ? item.block : a.work.blocks - 1 - item.block) * Types::keys) {}
  bool exist() const { return begin < sequence.sk; }
  std::int32_t rows() const { return sequence.sk - begin; }
};

// Tells all roles about the block, before they part. Everybody has found the keys.
template <class Types>
void store_block(const BackwardArguments& a, const OwnKeys<Types>& own) {
  const Problem& p = a.problem;
  const SequenceView& sequence = own.sequence;
  // One warp after the other has something to do.
  if (const int key = arch::thread() - arch::warpgroup_size; key >= 0 && key < Types::keys) {
    const KeyView view(p.visibility, sequence, own.begin + key);
    arch::store_shared(Types::seeing(key),
                       Words2{static_cast<std::uint32_t>(view.begin),
                              static_cast<std::uint32_t>(view.end - view.begin)});
  }
  if (arch::thread() != 0) return;
  const auto block = Types::block();
  const auto head = static_cast<std::int64_t>(own.item.head) * p.group();
  block.store(BlockOrder::lse, &a.tensors.lse.at(sequence.batch, head, sequence.q_row));
  block.store(BlockOrder::delta, &a.delta.at(sequence.batch, head, sequence.q_row));
  block.store(BlockOrder::sums, DqSums(a, sequence, head).start(0, 0));
  block.store(BlockOrder::keys, own.rows());
  block.store(BlockOrder::k_row, static_cast<std::int32_t>(sequence.k_row) + own.begin);
  block.store(BlockOrder::k_batch, p.lengths.packed_k() ? 0 : own.item.batch);
  block.store(BlockOrder::k_head, own.item.head);
  block.store(BlockOrder::q_row, static_cast<std::int32_t>(sequence.q_row));
  block.store(BlockOrder::q_batch, p.lengths.packed_q() ? 0 : own.item.batch);
  block.store(BlockOrder::sq, sequence.sq);
  const typename Types::Tiles tiles(p.visibility, sequence, own.begin, DqTurns::in_order(a));
  block.store(BlockOrder::first, tiles.first);
  block.store(BlockOrder::end, tiles.end);
  block.store(BlockOrder::common_begin, tiles.common_begin);
  block.store(BlockOrder::common_end, tiles.common_end);
  block.store(BlockOrder::start, tiles.start);
  block.store(BlockOrder::count, tiles.count);
  if (!DqTurns::in_order(a)) return;
  const DqTurns turns(a, sequence);
  block.store(BlockOrder::number, own.begin / Types::keys);
  block.store(BlockOrder::counters, reinterpret_cast<const float*>(turns.counter(head, 0)));
  block.store(BlockOrder::head_counters, static_cast<std::int32_t>(turns.head_stride()));
  block.store(BlockOrder::sk, sequence.sk);
}

// The counter of a tile; heads of the group count from 0.
template <class Types>
const float* tile_counter(std::int32_t query, std::int32_t head) {
  const auto block = Types::block();
  return block.floats(BlockOrder::counters) +
         std::int64_t{head} * block[BlockOrder::head_counters] + query / DqSums::rows;
}

// Stores when it is the block's turn at the sums of a tile. Blocks of keys follow each other as they are started, so
// that none waits for one that cannot start. `before` is the order of the tile before, if there is one.
template <class Types>
void store_turn(const BackwardArguments& a, std::int32_t query, std::int32_t head,
                typename Types::TileWords order, typename Types::TileWords before) {
  const auto block = Types::block();
  const Sight sight(a.problem.visibility, block[BlockOrder::sq], block[BlockOrder::sk]);
  order.store(TileOrder::counter, tile_counter<Types>(query, head));
  order.store(TileOrder::before, order[TileOrder::number] > 0 ? before.floats(TileOrder::counter)
                                                              : static_cast<const float*>(nullptr));
  order.store(TileOrder::turn,
              blocks_before<Types::keys, Types::queries>(sight, block[BlockOrder::number], query));
}

// The block's turn at the sums of a tile.
struct Turn {
  const float* counter;
  std::uint32_t number;

  template <class Words>
  explicit Turn(Words order)
      : counter(order.floats(TileOrder::counter)),
        number(static_cast<std::uint32_t>(order[TileOrder::turn])) {}
  bool has_come() const {
    return arch::load_counter(reinterpret_cast<const std::uint32_t*>(counter)) >= number;
  }
};

// Whether it is the block's turn; waits until it is; passes the turn at a tile, whose additions are done.
template <class Words>
bool is_turn(Words order) {
  return Turn(order).has_come();
}
template <class Words>
void wait_for_turn(Words order, bool has_come) {
  while (!has_come) has_come = is_turn(order);
  arch::order_copies();
}
inline void wait_for_turn(const Turn& turn, bool has_come) {
  while (!has_come) has_come = turn.has_come();
  arch::order_copies();
}
inline void pass_turn(const float* counter) {
  if (!counter) return;
  arch::order_copies();
  arch::count(reinterpret_cast<std::uint32_t*>(const_cast<float*>(counter)));
}

// One tile of the block after the other, in the order that all roles follow. Heads of the group count from 0.
template <class Types>
struct TileCursor {
  std::int32_t query = Types::block()[BlockOrder::start], head = 0;

  void advance() {
    const auto block = Types::block();
    query += Types::queries;
    if (query >= block[BlockOrder::end]) query = block[BlockOrder::first];
    if (query == block[BlockOrder::start]) ++head;
  }
};

// Calls tile(query, head, left) for each tile of the block; `left` tiles follow.
template <class Types, class Tile>
void for_each_tile(std::int32_t group, Tile tile) {
  TileCursor<Types> cursor;
  for (std::int32_t left = Types::block()[BlockOrder::count] * group; left-- > 0; cursor.advance())
    tile(cursor.query, cursor.head, left);
}

// What the copying thread does.
template <KernelSpec spec>
void copy_rows(const BackwardWarpgroupsArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  using KeyTile = typename Types::KeyTile;
  using QueryTile = typename Types::QueryTile;
  const auto block = Types::block();
  const auto keys_full = Types::key_ring().announce(FillPlace<1>(), 2 * KeyTile::bytes);
  const auto copy_keys = [&](SharedAddress to, const TensorMap& map) {
    copy_tile<KeyTile>(to, map, keys_full, block[BlockOrder::k_row], block[BlockOrder::k_head],
                       block[BlockOrder::k_batch], arch::Reuse::none);
  };
  copy_keys(Types::k(), a.k);
  copy_keys(Types::v(), a.v);
  const auto group = static_cast<std::int32_t>(a.backward.problem.group());
  FillPlace<Types::q_stages> q_place;
  FillPlace<Types::stages> place;
  for_each_tile<Types>(group, [&](std::int32_t query, std::int32_t head, std::int32_t) {
    const auto copy = [&](SharedAddress to, const TensorMap& map, SharedAddress full) {
      copy_tile<QueryTile>(to, map, full, block[BlockOrder::q_row] + query,
                           block[BlockOrder::k_head] * group + head, block[BlockOrder::q_batch],
                           arch::Reuse::much);
    };
    copy(Types::q(q_place.stage()), a.q, Types::q_ring().fill(q_place, QueryTile::bytes));
    q_place.advance();
    copy(Types::dout(place.stage()), a.dout, Types::dout_ring().fill(place, QueryTile::bytes));
    place.advance();
  });
}

// What a second warp of the copying group does: lse, delta and the order of each tile. Queries past the
// sequence's end get an lse at which all weights are 0.
template <KernelSpec spec>
void copy_statistics(const BackwardArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  const auto block = Types::block();
  const auto ring = Types::statistics_ring();
  FillPlace<Types::stages> place;
  begin_behind_delta();
  const auto group = static_cast<std::int32_t>(a.problem.group());
  // Where blocks take turns: whoever has reported a stage as read has done the additions of the tile before.
  const bool passes = DqTurns::in_order(a) && !Types::tile.same_keys;
  const auto pass = [&](bool was_used) {
    if (was_used && passes && arch::lane() == 0)
      pass_turn(Types::order(place.stage()).floats(TileOrder::before));
  };
  for_each_tile<Types>(group, [&](std::int32_t query, std::int32_t head, std::int32_t left) {
    const std::int32_t rows = block[BlockOrder::sq] - query;
    ring.wait_until_empty(place);
    pass(left + 1 + Types::stages <= block[BlockOrder::count] * group);
    const auto copy = [&](SharedAddress to, BlockOrder::Word base, std::int64_t head_stride,
                          float factor, float otherwise) {
      const float* const from = block.floats(base) + head * head_stride + query;
      _Pragma("clang loop unroll(disable)") for (int n = arch::lane(); n < Types::queries;
                                                 n += arch::wave_size) {
        const float x = n < rows ? statistic(arch::load(from + n), factor) : otherwise;
        arch::store_shared(to + static_cast<std::uint32_t>(4 * n),
                           __builtin_bit_cast(std::uint32_t, x));
      }
    };
    copy(Types::minus_lse(place.stage()), BlockOrder::lse, a.tensors.lse.head_stride,
         -PowersOfTwo::of_natural, -infinity);
    copy(Types::delta(place.stage()), BlockOrder::delta, a.delta.head_stride, 1, 0);
    if (arch::lane() == 0) {
      const auto order = Types::order(place.stage());
      order.store(TileOrder::sums, block.floats(BlockOrder::sums) + head * a.dq_sums.head_stride +
                                       std::int64_t{query} * spec.bucket);
      order.store(TileOrder::query, query);
      order.store(TileOrder::rows, rows);
      order.store(TileOrder::left, left);
      const std::int32_t number = block[BlockOrder::count] * group - 1 - left;
      order.store(TileOrder::is_first, number == 0);
      order.store(TileOrder::number, number);
      if (DqTurns::in_order(a))
        store_turn<Types>(a, query, head, order, Types::order(place.before().stage()));
      order.store(TileOrder::is_edge, query < block[BlockOrder::common_begin] ||
                                          query + Types::queries > block[BlockOrder::common_end]);
    }
    ring.announce(place, 0);  // each lane what it stored
    place.advance();
  });
  if (!passes) return;
  const std::int32_t count = block[BlockOrder::count] * group;
  for (std::int32_t n = 0; n < Types::stages; ++n) {
    ring.wait_until_empty(place);
    pass(n + count >= Types::stages);
    if (n + 1 < Types::stages) place.advance();
  }
  if (count > 0 && arch::lane() == 0)
    pass_turn(Types::order(place.stage()).floats(TileOrder::counter));
}

// What a third warp does where blocks take turns and others report additions that are done: a turn is passed by a
// fence for the whole device, which takes long.
template <KernelSpec spec>
void pass_turns(const BackwardArguments& a) {
  using Types = KeyGroupsTypes<spec>;
  if (!DqTurns::in_order(a) || arch::lane() != 0) return;
  DrainPlace<1> place;
  for_each_tile<Types>(static_cast<std::int32_t>(a.problem.group()),
                       [&](std::int32_t query, std::int32_t head, std::int32_t) {
                         Types::added_ring().wait(place);
                         Types::added_ring().release(place);
                         place.advance();
                         pass_turn(tile_counter<Types>(query, head));
                       });
}

// The named barrier that says that all additions to dq are done.
inline constexpr int additions_done = 6;

// What the copying warpgroup does.
template <KernelSpec spec>
void copy_tiles(const BackwardWarpgroupsArguments& a) {
  arch::give_registers<KeyGroupsTypes<spec>::tile.copying>();
  if (arch::thread() == 0) copy_rows<spec>(a);
  if (arch::wave() == 1) copy_statistics<spec>(a.backward);
  if constexpr (KeyGroupsTypes<spec>::tile.same_keys) {
    if (arch::wave() == 2) pass_turns<spec>(a.backward);
  } else if (arch::wave() == 3) {
    // Reports for the others, which need not wait until it is seen.
    arch::barrier(additions_done, KeyGroupsTypes<spec>::computing_threads + arch::wave_size);
    report_additions(a.backward);
  }
}

}  // namespace rocflash::kernel
