// Rows that are keys and values on Hopper (decode/sm90_latent.hpp): what the kernels have in shared memory, how keys and
// q get there, and how results leave it.
#pragma once

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
  static_assert(32 + (value_parts + 1) * Ring<stages>::bytes + Ring<weight_stages>::bytes <= 256);
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

// What a workgroup computes. Whoever needs it again at the end asks again, rather than keep it in registers.
template <KernelSpec spec>
struct LatentWork {
  DecodeItem item;
  SequenceView sequence;
  DecodePart part;

  explicit LatentWork(const DecodeArguments& a)
      : item(a, arch::renewed(arch::group())),
        sequence(a.problem, item.batch),
        part(a, sequence, item.block, LatentGroupTypes<spec>::rows, item.split, a.splits,
             LatentGroupTypes<spec>::keys) {}
  // The part of the results.
  std::int32_t result() const { return LatentPair::exists() ? item.split / 2 : item.split; }
  PackedRow row(const DecodeArguments& a, int n) const {
    return PackedRow(part.row_begin + n, static_cast<std::uint32_t>(a.group), item.kv_head);
  }
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
template <KernelSpec spec>
void copy_latent_queries(const DecodeArguments& a, const LatentWork<spec>& work, int warp,
                         int warps) {
  using Types = LatentGroupTypes<spec>;
  using Tile = Panels<Types::rows, latent_values + latent_rest>;
  static_assert(Tile::bytes == Types::query_bytes);
  const Rows& q = a.problem.q;
#pragma clang loop unroll(disable)
  for (int row = warp; row < Types::rows; row += warps) {
    const bool there = row < work.part.rows;
    const PackedRow packed = work.row(a, there ? row : 0);
    const std::byte* const from = row_address<spec.dtype>(
        q, work.sequence.batch, work.sequence.q_row + packed.query, packed.head);
    for (int column = 8 * arch::lane(); column < Tile::columns; column += 8 * arch::wave_size) {
      const bool exists = there && column < q.columns;
      arch::copy_async(Types::q(0) + static_cast<std::uint32_t>(Tile::offset(row, column)),
                       from + (exists ? number_bytes<spec.dtype> * column : 0), exists);
    }
  }
  arch::commit_copies();
  arch::reach_barrier(latent_keys_barrier, LatentGroups::threads);
  arch::wait_for_copies<0>();
}

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
  const LatentWork<spec> work(arch::again(a));
  const LatentResults<spec.dtype> to{a, work.sequence, work.result()};
  arch::wave_barrier();  // repaired rows are there
#pragma clang loop unroll(disable)
  for (int row = first; row < work.part.rows; row += step) {
    const PackedRow packed = work.row(a, row);
    for (int column = 4 * arch::lane(); column < latent_values; column += 4 * arch::wave_size)
      to.store(packed, column,
               __builtin_bit_cast(Float4, arch::load_shared(Types::result(row, column))));
    if (arch::lane() == 0) to.store_lse(packed, arch::load_shared_float(Types::lse(row)));
  }
}

// The same of both workgroups of a pair, merged; each has half of the rows.
template <KernelSpec spec>
void merge_latent(const DecodeArguments& a, int first, int step) {
  using Types = LatentGroupTypes<spec>;
  const LatentWork<spec> work(arch::again(a));
  const LatentResults<spec.dtype> to{a, work.sequence, work.result()};
  const int begin = Types::rows / 2 * LatentPair::rank(), end = begin + Types::rows / 2;
#pragma clang loop unroll(disable)
  for (int row = begin + first; row < end && row < work.part.rows; row += step) {
    const PackedRow packed = work.row(a, row);
    float lse[2], share[2], highest = -infinity, sum = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < 2; ++n) {
      lse[n] = arch::load_cluster_float(arch::address_in(n, Types::lse(row)));
      if (__builtin_fabsf(lse[n]) == infinity) lse[n] = -infinity;  // it has seen nothing
      highest = __builtin_fmaxf(highest, lse[n]);
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < 2; ++n) {
      share[n] = lse[n] == -infinity ? 0.0f : arch::exp2((lse[n] - highest) * log2_e);
      sum += share[n];
    }
    const float factor = sum == 0 ? 0.0f : 1 / sum;
    for (int column = 4 * arch::lane(); column < latent_values; column += 4 * arch::wave_size) {
      Float4 x = {};
      ROCFLASH_UNROLL
      for (int n = 0; n < 2; ++n) {
        const Float4 y = arch::load_cluster_floats(arch::address_in(n, Types::result(row, column)));
        if (share[n] != 0) x += share[n] * factor * y;
      }
      to.store(packed, column, x);
    }
    if (arch::lane() == 0)
      to.store_lse(packed, sum == 0 ? infinity : highest + arch::log2(sum) * ln_2);
  }
}

}  // namespace rocflash::kernel
