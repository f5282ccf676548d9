// Rows that are keys and values on Hopper (decode/sm90_latent.hpp): what the kernels have in shared memory, how keys and
// q get there, and how results leave it.
#pragma once

#include "attention/columns.hpp"
#include "attention/exact.hpp"
#include "attention/softmax.hpp"
#include "decode/latent.hpp"
#include "tile/sm90.hpp"

namespace rocflash::kernel {

inline constexpr int group_warps = arch::warpgroup_size / arch::wave_size;

// Types and shared memory of one kernel.
template <KernelSpec spec>
struct LatentGroupTypes {
  static constexpr DType dtype = spec.dtype;
  static constexpr int rows = spec.bucket;
  static constexpr LatentGroups groups{rows};
  static constexpr int stages = LatentGroups::stages, weight_stages = groups.weight_stages();
  static constexpr int keys = LatentGroups::keys, half = latent_values / 2;

  // Columns that are copied and freed on their own: parts of the values, then the rest.
  static constexpr int value_parts = 4, part = latent_values / value_parts,
                       own_parts = value_parts / 2;
  using KeyHalf = Panels<keys, half>;
  using KeyPart = Panels<keys, part>;
  using KeyRest = Panels<keys, latent_rest>;
  using QueryPart = Panels<rows, part>;
  using QueryRest = Panels<rows, latent_rest>;
  using WeightTile = Panels<rows, keys>;

  static constexpr int query_bytes = value_parts * QueryPart::bytes + QueryRest::bytes,
                       stage_bytes = value_parts * KeyPart::bytes + KeyRest::bytes;
  static_assert(query_bytes % 1024 == 0 && stage_bytes % 1024 == 0 &&
                WeightTile::bytes % 1024 == 0);

  static SharedAddress q(int number) {
    return arch::shared_begin() + static_cast<std::uint32_t>(number * QueryPart::bytes);
  }
  static SharedAddress k(int stage, int number) {
    return arch::shared_begin() +
           static_cast<std::uint32_t>(query_bytes + stage * stage_bytes + number * KeyPart::bytes);
  }
  static SharedAddress weights(int stage) {
    return k(stages, 0) + static_cast<std::uint32_t>(stage * WeightTile::bytes);
  }
  // Results take the place of the keys. Rows are some bytes apart, so that lanes use different banks: they store one
  // column each of every other row (sm90_latent_few.hpp), or two of neighbouring rows (sm90_latent_many.hpp).
  static constexpr int result_bytes = 4 * latent_values + (rows < group_rows ? 16 : 32);
  static SharedAddress result(int row, int column) {
    return k(0, 0) + static_cast<std::uint32_t>(row * result_bytes + 4 * column);
  }
  static_assert(rows * result_bytes <= stages * stage_bytes);
  // Words per row of q.
  static SharedAddress factor(int stage, int row) {
    return weights(weight_stages) + static_cast<std::uint32_t>(4 * (stage * rows + row));
  }
  static SharedAddress of_warp(int warp, int row) { return factor(weight_stages + warp, row); }
  static SharedAddress seen_keys(int row) {
    return of_warp(4, 0) + static_cast<std::uint32_t>(8 * row);
  }
  // At the end, in the same place.
  static SharedAddress lse(int row) { return seen_keys(row); }
  static SharedAddress end(int row) {
    return seen_keys(rows) + static_cast<std::uint32_t>(8 * row);
  }  // base and factor
  // Whether a reference has moved that a warp needs to know of.
  static SharedAddress moved(int stage, int warp) {
    return end(rows) + static_cast<std::uint32_t>(4 * (stage * group_warps + warp));
  }
  // Rows of q that each warp found broken, in the place of the weights.
  static SharedAddress broken(int warp) {
    return weights(0) + static_cast<std::uint32_t>(8 * warp);
  }
  static SharedAddress barriers() { return moved(2, 0); }
  static Ring<stages> k_ring(int number) {
    return Ring<stages>(barriers() + static_cast<std::uint32_t>(number * Ring<stages>::bytes));
  }
  static Ring<weight_stages> weight_ring() {
    return Ring<weight_stages>(barriers() + (value_parts + 1) * Ring<stages>::bytes);
  }
  // What LatentRows keeps.
  static SharedAddress kept() {
    return barriers() + (value_parts + 1) * Ring<stages>::bytes + Ring<weight_stages>::bytes;
  }
  static constexpr int kept_bytes = 32;
  static_assert(32 + (value_parts + 1) * Ring<stages>::bytes + Ring<weight_stages>::bytes +
                    kept_bytes <=
                256);
  static_assert(groups.dynamic_shared() <= 232448);
};

// An address that the compiler then knows to be the same in all lanes, and keeps where the matrix unit wants it.
inline SharedAddress uniform_address(SharedAddress at) {
  return static_cast<SharedAddress>(
      __nvvm_shfl_sync_idx_i32(arch::all_lanes, static_cast<int>(at), 0, 31));
}

// Scores of some columns of the rows, as a group of products; the first of a tile is `fresh`.
template <DType dtype, int depth, bool fresh, class Scores, class Left, class Right>
void add_scores(Scores& scores ROCFLASH_TAKES_OFF, const Left& left, const Right& right) {
  Products products;
  if constexpr (fresh) products.template multiply<dtype, depth>(scores, left, right);
  if constexpr (!fresh) products.template add<dtype, depth>(scores, left, right);
  products.commit();
  expect(scores);
}

// Named barriers.
inline constexpr int latent_scores_barrier = 1, latent_start_barrier = 2, latent_values_barrier = 3,
                     latent_keys_barrier = 4;

// Two workgroups that have neighbouring parts of the keys may form a cluster: they merge their results through shared
// memory, which leaves half as many parts to be written and read.
struct LatentPair {
  static bool exists() { return arch::cluster_groups() > 1; }
  static int rank() { return arch::cluster_rank(); }
  // All threads of both: results are there; they have been read. Threads that have no part in it reach both.
  static void meet() {
    arch::reach_cluster_barrier();
    arch::pass_cluster_barrier();
  }
  static void leave() {
    if (!exists()) return;
    meet();
    arch::reach_cluster_barrier();
  }
};

// What a workgroup computes.
template <KernelSpec spec>
struct LatentWork {
  DecodeItem item;
  SequenceView sequence;
  DecodePart part;

  explicit LatentWork(const DecodeArguments& a)
      : item(a, number(a, arch::renewed(arch::group()))),
        sequence(a.problem, item.batch),
        part(a, sequence, item.block, LatentGroupTypes<spec>::rows, 0, 1,
             LatentGroupTypes<spec>::keys) {
    divide(a.splits);
  }
  // The part of the results.
  std::int32_t result() const { return LatentPair::exists() ? item.split / 2 : item.split; }
  PackedRow row(const DecodeArguments& a, int n) const {
    return PackedRow(part.row_begin + n, static_cast<std::uint32_t>(a.group), item.kv_head);
  }

 private:
  // Both workgroups of a pair have the same block of rows.
  static std::int32_t number(const DecodeArguments& a, std::int32_t group) {
    if (!LatentPair::exists()) return group;
    const std::int32_t pair = group / 2;
    return (pair / a.blocks * 2 + group % 2) * a.blocks + pair % a.blocks;
  }
  // Of all tiles those of this split: none has two more than another.
  void divide(std::int32_t splits) {
    constexpr std::int64_t keys = LatentGroupTypes<spec>::keys;
    const auto tiles = static_cast<std::int32_t>((part.end - part.begin + keys - 1) / keys);
    const std::int32_t least = tiles / splits, more = tiles % splits, split = item.split;
    const std::int64_t begin =
        part.begin + (split * std::int64_t{least} + (split < more ? split : more)) * keys;
    const std::int64_t end = begin + (least + (split < more ? 1 : 0)) * keys;
    part.begin = static_cast<std::int32_t>(smaller(begin, part.end));
    part.end = static_cast<std::int32_t>(smaller(end, part.end));
    part.common_end = static_cast<std::int32_t>(smaller(part.common_end, part.end));
  }
};

// The rows of a workgroup and where their results go. To find out takes 1 us, and registers are full in between: the
// start keeps it in shared memory for the end.
template <KernelSpec spec>
class LatentRows {
  using Types = LatentGroupTypes<spec>;

 public:
  static void keep(const LatentWork<spec>& work) {
    const auto word = [](auto x) { return static_cast<std::uint32_t>(x); };
    const std::int64_t q_row = work.sequence.q_row;
    arch::store_shared(Types::kept(), Words4{word(work.part.rows), word(work.part.row_begin),
                                             word(work.item.kv_head), word(work.result())});
    arch::store_shared(Types::kept() + 16,
                       Words4{word(q_row), word(q_row >> 32), word(work.item.batch), 0});
  }
  explicit LatentRows(const DecodeArguments& a) : a_(a) {
    const Words4 x = arch::load_shared(Types::kept()), y = arch::load_shared(Types::kept() + 16);
    count = static_cast<std::int32_t>(x.x);
    begin_ = static_cast<std::int32_t>(x.y);
    kv_head_ = static_cast<std::int32_t>(x.z);
    part_ = static_cast<std::int32_t>(x.w);
    q_row_ = static_cast<std::int64_t>(std::uint64_t{y.y} << 32 | y.x);
    batch_ = static_cast<std::int32_t>(y.z);
  }

  struct Row {
    std::byte* out;
    float* lse;  // may be null
  };
  Row row(int n) const {
    const PackedRow packed(begin_ + n, static_cast<std::uint32_t>(a_.group), kv_head_);
    const std::int64_t query = q_row_ + packed.query;
    if (a_.direct)
      return {row_address<spec.dtype>(a_.outputs.out, batch_, query, packed.head),
              a_.outputs.lse ? &a_.outputs.lse.at(batch_, packed.head, query) : nullptr};
    return {row_address(a_.out, DType::f32, batch_, query, packed.head) + 4 * part_ * a_.out_part,
            &a_.lse.at(batch_, packed.head, query) + part_ * a_.lse_part};
  }
  // Four neighbouring columns.
  void store(const Row& to, int column, Float4 x) const {
    if (!a_.direct) return arch::store(reinterpret_cast<Float4*>(to.out + 4 * column), x);
    store_four(to.out, spec.dtype, column, static_cast<int>(a_.outputs.out.columns), x);
  }
  static void store_lse(const Row& to, float lse) {
    if (arch::lane() == 0 && to.lse) arch::store(to.lse, lse);
  }

  std::int32_t count;

 private:
  const DecodeArguments& a_;
  std::int32_t begin_, kv_head_, part_, batch_;
  std::int64_t q_row_;
};

// What the copying warps do. Their lanes look up pages ahead, one box each; the first one starts a share of the copies.
template <KernelSpec spec>
void copy_latent(const LatentWarpgroupsArguments& a, const SequenceView& sequence,
                 const DecodePart& part, std::int32_t kv_head) {
  using Types = LatentGroupTypes<spec>;
  using Part = typename Types::KeyPart;
  const Rows& keys = a.decode.problem.k;
  const std::int32_t box_rows = a.box_rows, boxes = Types::keys / box_rows;  // a power of two
  const auto page_rows = static_cast<std::uint32_t>(keys.blocks ? keys.block_rows : 0x7fffffff);
  const std::int32_t lane = arch::lane(), last_box = (part.end - 1) / box_rows;
  const std::int32_t* const table =
      keys.blocks ? keys.blocks + sequence.batch * keys.blocks_stride : nullptr;
  // Where a box starts. Those behind the last key are taken for the last one.
  struct Place {
    std::int32_t page, row;
  };
  const auto look_up = [&](std::int32_t box) {
    const auto row = static_cast<std::uint32_t>((box < last_box ? box : last_box) * box_rows);
    if (!table)
      return Place{static_cast<std::int32_t>(sequence.batch), static_cast<std::int32_t>(row)};
    return Place{static_cast<std::int32_t>(
                     clamp(arch::load(table + row / page_rows), 0, a.decode.caches - 1)),
                 static_cast<std::int32_t>(row % page_rows)};
  };
  const auto from_lane = [](std::int32_t x, std::int32_t source) {
    return __nvvm_shfl_sync_idx_i32(arch::all_lanes, x, source, 31);
  };
  // Other blocks of rows read the same keys at the same time.
  const arch::Reuse reuse = a.decode.blocks > 1 ? arch::Reuse::much : arch::Reuse::none;
  const int warp = arch::wave(), shift = __builtin_ctz(static_cast<unsigned>(boxes));
  FillPlace<Types::stages> place;
  std::int32_t box = part.begin / box_rows, used = 0;
  Place places = look_up(box + lane), next_places = look_up(box + arch::wave_size + lane);
  arch::barrier(latent_keys_barrier, LatentGroups::threads);
  for (std::int32_t begin = part.begin; begin < part.end; begin += Types::keys) {
    if (used == arch::wave_size) {
      used = 0;
      places = next_places;
      next_places = look_up(box + arch::wave_size + lane);
    }
    // The rest first: it is free first, and scores start with it.
    ROCFLASH_UNROLL
    for (int n = 0; n <= Types::value_parts; ++n) {
      const int number = (n + Types::value_parts) % (Types::value_parts + 1),
                panels = number == Types::value_parts ? 1 : Part::count;
      const int copies = panels * boxes, own = (copies - warp + group_warps - 1) / group_warps;
      const auto ring = Types::k_ring(number);
      ring.wait_until_empty(place);
      arch::wave_barrier();
      SharedAddress full = 0;
      if (lane == 0) full = ring.announce(place, own * box_rows * Part::row_bytes);
      for (int copy = warp; copy < copies; copy += group_warps) {
        const int which = copy & (boxes - 1), panel = copy >> shift;
        const std::int32_t page = from_lane(places.page, used + which),
                           row = from_lane(places.row, used + which);
        if (lane == 0)
          arch::copy_box(Types::k(place.stage(), number) +
                             static_cast<std::uint32_t>(panel * Part::panel_bytes +
                                                        which * box_rows * Part::row_bytes),
                         a.k, full, number * Types::part + Part::width * panel, row, kv_head, page,
                         reuse);
      }
    }
    used += boxes;
    box += boxes;
    place.advance();
  }
}

// q to shared memory, as an operand of the scores; zeros where there is no such row or column. Rows go to warps by turns.
// Nobody waits for a load before the next one, and keys wait until all of them are on their way: behind two tiles of keys
// they took 3 us longer.
template <KernelSpec spec, int warps>
class LatentQueries {
  using Types = LatentGroupTypes<spec>;
  using Tile = Panels<Types::rows, latent_values + latent_rest>;
  static_assert(Tile::bytes == Types::query_bytes);

 public:
  // Each lane finds one row of its warp: that takes a division.
  LatentQueries(const DecodeArguments& a, const LatentWork<spec>& work, int warp)
      : warp_(warp), rows_(work.part.rows), columns_(static_cast<int>(a.problem.q.columns)) {
    const int own = warp + arch::lane() * warps;
    const PackedRow packed = work.row(a, own < rows_ ? own : 0);
    address_ = reinterpret_cast<std::uint64_t>(row_address<spec.dtype>(
        a.problem.q, work.sequence.batch, work.sequence.q_row + packed.query, packed.head));
  }
  void start_copies() const {
    ROCFLASH_UNROLL
    for (int n = 0; n < (Types::rows + warps - 1) / warps; ++n) {
      const int row = warp_ + n * warps;
      const auto* const from = reinterpret_cast<const std::byte*>(
          std::uint64_t{word(address_ >> 32, n)} << 32 | word(address_, n));
      if (row >= Types::rows) break;
      ROCFLASH_UNROLL
      for (int first = 0; first < Tile::columns; first += 8 * arch::wave_size) {
        const int column = first + 8 * arch::lane();
        if (column >= Tile::columns) break;
        const bool exists = row < rows_ && column < columns_;
        arch::copy_async(Types::q(0) + static_cast<std::uint32_t>(Tile::offset(row, column)),
                         from + (exists ? number_bytes<spec.dtype> * column : 0), exists);
      }
    }
    arch::commit_copies();
    arch::reach_barrier(latent_keys_barrier, LatentGroups::threads);
  }

 private:
  static std::uint32_t word(std::uint64_t x, int lane) {
    return static_cast<std::uint32_t>(
        __nvvm_shfl_sync_idx_i32(arch::all_lanes, static_cast<int>(x), lane, 31));
  }

  int warp_, rows_, columns_;
  std::uint64_t address_;
};

// Rows of a tile from `first` on, whose weights are 0, become 0: they may hold anything.
template <class Types>
void clear_latent_rows(int stage, int first, int thread) {
  constexpr int chunks = Types::KeyHalf::row_bytes / 16;
  const int count = (Types::keys - first) * chunks;
  for (int panel = 0; panel < 2 * Types::KeyHalf::count; ++panel)
    for (int n = thread; n < count; n += arch::warpgroup_size)
      arch::store_shared(Types::k(stage, 0) +
                             static_cast<std::uint32_t>(panel * Types::KeyHalf::panel_bytes +
                                                        first * Types::KeyPart::row_bytes + 16 * n),
                         Words4{});
}

// Rows of results that are not finite are computed again, one by one (attention/exact.hpp), by turns of some warps.
template <KernelSpec spec>
void repair_latent(const DecodeArguments& a, int first, int step, std::uint64_t broken) {
  using Types = LatentGroupTypes<spec>;
  if (broken == 0) return;  // before anything is looked up again
  const auto store = [](SharedAddress to, float x) {
    arch::store_shared(to, __builtin_bit_cast(std::uint32_t, x));
  };
  const LatentWork<spec> work(arch::again(a));
#pragma clang loop unroll(disable)
  for (int row = first; row < work.part.rows; row += step) {
    if (!(broken >> row & 1)) continue;
    const PackedRow packed = work.row(a, row);
    const auto end = __builtin_bit_cast(Float2, arch::load_shared8(Types::end(row)));
    repair(
        ExactScores<spec.dtype>{a.problem, work.sequence, packed.head, a.caches},
        work.part.view(a.problem, work.sequence, packed.query), end.x, end.y, 0,
        a.problem.value_dim, [&](float lse) { store(Types::lse(row), lse); },
        [&](int column, float x) { store(Types::result(row, column), x); });
  }
}

// Rows of results from shared memory to where they belong, by turns of some warps.
template <KernelSpec spec>
void store_latent(const DecodeArguments& a, int first, int step) {
  using Types = LatentGroupTypes<spec>;
  const LatentRows<spec> rows(a);
  arch::wave_barrier();  // repaired rows are there
#pragma clang loop unroll(disable)
  for (int row = first; row < rows.count; row += step) {
    const auto to = rows.row(row);
    for (int column = 4 * arch::lane(); column < latent_values; column += 4 * arch::wave_size)
      rows.store(to, column,
                 __builtin_bit_cast(Float4, arch::load_shared(Types::result(row, column))));
    rows.store_lse(to, arch::load_shared_float(Types::lse(row)));
  }
}

// The same of both workgroups of a pair, merged; each has half of the rows. What the other one has is asked for all at
// once: a load from there takes as long as ten from the own shared memory.
template <KernelSpec spec, int warps>
void merge_latent(const DecodeArguments& a, int warp) {
  using Types = LatentGroupTypes<spec>;
  constexpr int half = Types::rows / 2, at_once = half / warps,
                chunks = latent_values / (4 * arch::wave_size);
  static_assert(half % warps == 0);
  const LatentRows<spec> rows(a);
  const int rank = LatentPair::rank(), first = half * rank + warp;
  float lse[at_once][2];  // own, the other's
  Float4 others[at_once][chunks];
  ROCFLASH_UNROLL
  for (int i = 0; i < at_once; ++i) {
    const int row = first + i * warps;
    lse[i][1] = arch::load_cluster_float(arch::address_in(1 - rank, Types::lse(row)));
    const SharedAddress from = arch::address_in(1 - rank, Types::result(row, 4 * arch::lane()));
    ROCFLASH_UNROLL
    for (int c = 0; c < chunks; ++c)
      others[i][c] =
          arch::load_cluster_floats(from + static_cast<std::uint32_t>(c * 16 * arch::wave_size));
    lse[i][0] = arch::load_shared_float(Types::lse(row));
  }
  ROCFLASH_UNROLL
  for (int i = 0; i < at_once; ++i) {
    const int row = first + i * warps;
    if (row >= rows.count) break;
    const auto to = rows.row(row);
    float share[2], highest = -infinity, sum = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < 2; ++n) {
      if (__builtin_fabsf(lse[i][n]) == infinity) lse[i][n] = -infinity;  // it has seen nothing
      highest = __builtin_fmaxf(highest, lse[i][n]);
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < 2; ++n) {
      share[n] = lse[i][n] == -infinity ? 0.0f : arch::exp2((lse[i][n] - highest) * log2_e);
      sum += share[n];
    }
    const float factor = sum == 0 ? 0.0f : 1 / sum;
    ROCFLASH_UNROLL
    for (int c = 0; c < chunks; ++c) {
      const int column = 4 * (c * arch::wave_size + arch::lane());
      Float4 x = {};
      if (share[0] != 0)
        x = share[0] * factor *
            __builtin_bit_cast(Float4, arch::load_shared(Types::result(row, column)));
      if (share[1] != 0) x += share[1] * factor * others[i][c];
      rows.store(to, column, x);
    }
    rows.store_lse(to, sum == 0 ? infinity : highest + arch::log2(sum) * ln_2);
  }
}

}  // namespace rocflash::kernel
