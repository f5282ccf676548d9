// Tiles of the fused backward by wave pairs (amd_fused_wave_pairs.hpp): types, LDS, and the loader
// of query tiles.
#pragma once

#include "backward/amd_dkdv.hpp"
#include "backward/amd_ds_exchange.hpp"

namespace rocflash::kernel {

// The rows of a tile in the order of result registers, so that a lane's rows are contiguous.
template <class Mma>
int result_slot(int row) {
  constexpr bool every_other = Mma::Layout::register_row(1) == 2;
  return every_other ? row / Mma::rows * Mma::rows + row % 2 * Mma::results + row % Mma::rows / 2
                     : row;
}

// Transposed tile as an operand; `line` is the lane's line.
template <class Operand>
Operand transposed_operand(const SharedWords4* tile, [[maybe_unused]] int line) {
  if constexpr (arch::has_ds_read_tr) {
    return {tile};
  } else {
    return {tile, line};
  }
}

template <KernelSpec spec>
struct PairTypes : BackwardTypes<spec> {
  using Base = BackwardTypes<spec>;
  using Base::tile, Base::bucket, Base::dtype, Base::waves;
  using typename Base::Mma, typename Base::Block;
  static_assert(tile.roles == 2 && tile.buffers == 1 && !tile.shared_owned);
  static constexpr int together =
      Base::generic || tile.waves_per_simd > 4 ? 2 : 0;  // steps of a product at a time
  static constexpr int pairs = waves / 2, parts = tile.parts, wave_keys = parts * Mma::columns;

  // One half of the threads stages q, the other dout.
  using Staging =
      typename SelectStaging<arch::has_ds_read_tr, Block, typename Mma::Layout,
                             typename Base::TransposedTile::Tile, dtype, bucket, tile.streamed,
                             tile.threads / 2, typename Base::Streamed>::Type;

  using Exchange = ScoreExchange<Mma, tile.streamed, tile.owned, pairs, parts>;
  // k transposed, 64 keys per tile.
  static constexpr int column_keys = 64, column_tiles = tile.owned / column_keys;
  using KeyColumns = Transposed<Mma, dtype, bucket, column_keys>;
  using KeyStaging = typename SelectStaging<arch::has_ds_read_tr, Block,
                                            typename Exchange::KeyOrder, typename KeyColumns::Tile,
                                            dtype, bucket, column_keys, tile.threads>::Type;

  // dQ in 16x16 products; those of a wave have the same queries.
  static constexpr int strips = bucket / Mma::columns,
                       wave_strips = strips * (tile.streamed / Mma::rows) / waves;
  static_assert(wave_strips >= 1 && strips % wave_strips == 0);
};

// In LDS.
template <KernelSpec spec>
struct PairShared {
  using Types = PairTypes<spec>;
  static constexpr int streamed = Types::tile.streamed;

  Words4 rows[2][Types::Streamed::chunks];  // q, dout
  Words4 transposed[2][Types::TransposedTile::Tile::chunks];
  Words4 k[Types::column_tiles][Types::KeyColumns::Tile::chunks];
  Words4 ds[Types::Exchange::chunks];
  Float4 weights[Types::pairs][Types::parts][Types::count / 4][arch::wave_size];
  alignas(16) float statistics[2][streamed];  // base, delta
  alignas(16) float addend[Types::generic ? streamed : 0];
  alignas(16) std::uint8_t
      keep_mask[Types::waves][Types::generic ? DropoutKeepMask<Types, true>::bytes : 0];
};

// Loads the query tiles one after the other, staged in registers. One half of the threads loads q
// and the rows' lse, the other dout and delta.
template <KernelSpec spec>
class PairTileLoader {
  using Types = PairTypes<spec>;
  using Block = typename Types::Block;
  static constexpr BackwardTile tile = Types::tile;

 public:
  PairTileLoader(const BackwardArguments& a, const SequenceView& sequence, int role,
                 ROCFLASH_SHARED PairShared<spec>& shared)
      : a_(a),
        sequence_(sequence),
        role_(role),
        shared_(shared),
        staged_(role == 0 ? a.problem.q : a.tensors.dout, arch::thread() % (tile.threads / 2)),
        own_query_(arch::thread() % (tile.threads / 2)) {}

  template <class Position>
  void load(Position position) {
    const BackwardArguments& now = arch::reload_kernargs(a_);
    const bool weights = role_ == 0;
    const std::int64_t row = first_row(position);
    staged_.load(Block(weights ? now.problem.q : now.tensors.dout, 0, sequence_.batch, row,
                       sequence_.sq - position.query, position.head));
    statistic_ = weights ? infinity : 0.0f;
    if (own_query_ < tile.streamed && position.query + own_query_ < sequence_.sq)
      statistic_ = arch::load(&(weights ? now.tensors.lse : now.delta)
                                   .at(sequence_.batch, position.head, row + own_query_));
  }
  template <class Position>
  void store([[maybe_unused]] Position position) const {
    if (own_query_ < tile.streamed) {
      const bool weights = role_ == 0;
      const int slot = result_slot<typename Types::Mma>(own_query_);
      if constexpr (Types::generic) {
        float base = statistic_;
        if (weights) {
          const typename Types::RowExponent row(arch::reload_kernargs(a_), sequence_.batch,
                                                position.head, first_row(position) + own_query_,
                                                statistic_);
          base = row.base;
          shared_.addend[slot] = row.addend;
        }
        shared_.statistics[role_][slot] = base;
      } else {
        shared_.statistics[role_][slot] =
            weights ? Types::specialized_base(statistic_) : statistic_;
      }
    }
    staged_.store(shared_.rows[role_], shared_.transposed[role_]);
  }

 private:
  // Opaque in generic kernels: its sums with the offsets of lanes would be kept in VGPRs.
  template <class Position>
  std::int64_t first_row(Position position) const {
    const std::int64_t row = sequence_.q_row + position.query;
    return Types::generic ? arch::opaque_sgpr(row) : row;
  }

  const BackwardArguments& a_;
  const SequenceView& sequence_;
  int role_;
  ROCFLASH_SHARED PairShared<spec>& shared_;
  typename Types::Staging staged_;
  const int own_query_;
  float statistic_ = 0;  // lse or delta of the thread's query
};

}  // namespace rocflash::kernel
