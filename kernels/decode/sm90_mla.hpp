// MLA decode on Hopper over a latent KV cache (decode/mla.hpp), warp-specialized, without score
// modifiers.
//
//   warpgroup 0      producer: block table lookups and TMA loads of K
//   warpgroup 1      S, softmax; P to shared memory
//   warpgroups 2, 3  O += P·V, 256 columns each, in registers
//
//   shared memory    Q; a K pipeline of two stages of 64 keys, which both products read; a P
//                    pipeline of one or two stages
//
// Few packed (query, head) rows are the columns of the products (sm90_mla_few_heads.hpp); 64 are
// their rows (sm90_mla_many_heads.hpp). A K tile has five column blocks with a pipeline each: four
// quarters of V, and the RoPE columns. The running max is updated lazily
// (attention/online_softmax.hpp); when it changes, P comes with the rescale factors of O.
#pragma once

#include <type_traits>

#include "decode/sm90_mla_few_heads.hpp"
#include "decode/sm90_mla_many_heads.hpp"

namespace rocflash::kernel {

template <KernelSpec spec, bool many = spec.bucket == warpgroup_rows>
struct MlaLayout {
  using Softmax = FewRowsSoftmax<spec>;
  using Outputs = FewRowsOutputs<spec>;
};
template <KernelSpec spec>
struct MlaLayout<spec, true> {
  using Softmax = ManyRowsSoftmax<spec>;
  using Outputs = ManyRowsOutputs<spec>;
};

// Warpgroup 1: S and softmax, from the K pipeline to the P pipeline.
template <KernelSpec spec>
class MlaScores {
  using Types = MlaWarpSpecializedTypes<spec>;
  using Softmax = typename MlaLayout<spec>::Softmax;
  using Scores = typename Softmax::Scores;

 public:
  MlaScores(const DecodeArguments& a, const KeySplit& split)
      : split_(split), scale_log2_(Scale(a.problem.scale).softmax_scale) {}

  void compute() {
#pragma clang loop unroll(disable)
    for (std::int32_t begin = split_.begin; begin < split_.end; begin += Types::keys) {
      Scores scores;
      issue_qk(scores);
      wait<0>(scores);
      release();
      softmax_tile(scores, begin);
      k_state_.advance();
    }
    close();
  }

 private:
  // Issues S = Q·Kᵀ of the current tile, column block by column block as they arrive.
  void issue_qk(Scores& scores ROCFLASH_ASYNC_BEGIN) const {
    using KeyBlock = typename Types::KeyBlock;
    using QueryBlock = typename Types::QueryBlock;
    // Opaque: the descriptors of all steps would not fit into the registers.
    const SharedAddress q = uniform_address(arch::opaque_vgpr(Types::q(0))),
                        k = uniform_address(Types::k(k_state_.stage(), 0));
    Types::k_pipeline(Types::value_blocks).consumer_wait(k_state_);
    Softmax::template multiply<mla_rest, true>(
        scores, KMajorOperand<typename Types::KeyRest>(k + Types::value_blocks * KeyBlock::bytes),
        KMajorOperand<typename Types::QueryRest>(q + Types::value_blocks * QueryBlock::bytes));
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::value_blocks; ++n) {
      Types::k_pipeline(n).consumer_wait(k_state_);
      Softmax::template multiply<Types::block_columns, false>(
          scores, KMajorOperand<KeyBlock>(k + static_cast<std::uint32_t>(n * KeyBlock::bytes)),
          KMajorOperand<QueryBlock>(q + static_cast<std::uint32_t>(n * QueryBlock::bytes)));
    }
  }
  // Only this warpgroup reads the RoPE columns.
  void release() const {
    if (arch::lane() == 0) Types::k_pipeline(Types::value_blocks).consumer_release(k_state_);
  }
  // P of the tile at key `begin`, to shared memory.
  void softmax_tile(Scores& scores ROCFLASH_ASYNC_IDLE, std::int32_t begin) {
    if (begin < split_.common_begin || begin + Types::keys > split_.common_end)
      Softmax::apply_mask(scores, begin);
    const bool rescales = softmax_.exp2_and_row_sum(scores, scale_log2_, p_state_);
    const int thread = arch::thread() % arch::warpgroup_size, warp = thread / arch::wave_size;
    if (arch::lane() == 0)
      arch::store_shared(Types::rescaled(p_state_.stage(), warp), std::uint32_t{rescales});
    if (begin + Types::keys > split_.end) {
      arch::barrier_sync(mla_scores_barrier, arch::warpgroup_size);  // all reads of K are done
      clear_mla_rows<Types>(k_state_.stage(), split_.end - begin, thread);
    }
    arch::fence_proxy_async();
    Types::weight_pipeline().producer_expect_tx(p_state_,
                                                0);  // every lane arrives for its own stores
    p_state_.advance();
  }
  // Epilogue: normalization factors and LSE go through the P pipeline too.
  void close() {
    Types::weight_pipeline().producer_acquire(p_state_);
    softmax_.close([](int row, float lse) {
      arch::store_shared(Types::lse(row), __builtin_bit_cast(std::uint32_t, lse));
    });
    Types::weight_pipeline().producer_expect_tx(p_state_, 0);
  }

  const KeySplit& split_;
  const float scale_log2_;
  ConsumerState<Types::stages> k_state_;
  ProducerState<Types::weight_stages> p_state_;
  Softmax softmax_;
};

// Warpgroups 2 and 3 (`warpgroup` 0 and 1): O += P·V, and the epilogue.
template <KernelSpec spec>
void accumulate_mla_pv(const DecodeArguments& a, std::int32_t first_key, std::int32_t end_key,
                       int warpgroup) {
  using Types = MlaWarpSpecializedTypes<spec>;
  const int lane = arch::lane(), warp = arch::wave() % warpgroup_warps;
  const int first_block = Types::own_blocks * warpgroup;
  const auto weight_pipeline = Types::weight_pipeline();
  ConsumerState<Types::stages> k_state;
  ConsumerState<Types::weight_stages> p_state;
  typename MlaLayout<spec>::Outputs out;

#pragma clang loop unroll(disable)
  for (std::int32_t begin = first_key; begin < end_key; begin += Types::keys) {
    weight_pipeline.consumer_wait(p_state);
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::own_blocks; ++n)
      Types::k_pipeline(first_block + n).consumer_wait(k_state);
    if (arch::load_shared4(Types::rescaled(p_state.stage(), warp)) != 0)
      out.rescale(p_state.stage());
    out.add(uniform_address(Types::k(k_state.stage(), first_block)),
            uniform_address(Types::weights(p_state.stage())), [&](int n) {
              if (lane == 0) Types::k_pipeline(first_block + n).consumer_release(k_state);
            });
    weight_pipeline.consumer_release(p_state);  // every lane arrives for its own reads
    k_state.advance();
    p_state.advance();
  }

  // Epilogue: all tiles have been read; the results reuse their storage.
  arch::launch_dependents();
  weight_pipeline.consumer_wait(p_state);
  arch::barrier_sync(mla_values_barrier, MlaWarpgroups::value_warpgroups * arch::warpgroup_size);
  std::uint64_t non_finite = out.finish(Types::half * warpgroup);
  constexpr int warps = warpgroup_warps * MlaWarpgroups::value_warpgroups;
  const int own = warpgroup_warps * warpgroup + warp;
  if (lane == 0) arch::store_shared(Types::non_finite(own), __builtin_bit_cast(Words2, non_finite));
  arch::barrier_sync(mla_values_barrier, MlaWarpgroups::value_warpgroups * arch::warpgroup_size);
  non_finite = 0;
  for (int w = 0; w < warps; ++w)
    non_finite |= __builtin_bit_cast(std::uint64_t, arch::load_shared8(Types::non_finite(w)));
  recompute_mla_rows<spec>(a, own, warps, non_finite);
  if (!MlaCluster::exists()) return store_mla_results<spec>(a, own, warps);
  MlaCluster::sync();
  combine_mla_cluster<spec, warps>(a, own);
  MlaCluster::sync();
}

template <KernelSpec spec>
void decode_mla_warp_specialized(const MlaWarpSpecializedArguments& a) {
  using Types = MlaWarpSpecializedTypes<spec>;
  constexpr MlaWarpgroups warpgroups = Types::warpgroups;
  const DecodeArguments& d = a.decode;
  if (arch::thread() == 0) {
    arch::prefetch(a.k);
    for (int n = 0; n <= Types::value_blocks; ++n)
      Types::k_pipeline(n).init(warpgroup_warps, warpgroup_warps);
    Types::weight_pipeline().init(MlaWarpgroups::value_warpgroups * arch::warpgroup_size,
                                  arch::warpgroup_size);
    arch::fence_mbarrier_init();
  }
  arch::prefetch_kernel_params_by_warp<MlaWarpgroups::threads / arch::wave_size>(a);
  // PDL: length tensors may be outputs of the previous kernel. Without them the work tile is known
  // before it ends.
  const Lengths& lengths = d.problem.lengths;
  if (lengths.cu_q || lengths.used_q || lengths.used_k) arch::grid_dependency_wait();
  const MlaWork<spec> work(d);
  const KeySplit& split = work.split;
  if (split.rows == 0) return arch::grid_dependency_wait();
  arch::barrier();
  const int warpgroup = arch::warpgroup();
  if (warpgroup == 0) {
    arch::reg_dealloc<warpgroups.producer_registers>();
    arch::grid_dependency_wait();
    produce_mla_tiles<spec>(a, work.sequence, split, work.item.kv_head);
    return MlaCluster::arrive_and_exit();
  }
  const int thread = arch::thread() - arch::warpgroup_size;
  const MlaQueries<spec, 3 * warpgroup_warps> queries(d, work, arch::wave() - warpgroup_warps);
  arch::grid_dependency_wait();
  queries.issue_loads();
  if (thread < Types::rows) {
    const QueryView view = split.view(d.problem, work.sequence, work.row(d, thread).query);
    arch::store_shared(Types::mask_bounds(thread), Words2{static_cast<std::uint32_t>(view.begin),
                                                          static_cast<std::uint32_t>(view.end)});
  }
  if (thread == 0) MlaResultRows<spec>::store(work);
  arch::cp_async_wait<0>();
  arch::fence_proxy_async();
  arch::barrier_sync(mla_start_barrier, 3 * arch::warpgroup_size);
  if (warpgroup == 1) {
    arch::reg_alloc<warpgroups.score_registers>();
    MlaScores<spec>(d, split).compute();
    MlaCluster::arrive_and_exit();
  } else {
    arch::reg_alloc<warpgroups.value_registers>();
    accumulate_mla_pv<spec>(d, split.begin, split.end, warpgroup - 2);
  }
}

}  // namespace rocflash::kernel
