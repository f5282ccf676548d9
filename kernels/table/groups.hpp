// The workgroup of any kernel: what a launch and the build's report need to know of it, whatever it
// computes.
#pragma once

#include "table/append.hpp"
#include "table/backward.hpp"
#include "table/combine.hpp"
#include "table/decode.hpp"
#include "table/forward.hpp"
#include "table/weights.hpp"

namespace rocflash::kernel {

struct GroupShape {
  int threads;
  int waves_per_simd;  // that registers and LDS must leave room for
  int dynamic_shared;  // bytes given at launch
};

constexpr GroupShape group_shape(Family family, const KernelSpec& spec) {
  if (is_backward(spec.operation)) {
    const BackwardTile tile = backward_tile(family, spec);
    return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
  }
  switch (spec.operation) {
    case Operation::forward: {
      const ForwardTile tile = forward_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Operation::weights:
      return {weights_tile.threads, weights_tile.waves_per_simd, 0};
    case Operation::append:
      return {append_tile.threads, append_tile.waves_per_simd, 0};
    case Operation::decode: {
      const DecodeTile tile = decode_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Operation::combine:
      return {combine_tile.threads, combine_tile.waves_per_simd, 0};
    default:
      break;
  }
  return {};
}

}  // namespace rocflash::kernel
