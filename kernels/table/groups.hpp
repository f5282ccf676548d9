// The workgroup of any kernel: what a launch and the build's report need to know of it, whatever it
// computes.
#pragma once

#include "table/append.hpp"
#include "table/backward.hpp"
#include "table/combine.hpp"
#include "table/decode.hpp"
#include "table/forward.hpp"
#include "table/read.hpp"
#include "table/weights.hpp"
#include "table/wide.hpp"

namespace rocflash::kernel {

struct GroupShape {
  int threads;
  int waves_per_simd;  // that registers and LDS must leave room for
  int dynamic_shared;  // bytes given at launch
};

constexpr GroupShape group_shape(Family family, const KernelSpec& spec) {
  switch (spec.operation) {
    case Operation::forward:
    case Operation::forward_halves: {
      const ForwardTile tile = forward_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Operation::forward_warpgroups:
    case Operation::forward_pages:
      return {forward_groups(spec).threads(), 1, forward_groups_shared(spec)};
    case Operation::backward_warpgroups:
    case Operation::backward_warpgroups_large:
      return {backward_block(spec).threads, 1, backward_block(spec).shared};
    case Operation::weights:
      return {weights_tile.threads, weights_tile.waves_per_simd, 0};
    case Operation::backward_clear:
    case Operation::backward_delta:
    case Operation::backward_round_early:
    case Operation::backward_fused:
    case Operation::backward_fused_large:
    case Operation::backward_round:
    case Operation::backward_queries:
    case Operation::backward_keys:
    case Operation::backward_dk:
    case Operation::backward_dv:
    case Operation::backward_sinks: {
      const BackwardTile tile = backward_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Operation::append:
      return {append_tile.threads, append_tile.waves_per_simd, 0};
    case Operation::forward_wide:
    case Operation::backward_wide_delta:
    case Operation::backward_wide_queries:
    case Operation::backward_wide_dk:
    case Operation::backward_wide_dv:
    case Operation::backward_bias:
    case Operation::backward_alibi:
    case Operation::backward_slopes:
      return {wide_tile(family, spec).threads, wide_tile(family, spec).waves_per_simd, 0};
    case Operation::decode:
    case Operation::decode_latent:
    case Operation::latent_warpgroups:
    case Operation::decode_clusters:
    case Operation::decode_long:
    case Operation::decode_wide: {
      const DecodeTile tile = decode_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Operation::combine:
    case Operation::combine_early:
      return {combine_tile.threads, combine_tile.waves_per_simd, 0};
    case Operation::read_memory:
      return {read_tile.threads, read_tile.waves_per_simd, 0};
  }
  return {};
}

}  // namespace rocflash::kernel
