// Types and stages that the backward kernels of AMD GPUs share. A workgroup owns queries or keys,
// each wave `Mma::columns` of them; tiles of the other tensor stream through LDS.
//
//   registers   both operands of the owned rows, S and dP, accumulators, the prefetched tile
//   LDS         tiles of streamed rows, row-major and transposed
//
// As in forward, streamed rows are the rows of a product and owned rows its columns. All scores of
// a lane therefore belong to one owned row, and P and dS are, rounded, the B operand of the last
// products (tile/operand_order.hpp).
//
//   queries  S = K·Qᵀ, dP = V·dOᵀ, dQᵀ += Kᵀ·dS
//   keys     S = Q·Kᵀ, dP = dO·Vᵀ, dVᵀ += dOᵀ·P, dKᵀ += Qᵀ·dS, over the queries of the GQA group
//
// S and dP are computed twice. In return there are no atomics, and the results are deterministic.
#pragma once

#include "arch/arch.hpp"
#include "attention/rows.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "backward/exact_recompute.hpp"
#include "table/backward.hpp"
#include "table/features.hpp"
#include "tile/amd.hpp"
#include "tile/staging.hpp"

namespace rocflash::kernel {

template <KernelSpec spec>
struct BackwardTypes : OfSpec<spec> {
  using OfSpec<spec>::dtype, OfSpec<spec>::bucket, OfSpec<spec>::generic;
  static constexpr BackwardTile tile = backward_tile(this_family, spec);
  static constexpr bool staged = tile.buffers > 0;  // by way of registers
  static constexpr int buffers = staged ? tile.buffers : 1;

  using Mma = arch::Mma<dtype>;
  static constexpr int wave_rows = Mma::columns, waves = tile.threads / arch::wave_size;
  static_assert(waves * wave_rows * tile.parts == tile.owned * tile.roles);

  using Block = RowBlock<dtype, spec.variant, false>;  // rows in global memory
  using Streamed = RowTile<bucket * element_bytes<dtype>, tile.streamed>;
  using TransposedTile = Transposed<Mma, dtype, bucket, tile.streamed>;
  using StreamedOperand = SharedOperand<Mma, Streamed, Side::left>;
  using TransposedOperand = typename TransposedTile::Operand;
  using Owned = ResidentOperand<Mma, dtype, bucket, tile.shared_owned>;
  using Scores = Elements<Mma, tile.streamed, wave_rows>;
  using Sums = Accumulators<Mma, bucket, wave_rows>;  // transposed: a column per owned row
  static constexpr int count = Scores::per_column;    // scores of a lane
  static constexpr int together = !tile.shared_owned ? 0
                                  : bucket > 128     ? 2
                                                     : 4;  // steps of a product at a time

  static constexpr int raised = subnormal_scale_log2(this_family, dtype);
  // Constants of a row for P. Specialized kernels: P = exp2(S · unit − base), where base is lse ·
  // log2(e). Generic kernels subtract before they multiply by log2(e), and have an addend per row:
  // P = exp2((S − base) · log2(e) + addend). For an unresolved lse base is the row's max and the
  // addend log2(1 / sum): differences of scores near the max are exact.
  struct RowExponent {
    float base = infinity, addend = 0;

    RowExponent() = default;
    // `row` is the row of the tensors, `lse` what was loaded for it.
    RowExponent(const BackwardArguments& a, std::int64_t batch, std::int64_t head, std::int64_t row,
                float lse)
        : base(specialized_base(lse)) {
      if constexpr (generic) {
        const RowSoftmax softmax = RowSoftmax::of_products(a, batch, head, row, lse);
        base = softmax.base;
        addend = arch::log2(softmax.share) + static_cast<float>(raised);
      }
    }
  };
  static float specialized_base(float lse) { return resolved_lse(lse, log2_e) - raised; }
  static float weight(float score, float unit, const RowExponent& row) {
    if constexpr (!generic) return arch::exp2(score * unit - row.base);
    return arch::exp2(__builtin_fmaf(score - row.base, log2_e, row.addend));
  }

  using RowMajorStaging = RowStaging<Block, Streamed, dtype, bucket, tile.streamed, tile.threads>;
  using TransposedStaging =
      typename SelectStaging<arch::has_ds_read_tr, Block, typename Mma::Layout,
                             typename TransposedTile::Tile, dtype, bucket, tile.streamed,
                             tile.threads>::Type;
  using BothStaging = typename SelectStaging<arch::has_ds_read_tr, Block, typename Mma::Layout,
                                             typename TransposedTile::Tile, dtype, bucket,
                                             tile.streamed, tile.threads, Streamed>::Type;
};

// A tensor whose rows stream through LDS: row-major, transposed, or both. Tiles are staged in
// registers, so that loads are in flight while the current tile is used. Without registers for
// that, tiles are copied directly.
enum class TileLayout { rows, transposed, both };
template <class Types, TileLayout layout>
class StreamedTensor {
  template <TileLayout s, int = 0>
  struct Choose {
    using Type = typename Types::BothStaging;
  };
  template <int n>
  struct Choose<TileLayout::rows, n> {
    using Type = typename Types::RowMajorStaging;
  };
  template <int n>
  struct Choose<TileLayout::transposed, n> {
    using Type = typename Types::TransposedStaging;
  };

 public:
  using Staging = typename Choose<layout>::Type;
  using Block = typename Types::Block;
  static constexpr int row_chunks = layout == TileLayout::transposed ? 0 : Types::Streamed::chunks;
  static constexpr int transposed_chunks =
      layout == TileLayout::rows ? 0 : Types::TransposedTile::Tile::chunks;

  explicit StreamedTensor(const Rows& source) : staging_(source) {}

  void load(const Block& block) {
    if constexpr (Types::staged) staging_.load(block);
  }
  // Writes the staged tile, or `block`, to LDS.
  void store(const Rows& source, const Block& block, SharedWords4* rows,
             SharedWords4* transposed) const {
    if constexpr (layout == TileLayout::both) {
      if constexpr (Types::staged) {
        staging_.store(rows, transposed);
      } else {
        Staging::copy(source, block, rows, transposed);
      }
    } else {
      SharedWords4* tile = layout == TileLayout::rows ? rows : transposed;
      if constexpr (Types::staged) {
        staging_.store(tile);
      } else {
        Staging::copy(source, block, tile);
      }
    }
  }

 private:
  Staging staging_;
};

// The owned rows of a wave as an operand, negated where the scale is negative.
template <class Types>
typename Types::Owned load_owned_rows(const Rows& rows, std::int64_t batch, std::int64_t first,
                                      std::int32_t count, std::int64_t head, bool negate,
                                      SharedWords4* lds) {
  using Block = typename Types::Block;
  const Block block(rows, 0, batch, first, count, head);
  return typename Types::Owned(lds, [&](int row, int chunk) {
    const Words4 words =
        block.load8(Block::offset(rows, row, chunk_elements<Types::dtype> * chunk));
    return negate ? negated<Types::dtype>(words) : words;
  });
}

// Moves a lane-invariant span to SGPRs.
inline Span uniform(Span x) {
  x.begin = arch::uniform(x.begin);
  x.end = arch::uniform(x.end);
  return x;
}

// A lane's line of streamed rows. Opaque in each iteration where VGPRs are too few to keep
// addresses.
template <class Types>
int streamed_line() {
  const int line = operand_line<typename Types::Mma, Side::left>();
  return Types::tile.shared_owned ? arch::opaque_vgpr(line) : line;
}

// Dropout's keep bits for the scores of a wave. One Philox draw serves eight keys of a query, so
// the wave makes each draw once and exchanges the bits through LDS.
template <class Types, bool owns_keys>
class DropoutKeepMask {
  using Scores = typename Types::Scores;
  static constexpr int owned = Types::wave_rows, streamed = Types::tile.streamed;
  static constexpr int queries = owns_keys ? streamed : owned, keys = owns_keys ? owned : streamed;
  static constexpr int draws = keys / dropout_keys;
  static_assert(keys <= 32);

 public:
  static constexpr int bytes = queries * draws;  // bytes in LDS per wave
  using LdsByte = ROCFLASH_SHARED std::uint8_t;

  // first_query and first_key are those of the wave's scores.
  void draw(LdsByte* lds, const ScoreModGradient& score_mod, std::int32_t first_query,
            std::int32_t first_key) {
    _Pragma("clang loop unroll(disable)") for (int n = arch::lane(); n < queries * draws;
                                               n += arch::wave_size) {
      const int query = n % queries, draw = n / queries;
      lds[owns_keys ? draw * queries + query : query * draws + draw] = static_cast<std::uint8_t>(
          score_mod.kept(first_query + query, first_key + dropout_keys * draw));
    }
    arch::wave_fence();
    const int own = Scores::lane_column(), row = Scores::lane_row();
    if constexpr (owns_keys) {
      // One byte per query; the bit of the lane's key.
      const auto* from =
          (const ROCFLASH_SHARED std::uint32_t*)lds + own / dropout_keys * (queries / 4) + row / 4;
      ROCFLASH_UNROLL
      for (int n = 0; n < Types::count; n += steps)
        word_[n / steps] = from[Scores::row(n) / 4] >> (row % 4 * 8 + own % dropout_keys);
    } else if constexpr (draws == 4) {
      word_[0] = ((const ROCFLASH_SHARED std::uint32_t*)lds)[own] >> row;
    } else {
      static_assert(draws == 2);
      word_[0] = std::uint32_t{((const ROCFLASH_SHARED std::uint16_t*)lds)[own]} >> row;
    }
    arch::wave_fence();
  }
  bool operator()(int n) const {
    if constexpr (owns_keys) return (word_[n / steps] >> Scores::row(n) % 4 * 8 & 1) != 0;
    return (word_[0] >> Scores::row(n) & 1) != 0;
  }

 private:
  // Scores of a lane whose rows are within one aligned group of four.
  static constexpr int steps = layout::results_within<typename Scores::Layout>(4);
  std::uint32_t word_[owns_keys ? Types::count / steps : 1];
};

// Epilogue of one gradient of a wave: stores the accumulator times `factor`, one row per lane
// column. Returns one bit per row, set where the row is not finite or products may overflow.
template <class Types>
std::uint64_t store_accumulator(const Problem& p, const Rows& to, std::int64_t batch,
                                std::int64_t first, std::int32_t count, std::int64_t head,
                                const typename Types::Sums& sums, float factor) {
  using Mma = typename Types::Mma;
  using Block = typename Types::Block;
  constexpr DType dtype = Types::dtype;
  if (!to) return 0;
  const Block rows(to, 0, batch, first, count, head);
  const int own = Types::Scores::lane_column();
  factor *= inverse_subnormal_scale(this_family, Types::dtype);
  float probe = 0;  // NaN once a sum is not finite
  ROCFLASH_UNROLL
  for (int part = 0; part < sums.row_parts; ++part) {
    float x[Mma::results];
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; ++i) {
      x[i] = sums.part[part][0][i];
      probe = __builtin_fmaf(x[i], 0.0f, probe);
      x[i] *= factor;
    }
    Quads<Mma>::arrange(x);
    ROCFLASH_UNROLL
    for (int i = 0; i < Mma::results; i += 4) {
      const Words2 words{narrow_pair<dtype>(x[i], x[i + 1]),
                         narrow_pair<dtype>(x[i + 2], x[i + 3])};
      const int column = part * Mma::rows + Quads<Mma>::row(i) + Quads<Mma>::lane_row();
      rows.store4(words, Block::offset(to, own, column));
    }
  }

  constexpr std::uint64_t one_lane_per_row = (std::uint64_t{1} << Types::wave_rows) - 1;
  return arch::ballot(own < count && (column_sum(probe) != 0 || products_overflow(p))) &
         one_lane_per_row;
}

// Calls exactly(row) for each bit that store_accumulator returned.
template <class Exactly>
void recompute_rows(std::uint64_t non_finite, Exactly exactly) {
  while (non_finite != 0) {
    const int row = __builtin_ctzll(non_finite);
    non_finite &= non_finite - 1;
    exactly(row);
  }
}

}  // namespace rocflash::kernel
