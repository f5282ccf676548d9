// S, P and O of MLA decode with few packed rows of Q (decode/sm90_mla.hpp). Keys are the rows of
// both products and rows of Q their columns, so that no WGMMA row is padding:
//
//   Sᵀ = K·Qᵀ      64 keys by rows of Q
//   Oᵀ += Vᵀ·Pᵀ    512 columns by rows of Q
#pragma once

#include "decode/sm90_mla_producer.hpp"

namespace rocflash::kernel {

// Online softmax of a lane's rows of Q; each of the four warps has 16 keys of a tile.
template <KernelSpec spec>
class FewRowsSoftmax {
  using Types = MlaWarpSpecializedTypes<spec>;

 public:
  using Scores = WarpgroupTile<spec.bucket>;  // keys by rows of q
  static constexpr int lane_rows = Scores::lane_columns;

  static int row(int n) { return Scores::column(n) + Scores::lane_column(arch::lane()); }

  // One WGMMA batch.
  template <int depth, bool fresh, class Keys, class Queries>
  static void multiply(Scores& scores ROCFLASH_ASYNC_BEGIN, const Keys& k, const Queries& q) {
    add_scores<spec.dtype, depth, fresh>(scores, k, q);
  }
  // Masks the scores of keys that a row does not attend to.
  static void apply_mask(Scores& scores ROCFLASH_ASYNC_IDLE, std::int32_t begin) {
    const int lane = arch::lane(), warp = arch::wave() % warpgroup_warps;
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const Words2 visible = arch::load_shared8(Types::mask_bounds(row(n)));
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::lane_rows; ++i) {
        const auto key = static_cast<std::uint32_t>(begin + 16 * warp + Scores::row(lane, i));
        scores.at(i, n) = key - visible.x < visible.y - visible.x ? scores.at(i, n) : -infinity;
      }
    }
  }
  // P = exp2(S · scale_log2 − row max), to shared memory; before it the rescale factors of O where
  // a running max changes. Returns whether one does.
  bool exp2_and_row_sum(Scores& scores ROCFLASH_ASYNC_IDLE, float scale_log2,
                        const ProducerState<Types::weight_stages>& p_state) {
    const bool rescales = needs_rescale(scores, scale_log2);
    if (rescales) {
      Types::weight_pipeline().producer_acquire(p_state);
      update_row_max(scores, scale_log2, p_state.stage());
    }
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const float base = softmax_[n].base();
      ROCFLASH_UNROLL
      for (int i = 0; i < Scores::lane_rows; ++i) {
        const float x = arch::exp2(__builtin_fmaf(scores.at(i, n), scale_log2, -base));
        scores.at(i, n) = x;
        softmax_[n].sum += x;
      }
    }
    // Matrices of eight keys by eight rows of Q, transposed by stmatrix.
    using Tile = typename Types::WeightTile;
    const int lane = arch::lane(), matrix = lane / 8, first = 8 * (matrix / 2) + lane % 8,
              key = 16 * (arch::wave() % warpgroup_warps) + 8 * (matrix % 2);
    Types::weight_pipeline().producer_acquire(p_state);
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::rows / 16; ++n) {
      const auto two = [&](int i, int column) {
        return arch::cvt_pack<spec.dtype>(scores.at(i, 4 * n + column),
                                          scores.at(i, 4 * n + column + 1));
      };
      arch::stmatrix_x4_trans(Types::weights(p_state.stage()) +
                                  static_cast<std::uint32_t>(Tile::offset(16 * n + first, key)),
                              Words4{two(0, 0), two(1, 0), two(0, 2), two(1, 2)});
    }
    return rescales;
  }
  // Epilogue: row sums over all lanes and warps. Then each thread has a row: it stores the
  // normalization factor for the other warpgroups, and calls lse(row, x).
  template <class Lse>
  void close(Lse lse) const {
    const int lane = arch::lane(), warp = arch::wave() % warpgroup_warps,
              own = arch::thread() % arch::warpgroup_size;
    arch::barrier_sync(mla_scores_barrier,
                       arch::warpgroup_size);  // the row max exchange has been read
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const float x = over_lanes(softmax_[n].sum, [](float p, float q) { return p + q; });
      if (lane < row_lanes) store(Types::of_warp(warp, row(n)), x);
      if (lane < row_lanes && warp == 0) store(Types::end(row(n)), softmax_[n].row_max);
    }
    arch::barrier_sync(mla_scores_barrier, arch::warpgroup_size);
    if (own >= Types::rows) return;
    float sum = 0;
    ROCFLASH_UNROLL
    for (int w = 0; w < warpgroup_warps; ++w)
      sum += arch::load_shared_float(Types::of_warp(w, own));
    OnlineSoftmax softmax;
    softmax.row_max = arch::load_shared_float(Types::end(own));
    const Normalizer normalizer = normalize(softmax.row_max, sum, false, 0.0f);
    const float factor = shifts_exponents(softmax.row_max) ? __builtin_nanf("") : normalizer.factor;
    arch::store_shared(Types::end(own), __builtin_bit_cast(Words2, Float2{softmax.base(), factor}));
    lse(own, normalizer.lse);
  }

 private:
  // Whether a score exceeds the running max by the threshold, in any thread of the warpgroup.
  bool needs_rescale(const Scores& scores ROCFLASH_ASYNC_IDLE, float scale_log2) const {
    bool found = false;
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n)
      found |= softmax_[n].needs_rescale(largest(scores, n) * scale_log2);
    return arch::barrier_red_or(mla_scores_barrier, arch::warpgroup_size, found);
  }
  // Updates the running max. Rescale factors of O go to shared memory.
  void update_row_max(const Scores& scores ROCFLASH_ASYNC_IDLE, float scale_log2, int stage) {
    const int lane = arch::lane(), warp = arch::wave() % warpgroup_warps;
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const float x =
          over_lanes(largest(scores, n), [](float p, float q) { return __builtin_fmaxf(p, q); });
      if (lane < row_lanes) store(Types::of_warp(warp, row(n)), x);
    }
    arch::barrier_sync(mla_scores_barrier, arch::warpgroup_size);
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      float x = -infinity;
      ROCFLASH_UNROLL
      for (int w = 0; w < warpgroup_warps; ++w)
        x = __builtin_fmaxf(x, arch::load_shared_float(Types::of_warp(w, row(n))));
      const float factor = softmax_[n].rescale(x * scale_log2);
      if (warp == 0 && lane < row_lanes) store(Types::factor(stage, row(n)), factor);
    }
  }
  static float largest(const Scores& scores ROCFLASH_ASYNC_IDLE, int n) {
    return __builtin_fmaxf(scores.at(0, n), scores.at(1, n));
  }
  // Reduction over the eight lanes of a warp that have the same rows of Q.
  template <class Merge>
  static float over_lanes(float x, Merge merge) {
    ROCFLASH_UNROLL
    for (int bits = row_lanes; bits < arch::wave_size; bits *= 2)
      x = merge(x, arch::shfl_xor(x, bits));
    return x;
  }
  static void store(SharedAddress to, float x) {
    arch::store_shared(to, __builtin_bit_cast(std::uint32_t, x));
  }

  OnlineSoftmax softmax_[lane_rows];
};

// Half of Oᵀ: columns by rows of Q.
template <KernelSpec spec>
class FewRowsOutputs {
  using Types = MlaWarpSpecializedTypes<spec>;
  using Tile = WarpgroupTile<spec.bucket>;  // 64 columns by rows of q
  using Values = MnMajorOperand<typename Types::KeyHalf>;
  static constexpr int blocks = Types::half / warpgroup_rows, lane_rows = Tile::lane_columns;

 public:
  FewRowsOutputs() {
    ROCFLASH_UNROLL
    for (int m = 0; m < blocks; ++m) out_[m].clear();
  }
  void rescale(int stage) {
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const float factor = arch::load_shared_float(Types::factor(stage, row(n)));
      ROCFLASH_UNROLL
      for (int m = 0; m < blocks; ++m) {
        out_[m].at(0, n) *= factor;
        out_[m].at(1, n) *= factor;
      }
    }
  }
  // Calls done(block) once that column block of V has been read.
  template <class Done>
  void add(SharedAddress keys, SharedAddress weights, Done done) {
    ROCFLASH_UNROLL
    for (int m = 0; m < blocks; ++m) {
      WgmmaBatch products(out_[m]);
      products.template add<spec.dtype, Types::keys>(
          out_[m], Values(keys, warpgroup_rows * m),
          KMajorOperand<typename Types::WeightTile>(weights));
      products.commit();
    }
    wait<2>(out_[0]);
    wait<2>(out_[1]);
    done(0);
    wait<0>(out_[2]);
    wait<0>(out_[3]);
    done(1);
  }
  // O to shared memory, row-major. Returns a bit mask of rows of Q with non-finite results.
  std::uint64_t finish(int first_column) const {
    const int lane = arch::lane(), warp = arch::wave() % warpgroup_warps;
    std::uint64_t non_finite = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < lane_rows; ++n) {
      const float factor = __builtin_bit_cast(Float2, arch::load_shared8(Types::end(row(n)))).y;
      const SharedAddress to = Types::result(row(n), first_column + 16 * warp + Tile::row(lane, 0));
      float probe = factor * 0.0f;  // NaN once a result is not finite
      ROCFLASH_UNROLL
      for (int m = 0; m < blocks; ++m) {
        ROCFLASH_UNROLL
        for (int i = 0; i < Tile::lane_rows; ++i) {
          const float x = out_[m].at(i, n);
          probe = __builtin_fmaf(x, 0.0f, probe);
          arch::store_shared(to + static_cast<std::uint32_t>(4 * (warpgroup_rows * m + 8 * i)),
                             __builtin_bit_cast(std::uint32_t, x* factor));
        }
      }
      std::uint32_t lanes = arch::ballot(probe != 0);
      lanes |= lanes >> 16;
      lanes |= lanes >> 8;
      lanes |= lanes >> 4;
      ROCFLASH_UNROLL
      for (int l = 0; l < row_lanes; ++l)
        non_finite |= std::uint64_t{lanes >> l & 1} << (Tile::column(n) + Tile::lane_column(l));
    }
    return non_finite;
  }

 private:
  static int row(int n) { return Tile::column(n) + Tile::lane_column(arch::lane()); }

  Tile out_[blocks];
};

}  // namespace rocflash::kernel
