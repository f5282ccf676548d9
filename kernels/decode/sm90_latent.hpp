// Decode on Hopper where the values are the first columns of the keys (decode/latent.hpp), without options.
//
//   warpgroup 0      where keys lie, and their copies, by the copy engine
//   warpgroup 1      scores, softmax, weights to shared memory
//   warpgroups 2, 3  half of the outputs each: 256 columns, in registers
//
//   shared memory    q; two tiles of 64 keys, which both products read; one or two tiles of weights
//
// Few rows of q, pairs of query and head, are the columns of the products (sm90_latent_few.hpp), 64 are their rows
// (sm90_latent_many.hpp). A tile has five parts that are copied and freed on their own: four quarters of the values, and the
// columns that are keys alone. Weights are relative to references that follow the largest scores lazily
// (attention/softmax.hpp); where one has moved, the weights come with factors for the outputs so far.
#pragma once

#include <type_traits>

#include "decode/sm90_latent_few.hpp"
#include "decode/sm90_latent_many.hpp"

namespace rocflash::kernel {

template <KernelSpec spec, bool many = spec.bucket == group_rows>
struct LatentSides {
  using Softmax = FewRowsSoftmax<spec>;
  using Outputs = FewRowsOutputs<spec>;
};
template <KernelSpec spec>
struct LatentSides<spec, true> {
  using Softmax = ManyRowsSoftmax<spec>;
  using Outputs = ManyRowsOutputs<spec>;
};

// What the warpgroup of the scores does.
template <KernelSpec spec>
class LatentScores {
  using Types = LatentGroupTypes<spec>;
  using Softmax = typename LatentSides<spec>::Softmax;
  using Scores = typename Softmax::Scores;

 public:
  LatentScores(const DecodeArguments& a, const DecodePart& part)
      : part_(part), unit_(Scale(a.problem.scale).unit) {}

  void compute() {
#pragma clang loop unroll(disable)
    for (std::int32_t begin = part_.begin; begin < part_.end; begin += Types::keys) {
      Scores scores;
      start(scores);
      wait<0>(scores);
      release();
      pass_on(scores, begin);
      place_.advance();
    }
    close();
  }

 private:
  // Scores of the tile at `place_`, as soon as its parts are there.
  void start(Scores& scores ROCFLASH_TAKES_OFF) const {
    using KeyPart = typename Types::KeyPart;
    using QueryPart = typename Types::QueryPart;
    // Renewed: descriptors of all steps would take more registers than there are.
    const SharedAddress q = uniform_address(arch::renew(Types::q(0))),
                        k = uniform_address(Types::k(place_.stage(), 0));
    Types::k_ring(Types::value_parts).wait(place_);
    Softmax::template multiply<latent_rest, true>(
        scores, RowLines<typename Types::KeyRest>(k + Types::value_parts * KeyPart::bytes),
        RowLines<typename Types::QueryRest>(q + Types::value_parts * QueryPart::bytes));
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::value_parts; ++n) {
      Types::k_ring(n).wait(place_);
      Softmax::template multiply<Types::part, false>(
          scores, RowLines<KeyPart>(k + static_cast<std::uint32_t>(n * KeyPart::bytes)),
          RowLines<QueryPart>(q + static_cast<std::uint32_t>(n * QueryPart::bytes)));
    }
  }
  // Nobody else reads the columns that are keys alone.
  void release() const {
    if (arch::lane() == 0) Types::k_ring(Types::value_parts).release(place_);
  }
  // Scores of the tile at key `begin` become weights. The last tile is the one at `place_`.
  void pass_on(Scores& scores ROCFLASH_SETTLED, std::int32_t begin) {
    if (begin < part_.common_begin || begin + Types::keys > part_.common_end)
      Softmax::hide_keys(scores, begin);
    const bool moves = softmax_.weigh(scores, unit_, weight_place_);
    const int thread = arch::thread() % arch::warpgroup_size, warp = thread / arch::wave_size;
    if (arch::lane() == 0)
      arch::store_shared(Types::moved(weight_place_.stage(), warp), std::uint32_t{moves});
    if (begin + Types::keys > part_.end) {
      arch::barrier(latent_scores_barrier, arch::warpgroup_size);  // all scores are there
      clear_latent_rows<Types>(place_.stage(), part_.end - begin, thread);
    }
    arch::publish_shared();
    Types::weight_ring().announce(weight_place_, 0);  // each lane what it stored
    weight_place_.advance();
  }
  // What ends the rows goes the way that weights go.
  void close() {
    Types::weight_ring().wait_until_empty(weight_place_);
    softmax_.close([](int row, float lse) {
      arch::store_shared(Types::lse(row), __builtin_bit_cast(std::uint32_t, lse));
    });
    Types::weight_ring().announce(weight_place_, 0);
  }

  const DecodePart& part_;
  const float unit_;
  DrainPlace<Types::stages> place_;
  FillPlace<Types::weight_stages> weight_place_;
  Softmax softmax_;
};

// What a warpgroup of the values does; they count from 0.
template <KernelSpec spec>
void weigh_latent(const DecodeArguments& a, std::int32_t first_key, std::int32_t end_key,
                  int group) {
  using Types = LatentGroupTypes<spec>;
  const int lane = arch::lane(), warp = arch::wave() % group_warps;
  const int first_part = Types::own_parts * group;
  const auto weight_ring = Types::weight_ring();
  DrainPlace<Types::stages> place;
  DrainPlace<Types::weight_stages> weight_place;
  typename LatentSides<spec>::Outputs out;

#pragma clang loop unroll(disable)
  for (std::int32_t begin = first_key; begin < end_key; begin += Types::keys) {
    weight_ring.wait(weight_place);
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::own_parts; ++n) Types::k_ring(first_part + n).wait(place);
    if (arch::load_shared4(Types::moved(weight_place.stage(), warp)) != 0)
      out.rescale(weight_place.stage());
    out.add(uniform_address(Types::k(place.stage(), first_part)),
            uniform_address(Types::weights(weight_place.stage())), [&](int n) {
              if (lane == 0) Types::k_ring(first_part + n).release(place);
            });
    weight_ring.release(weight_place);  // each lane what it read
    place.advance();
    weight_place.advance();
  }

  // The end: all tiles have been read, and results take their place on the way to rows of their own.
  arch::let_next_launch_start();
  weight_ring.wait(weight_place);
  arch::barrier(latent_values_barrier, LatentGroups::value_groups * arch::warpgroup_size);
  std::uint64_t broken = out.finish(Types::half * group);
  constexpr int warps = group_warps * LatentGroups::value_groups;
  const int own = group_warps * group + warp;
  if (lane == 0) arch::store_shared(Types::broken(own), __builtin_bit_cast(Words2, broken));
  arch::barrier(latent_values_barrier, LatentGroups::value_groups * arch::warpgroup_size);
  broken = 0;
  for (int w = 0; w < warps; ++w)
    broken |= __builtin_bit_cast(std::uint64_t, arch::load_shared8(Types::broken(w)));
  repair_latent<spec>(a, own, warps, broken);
  if (!LatentPair::exists()) return store_latent<spec>(a, own, warps);
  LatentPair::meet();
  merge_latent<spec, warps>(a, own);
  LatentPair::meet();
}

template <KernelSpec spec>
void latent_warpgroups(const LatentWarpgroupsArguments& a) {
  using Types = LatentGroupTypes<spec>;
  constexpr LatentGroups groups = Types::groups;
  const DecodeArguments& d = a.decode;
  if (arch::thread() == 0) {
    arch::prefetch(a.k);
    for (int n = 0; n <= Types::value_parts; ++n) Types::k_ring(n).make(group_warps, group_warps);
    Types::weight_ring().make(LatentGroups::value_groups * arch::warpgroup_size,
                              arch::warpgroup_size);
    arch::publish_barriers();
  }
  arch::fetch_arguments_by_turns<LatentGroups::threads / arch::wave_size>(a);
  // Lengths may come from the launch before. Where there are none, all that follows from them is known before it ends.
  const Lengths& lengths = d.problem.lengths;
  if (lengths.cu_q || lengths.used_q || lengths.used_k) arch::wait_for_launch_before();
  const LatentWork<spec> work(d);
  const DecodePart& part = work.part;
  if (part.rows == 0) return arch::wait_for_launch_before();
  arch::barrier();
  const int group = arch::warpgroup();
  if (group == 0) {
    arch::give_registers<groups.copying>();
    arch::wait_for_launch_before();
    copy_latent<spec>(a, work.sequence, part, work.item.kv_head);
    return LatentPair::leave();
  }
  const int thread = arch::thread() - arch::warpgroup_size;
  const LatentQueries<spec, 3 * group_warps> queries(d, work, arch::wave() - group_warps);
  arch::wait_for_launch_before();
  queries.start_copies();
  if (thread < Types::rows) {
    const QueryView view = part.view(d.problem, work.sequence, work.row(d, thread).query);
    arch::store_shared(Types::seen_keys(thread), Words2{static_cast<std::uint32_t>(view.begin),
                                                        static_cast<std::uint32_t>(view.end)});
  }
  if (thread == 0) LatentRows<spec>::keep(work);
  arch::wait_for_copies<0>();
  arch::publish_shared();
  arch::barrier(latent_start_barrier, 3 * arch::warpgroup_size);
  if (group == 1) {
    arch::take_registers<groups.scoring>();
    LatentScores<spec>(d, part).compute();
    LatentPair::leave();
  } else {
    arch::take_registers<groups.weighing>();
    weigh_latent<spec>(d, part.begin, part.end, group - 2);
  }
}

}  // namespace rocflash::kernel
