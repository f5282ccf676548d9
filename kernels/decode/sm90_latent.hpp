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
void score_latent(const DecodeArguments& a, std::int32_t first_key, std::int32_t end_key,
                  std::int32_t common_begin, std::int32_t common_end) {
  using Types = LatentGroupTypes<spec>;
  using Softmax = typename LatentSides<spec>::Softmax;
  using KeyPart = typename Types::KeyPart;
  using QueryPart = typename Types::QueryPart;
  const int thread = arch::thread() % arch::warpgroup_size, lane = arch::lane(),
            warp = thread / arch::wave_size;
  const float unit = Scale(a.problem.scale).unit;
  const auto rest = Types::k_ring(Types::value_parts);
  const auto weight_ring = Types::weight_ring();
  DrainPlace<Types::stages> place;
  FillPlace<Types::weight_stages> weight_place;
  Softmax softmax;

#pragma clang loop unroll(disable)
  for (std::int32_t begin = first_key; begin < end_key; begin += Types::keys) {
    const int stage = place.stage();
    typename Softmax::Scores scores;
    // Renewed: descriptors of all steps would take more registers than there are.
    const SharedAddress q = uniform_address(arch::renew(Types::q(0))),
                        k = uniform_address(Types::k(stage, 0));
    rest.wait(place);
    Softmax::template multiply<latent_rest, true>(
        scores, RowLines<typename Types::KeyRest>(k + Types::value_parts * KeyPart::bytes),
        RowLines<typename Types::QueryRest>(q + Types::value_parts * QueryPart::bytes));
    ROCFLASH_UNROLL
    for (int n = 0; n < Types::value_parts; ++n) {
      Types::k_ring(n).wait(place);
      Softmax::template multiply<Types::part, false>(
          scores, RowLines<KeyPart>(k + static_cast<std::uint32_t>(n * KeyPart::bytes)),
          RowLines<QueryPart>(q + static_cast<std::uint32_t>(n * QueryPart::bytes)));
    }
    wait<0>(scores);
    if (lane == 0) rest.release(place);

    if (begin < common_begin || begin + Types::keys > common_end) Softmax::hide_keys(scores, begin);
    const bool moves = softmax.weigh(scores, unit, weight_place);
    if (lane == 0)
      arch::store_shared(Types::moved(weight_place.stage(), warp), std::uint32_t{moves});
    if (begin + Types::keys > end_key) {
      arch::barrier(latent_scores_barrier, arch::warpgroup_size);  // all scores are there
      clear_latent_rows<Types>(stage, end_key - begin, thread);
    }
    arch::publish_shared();
    weight_ring.announce(weight_place, 0);  // each lane what it stored
    place.advance();
    weight_place.advance();
  }
  // What ends the rows goes the way that weights go.
  weight_ring.wait_until_empty(weight_place);
  softmax.close([](int row, float lse) {
    arch::store_shared(Types::lse(row), __builtin_bit_cast(std::uint32_t, lse));
  });
  weight_ring.announce(weight_place, 0);
}

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
  merge_latent<spec>(a, own, warps);
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
  arch::wait_for_launch_before();
  const LatentWork<spec> work(d);
  const DecodePart& part = work.part;
  if (part.rows == 0) return;
  arch::barrier();
  const int group = arch::warpgroup();
  if (group == 0) {
    arch::give_registers<groups.copying>();
    copy_latent<spec>(a, work.sequence, part, work.item.kv_head);
    return LatentPair::leave();
  }
  const int thread = arch::thread() - arch::warpgroup_size;
  copy_latent_queries<spec>(d, work, arch::wave() - group_warps, 3 * group_warps);
  if (thread < Types::rows) {
    const QueryView view = part.view(d.problem, work.sequence, work.row(d, thread).query);
    arch::store_shared(Types::seen_keys(thread), Words2{static_cast<std::uint32_t>(view.begin),
                                                        static_cast<std::uint32_t>(view.end)});
  }
  arch::publish_shared();
  arch::barrier(latent_start_barrier, 3 * arch::warpgroup_size);
  if (group == 1) {
    arch::take_registers<groups.scoring>();
    score_latent<spec>(d, part.begin, part.end, part.common_begin, part.common_end);
    LatentPair::leave();
  } else {
    arch::take_registers<groups.weighing>();
    weigh_latent<spec>(d, part.begin, part.end, group - 2);
  }
}

}  // namespace rocflash::kernel
