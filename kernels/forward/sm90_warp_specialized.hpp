// Forward on Hopper: persistent kernel with warp specialization (producer/consumer), TMA and WGMMA.
// Warpgroup 0 is the producer (sm90_producer.hpp): it schedules work tiles and issues the TMA
// loads. Two or three consumer warpgroups have 64 queries each of every work tile.
//
//   registers       S of one tile, P of the tile before it, O
//   shared memory   Q; K and V pipelines of two stages each; mask bounds of each query; work tile
//                   info, which the producer writes
//
//   main loop of a work tile (two consumers; PV is of the tile before QK)
//
//   producer     TMA K, V        | TMA K, V        | ...   acquires empty stages
//   consumer 0   QK PV | softmax | QK PV | softmax | ...
//   consumer 1         | QK PV | softmax | QK PV | softmax   after consumer 0's named barrier
//
// Key tiles are processed from the last visible key to the first. Under a causal mask the masked
// tiles come first, and rows past the end of a sequence are never read. Keys before the first one
// are masked.
//
// Intra-warpgroup overlap: a consumer issues S = Q·Kᵀ of tile n and O += P·V of tile n − 1, and
// computes the softmax of tile n while P·V is in flight. Ping-pong between warpgroups: each waits
// at its named barrier before it issues WGMMAs and then releases the next warpgroup, so that one
// computes its softmax while another one multiplies.
//
// ROCFLASH_ASYNC_IDLE on a parameter: its registers are not in flight in a WGMMA (tile/sm90.hpp).
#pragma once

#include "arch/arch.hpp"
#include "attention/epilogue.hpp"
#include "attention/exact_recompute.hpp"
#include "attention/mask_bounds.hpp"
#include "attention/non_finite_rows.hpp"
#include "attention/online_softmax.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "attention/work_tile.hpp"
#include "attention/zero_unused_rows.hpp"
#include "forward/sm90_producer.hpp"
#include "table/forward.hpp"
#include "tile/quads.hpp"
#include "tile/sm90.hpp"

namespace rocflash::kernel {

// Rows of one warp in a warpgroup tile.
inline constexpr int warp_rows = 16;

// Mask bounds of query `offset` of a work tile to shared memory: only masked tiles read them.
template <class Types>
void store_mask_bounds(const Visibility& visibility, WorkTileInfo info, int offset) {
  const MaskBounds bounds(visibility, info[WorkTileInfo::sq], info[WorkTileInfo::sk]);
  const std::int32_t query = info[WorkTileInfo::first_query] + offset;
  std::int32_t begin = 0, end = 0;
  if (query < bounds.sq) {
    begin = bounds.begin(query);
    end = bounds.end(query);
  }
  arch::store_shared(Types::mask_bounds(offset),
                     Words2{static_cast<std::uint32_t>(begin),
                            static_cast<std::uint32_t>(end > begin ? end : begin)});
}

// Masks the scores of keys that a query does not attend to.
template <class Types>
void apply_mask(typename Types::Scores& scores ROCFLASH_ASYNC_IDLE, int first_row,
                std::int32_t tile_begin) {
  using Scores = typename Types::Scores;
  const int lane = arch::lane();
  ROCFLASH_UNROLL
  for (int i = 0; i < Scores::lane_rows; ++i) {
    const Words2 visible = arch::load_shared8(Types::mask_bounds(first_row + Scores::row(lane, i)));
    const std::int32_t lane_begin = tile_begin + Scores::lane_column(lane);
    const auto begin = static_cast<std::int32_t>(visible.x) - lane_begin;
    const auto size = visible.y - visible.x;
    ROCFLASH_UNROLL
    for (int n = 0; n < Scores::lane_columns; ++n) {
      const bool attends_to = static_cast<std::uint32_t>(Scores::column(n) - begin) < size;
      scores.at(i, n) = attends_to ? scores.at(i, n) : -infinity;
    }
  }
}

// Updates the running max of rows whose largest score exceeds it by the threshold. Returns whether
// any row of the warp did, and sets the rescale factors of O.
template <class Scores>
bool update_row_max(OnlineSoftmax (&softmax)[2], const Scores& scores ROCFLASH_ASYNC_IDLE,
                    float scale_log2, float (&factor)[2]) {
  float largest[2];
  bool needs_rescale = false;
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) {
    float x = scores.at(i, 0), y = scores.at(i, 1);
    ROCFLASH_UNROLL
    for (int n = 2; n < Scores::lane_columns; n += 2) {
      x = __builtin_fmaxf(x, scores.at(i, n));
      y = __builtin_fmaxf(y, scores.at(i, n + 1));
    }
    largest[i] = __builtin_fmaxf(x, y);
    needs_rescale |= softmax[i].needs_rescale(largest[i] * scale_log2);
  }
  if (!arch::any(needs_rescale)) return false;
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) factor[i] = softmax[i].rescale(row_maximum(largest[i]) * scale_log2);
  return true;
}

// P = exp2(S · scale_log2 − row max), and the lane's row sums.
template <class Scores>
void exp2_and_row_sum(OnlineSoftmax (&softmax)[2], Scores& scores ROCFLASH_ASYNC_IDLE,
                      float scale_log2) {
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float base = softmax[i].base();
    float x = 0;
    ROCFLASH_UNROLL
    for (int n = 0; n < Scores::lane_columns; n += 2) {
      const float even = arch::exp2(__builtin_fmaf(scores.at(i, n), scale_log2, -base));
      const float odd = arch::exp2(__builtin_fmaf(scores.at(i, n + 1), scale_log2, -base));
      scores.at(i, n) = even;
      scores.at(i, n + 1) = odd;
      softmax[i].sum += even;
      x += odd;
    }
    softmax[i].sum += x;
  }
}

inline void store_lse(const ForwardOutputs& outputs, WorkTileInfo info, std::int32_t query,
                      float lse) {
  arch::store(&outputs.lse.at(info[WorkTileInfo::batch], info[WorkTileInfo::head],
                              info[WorkTileInfo::q_row] + query),
              query < info[WorkTileInfo::sq] ? lse : infinity);
}
template <DType dtype>
std::byte* out_row(const ForwardOutputs& outputs, WorkTileInfo info, std::int32_t query) {
  return row_address<dtype>(outputs.out, info[WorkTileInfo::batch],
                            info[WorkTileInfo::q_row] + query, info[WorkTileInfo::head]);
}

// Row sums over the lanes of each query, LSE, and the normalization factors of O.
template <class Outputs>
void normalize_rows(const ForwardOutputs& outputs, WorkTileInfo info, int first_row,
                    const OnlineSoftmax (&softmax)[2], float (&factor)[2]) {
  const int lane = arch::lane();
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) {
    const Normalizer normalizer =
        normalize(softmax[i].row_max, row_sum(softmax[i].sum), false, 0.0f);
    factor[i] = shifts_exponents(softmax[i].row_max) ? __builtin_nanf("") : normalizer.factor;
    const std::int32_t query = info[WorkTileInfo::first_query] + first_row + Outputs::row(lane, i);
    if (outputs.lse && lane % row_lanes == 0 && query < info[WorkTileInfo::q_rows])
      store_lse(outputs, info, query, normalizer.lse);
  }
}

// Recomputes the rows of a warp whose outputs are not finite, or whose row max is too large for the
// fused exponent (shifts_exponents).
template <DType dtype, class Outputs>
void recompute_rows(const ForwardArguments& a, WorkTileInfo info, int first_row,
                    NonFiniteRows non_finite) {
  const Problem& p = a.problem;
  const WorkTile item(a.work, static_cast<std::int32_t>(p.heads), info[WorkTileInfo::work_tile]);
  const SequenceView sequence(p, item.batch);
  arch::syncwarp();
  while (non_finite.any()) {
    const auto row = non_finite.take();
    const QueryView query(
        p.visibility, sequence,
        info[WorkTileInfo::first_query] + first_row + Outputs::row(row.first_lane, row.which));
    recompute_row(ExactScores<dtype>{p, sequence, item.head, a.caches}, query, a.outputs);
  }
}

// Normalizes and stores O.
template <DType dtype, class Outputs>
void store_outputs(const ForwardArguments& a, WorkTileInfo info, int first_row,
                   const float (&factor)[2], const Outputs& out ROCFLASH_ASYNC_IDLE) {
  const Problem& p = a.problem;
  const int lane = arch::lane();
  NonFiniteRows non_finite;
  ROCFLASH_UNROLL
  for (int i = 0; i < 2; ++i) {
    const std::int32_t query = info[WorkTileInfo::first_query] + first_row + Outputs::row(lane, i);
    const bool in_use = query < info[WorkTileInfo::sq], exists = query < info[WorkTileInfo::q_rows];
    std::byte* const row = out_row<dtype>(a.outputs, info, query);
    const float probe = store_row<dtype>(out, i, factor[i], in_use, row, exists, p.value_dim);
    non_finite.add(i,
                   in_use && (__builtin_fmaf(factor[i], 0.0f, probe) != 0 || products_overflow(p)));
  }
  if (non_finite.any()) recompute_rows<dtype, Outputs>(a, info, first_row, non_finite);
}

// Outputs of a work tile whose queries attend to no key.
template <DType dtype>
void store_empty_outputs(const ForwardArguments& a, WorkTileInfo info, int first_row) {
  const std::int32_t query = info[WorkTileInfo::first_query] + first_row + arch::lane();
  if (arch::lane() >= warp_rows || query >= info[WorkTileInfo::q_rows]) return;
  std::byte* const row = out_row<dtype>(a.outputs, info, query);
  for (int column = 0; column < a.problem.value_dim; column += 8)
    arch::store(reinterpret_cast<Words4*>(row + column * element_bytes<dtype>), Words4{});
  if (a.outputs.lse) store_lse(a.outputs, info, query, infinity);
}

// One consumer warpgroup. Its state is in registers: everything is inlined into the kernel.
template <KernelSpec spec>
class ForwardConsumer {
  using Types = WarpSpecializedTypes<spec>;
  using QueryOperand = KMajorOperand<typename Types::QueryTile>;
  using KeyTile = typename Types::KeyTile;
  using Scores = typename Types::Scores;
  using Weights = typename Types::Weights;
  using Outputs = typename Types::Outputs;
  static constexpr ForwardWarpgroups tile = Types::tile;
  static constexpr DType dtype = spec.dtype;
  // Named barriers of the ping-pong: warpgroup n waits at barrier first_pingpong + n, where the
  // warpgroup before it arrives.
  static constexpr arch::NamedBarrier first_pingpong{1},
      all_consumers = first_pingpong + tile.consumers;
  static constexpr int pingpong_threads = 2 * arch::warpgroup_size,
                       consumer_threads = tile.consumers * arch::warpgroup_size;

 public:
  // Consumer warpgroups count from 0.
  [[gnu::always_inline]] ForwardConsumer(const ForwardArguments& a, int warpgroup)
      : a_(a),
        warpgroup_(warpgroup),
        own_barrier_(first_pingpong + warpgroup),
        next_barrier_(first_pingpong + (warpgroup + 1 == tile.consumers ? 0 : warpgroup + 1)) {
    assign_rows(arch::thread());
    scale_log2_ = Scale(a.problem.scale).softmax_scale;
    if (tile.pingpong && warpgroup == 0) arch::barrier_arrive(own_barrier_, pingpong_threads);
  }

  [[gnu::always_inline]] void consume_work_tiles() {
    for (std::uint32_t n = 0;; ++n, q_state_.advance()) {  // persistent: until the scheduler's end
      if constexpr (Types::is_paged)
        assign_rows(arch::reload_tid());  // recomputed: saves registers
      q_pipeline_.consumer_wait(q_state_);
      const WorkTileInfo info = Types::work_tile_info(n);
      if (info[WorkTileInfo::work_tile] < 0) break;
      tiles_left_ = info[WorkTileInfo::tiles];
      if (tiles_left_ == 0) {
        store_empty_outputs<dtype>(a_, info, first_row_);
        if (is_elected_) q_pipeline_.consumer_release(q_state_);
        continue;
      }
      consume_work_tile(info);
    }
  }

 private:
  // First query of the warp in the work tile. One elected thread per warpgroup releases stages.
  [[gnu::always_inline]] void assign_rows(int tid) {
    const int thread = tid % arch::warpgroup_size;
    first_row_ = warpgroup_rows * warpgroup_ + warp_rows * (thread / arch::wave_size);
    is_elected_ = thread == 0;
  }

  [[gnu::always_inline]] void consume_work_tile(WorkTileInfo info) {
    tile_begin_ = info[WorkTileInfo::end_key] - tile.keys;
    unmasked_begin_ = info[WorkTileInfo::unmasked_begin];
    unmasked_end_ = info[WorkTileInfo::unmasked_end];
    if constexpr (Types::is_paged) zero_values_past_end(info);
    const QueryOperand q(Types::q(q_state_.stage()), warpgroup_rows * warpgroup_);
    OnlineSoftmax softmax[2];
    Scores scores;
    Weights p;
    Outputs out;
    float factor[2];
    first_tile(info, q, softmax, scores, p, out, factor);
#pragma clang loop unroll(disable)
    while (--tiles_left_ > 0) next_tile(q, softmax, scores, p, out, factor);
    epilogue(info, softmax, p, out, factor);
  }

  // The last page may hold rows past the end of the sequence. Their P is 0, but V may be NaN.
  [[gnu::always_inline]] void zero_values_past_end(WorkTileInfo info) {
    if (const std::int32_t rows = info[WorkTileInfo::sk] - tile_begin_; rows < tile.keys) {
      v_pipeline_.consumer_wait(v_state_);
      clear_rows<KeyTile>(Types::v(v_state_.stage()), rows,
                          arch::reload_tid() - arch::warpgroup_size, consumer_threads);
      arch::barrier_sync(all_consumers, consumer_threads);
    }
  }

  // Prologue: S and P of the first tile; there is no P·V to overlap with.
  [[gnu::always_inline]] void first_tile(WorkTileInfo info, const QueryOperand& q,
                                         OnlineSoftmax (&softmax)[2],
                                         Scores& scores ROCFLASH_ASYNC_IDLE,
                                         Weights& p ROCFLASH_ASYNC_IDLE,
                                         Outputs& out ROCFLASH_ASYNC_IDLE, float (&factor)[2]) {
    k_pipeline_.consumer_wait(k_state_);
    WgmmaBatch qk;
    qk.template multiply<dtype, spec.bucket>(scores, q,
                                             KMajorOperand<KeyTile>(Types::k(k_state_.stage())));
    qk.commit();
    if (const int lane = arch::lane(); lane < warp_rows)
      store_mask_bounds<Types>(a_.problem.visibility, info, first_row_ + lane);
    arch::syncwarp();
    out.clear();
    wait<0>(scores);
    release_k();
    mask_if_needed(scores);
    update_row_max(softmax, scores, scale_log2_, factor);
    exp2_and_row_sum(softmax, scores, scale_log2_);
    p.template convert<dtype>(scores);
  }

  // Main loop: S of tile n and O += P·V of tile n − 1 in flight together; softmax of tile n while
  // P·V runs.
  [[gnu::always_inline]] void next_tile(const QueryOperand& q, OnlineSoftmax (&softmax)[2],
                                        Scores& scores ROCFLASH_ASYNC_IDLE,
                                        Weights& p ROCFLASH_ASYNC_IDLE,
                                        Outputs& out ROCFLASH_ASYNC_IDLE, float (&factor)[2]) {
    tile_begin_ -= tile.keys;
    k_pipeline_.consumer_wait(k_state_);
    if (tile.pingpong) arch::barrier_sync(own_barrier_, pingpong_threads);
    WgmmaBatch qk(out, p);
    qk.template multiply<dtype, spec.bucket>(scores, q,
                                             KMajorOperand<KeyTile>(Types::k(k_state_.stage())));
    qk.commit();
    v_pipeline_.consumer_wait(v_state_);
    WgmmaBatch pv;
    pv.template add<dtype>(out, p, MnMajorOperand<KeyTile>(Types::v(v_state_.stage())));
    pv.commit();
    if (tile.pingpong) arch::barrier_arrive(next_barrier_, pingpong_threads);

    wait<1>(scores);
    release_k();
    mask_if_needed(scores);
    const bool rescale = update_row_max(softmax, scores, scale_log2_, factor);
    exp2_and_row_sum(softmax, scores, scale_log2_);

    wait<0>(out, p);
    release_v();
    p.template convert<dtype>(scores);
    if (rescale) {
      out.scale_row(0, factor[0]);
      out.scale_row(1, factor[1]);
    }
  }

  // Epilogue: the last P·V, with the row sums and the LSE in parallel; then O to global memory.
  [[gnu::always_inline]] void epilogue(WorkTileInfo info, const OnlineSoftmax (&softmax)[2],
                                       Weights& p ROCFLASH_ASYNC_IDLE,
                                       Outputs& out ROCFLASH_ASYNC_IDLE, float (&factor)[2]) {
    v_pipeline_.consumer_wait(v_state_);
    WgmmaBatch pv(out, p);
    pv.template add<dtype>(out, p, MnMajorOperand<KeyTile>(Types::v(v_state_.stage())));
    pv.commit();
    normalize_rows<Outputs>(a_.outputs, info, first_row_, softmax, factor);
    wait<0>(out, p);
    release_v();
    store_outputs<dtype>(a_, info, first_row_, factor, out);
  }

  // K of the current tile was read; with the last tile, Q too.
  [[gnu::always_inline]] void release_k() {
    if (is_elected_) {
      k_pipeline_.consumer_release(k_state_);
      if (tiles_left_ == 1) q_pipeline_.consumer_release(q_state_);
    }
    k_state_.advance();
  }
  [[gnu::always_inline]] void release_v() {
    if (is_elected_) v_pipeline_.consumer_release(v_state_);
    v_state_.advance();
  }
  [[gnu::always_inline]] void mask_if_needed(Scores& scores ROCFLASH_ASYNC_IDLE) const {
    if (tile_begin_ < unmasked_begin_ || tile_begin_ + tile.keys > unmasked_end_)
      apply_mask<Types>(scores, first_row_, tile_begin_);
  }

  const ForwardArguments& a_;
  const int warpgroup_;
  const arch::NamedBarrier own_barrier_, next_barrier_;
  int first_row_ = 0;        // first query of the warp in the work tile
  bool is_elected_ = false;  // releases pipeline stages for its warpgroup
  float scale_log2_;         // softmax scale · log2(e)
  std::int32_t tiles_left_ = 0, tile_begin_ = 0;
  std::int32_t unmasked_begin_ = 0, unmasked_end_ = 0;  // keys that all queries attend to
  const Pipeline<Types::q_stages> q_pipeline_ = Types::q_pipeline();
  const Pipeline<Types::stages> k_pipeline_ = Types::k_pipeline(),
                                v_pipeline_ = Types::v_pipeline();
  ConsumerState<Types::q_stages> q_state_;
  ConsumerState<Types::stages> k_state_, v_state_;
};

template <KernelSpec spec>
void forward_warp_specialized(const ForwardWarpSpecializedArguments& a) {
  using Types = WarpSpecializedTypes<spec>;
  constexpr ForwardWarpgroups tile = Types::tile;
  int producer_threads = 1;
  if constexpr (Types::is_paged)
    producer_threads = Types::KeyTile::rows / a.box_rows * Types::KeyTile::count;
  if (arch::thread() == 0) {
    Types::q_pipeline().init(tile.consumers);
    Types::k_pipeline().init(tile.consumers, producer_threads);
    Types::v_pipeline().init(tile.consumers, producer_threads);
    arch::fence_mbarrier_init();
  }
  zero_unused_rows(a.forward, spec.dtype, arch::workgroup_id() * tile.threads() + arch::thread(),
                   arch::workgroup_count() * tile.threads());
  arch::barrier();
  const int warpgroup = arch::warpgroup();
  if (warpgroup == 0) {
    arch::reg_dealloc<tile.producer_registers>();
    if ((Types::is_paged ? producer_thread() : arch::thread()) < producer_threads)
      produce_tiles<spec>(a);
  } else {
    arch::reg_alloc<tile.consumer_registers>();
    ForwardConsumer<spec>(a.forward, warpgroup - 1).consume_work_tiles();
  }
}

// The same with a paged KV cache.
template <KernelSpec spec>
void forward_warp_specialized_paged(const ForwardWarpSpecializedArguments& a) {
  forward_warp_specialized<spec>(a);
}

}  // namespace rocflash::kernel
