// The workgroup of any kernel, for launches and the resource report.
#pragma once

#include "table/append.hpp"
#include "table/backward.hpp"
#include "table/combine.hpp"
#include "table/decode.hpp"
#include "table/forward.hpp"
#include "table/fp32.hpp"
#include "table/read.hpp"
#include "table/weights.hpp"

namespace rocflash::kernel {

struct WorkgroupShape {
  int threads;
  int waves_per_simd;  // occupancy target; the resource report checks it
  int dynamic_shared;  // bytes passed at launch
};

constexpr WorkgroupShape workgroup_shape(Family family, const KernelSpec& spec) {
  if (has_fp32_tile(spec)) {
    const Fp32Tile tile = fp32_tile(family, spec);
    return {tile.threads, tile.waves_per_simd, 0};
  }
  switch (spec.op) {
    case Op::forward: {
      if (spec.schedule == Schedule::warp_specialized ||
          spec.schedule == Schedule::warp_specialized_paged)
        return {warp_specialized_tile(spec).threads(), 1, warp_specialized_smem(spec)};
      const ForwardTile tile = forward_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Op::weights:
      return {weights_tile.threads, weights_tile.waves_per_simd, 0};
    case Op::append:
      return {append_tile.threads, append_tile.waves_per_simd, 0};
    case Op::decode:
    case Op::decode_mla: {
      const DecodeTile tile = decode_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Op::combine:
      return {combine_tile.threads, combine_tile.waves_per_simd, 0};
    case Op::read_memory:
      return {read_tile.threads, read_tile.waves_per_simd, 0};
    case Op::backward:
      if (is_warp_specialized_backward(spec))
        return {backward_work_tile(spec).threads, 1, backward_work_tile(spec).shared};
      [[fallthrough]];
    case Op::backward_zero_fill:
    case Op::backward_preprocess:
    case Op::backward_postprocess:
    case Op::backward_dq:
    case Op::backward_dkdv:
    case Op::backward_dk:
    case Op::backward_dv:
    case Op::backward_dsinks: {
      const BackwardTile tile = backward_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Op::backward_dbias:
    case Op::backward_dalibi_partial:
    case Op::backward_dalibi_reduce:
      break;  // has_fp32_tile
  }
  return {};
}

}  // namespace rocflash::kernel
