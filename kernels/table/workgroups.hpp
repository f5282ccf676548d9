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
  switch (spec.operation) {
    case Operation::forward:
    case Operation::forward_tail_split: {
      const ForwardTile tile = forward_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Operation::forward_warp_specialized:
    case Operation::forward_warp_specialized_paged:
      return {warp_specialized_tile(spec).threads(), 1, warp_specialized_smem(spec)};
    case Operation::backward_warp_specialized:
    case Operation::backward_warp_specialized_large:
      return {backward_work_tile(spec).threads, 1, backward_work_tile(spec).shared};
    case Operation::weights:
      return {weights_tile.threads, weights_tile.waves_per_simd, 0};
    case Operation::backward_zero_fill:
    case Operation::backward_preprocess:
    case Operation::backward_postprocess_pdl:
    case Operation::backward_fused:
    case Operation::backward_fused_large_smem:
    case Operation::backward_postprocess:
    case Operation::backward_dq:
    case Operation::backward_dkdv:
    case Operation::backward_dk:
    case Operation::backward_dv:
    case Operation::backward_dsinks: {
      const BackwardTile tile = backward_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Operation::append:
      return {append_tile.threads, append_tile.waves_per_simd, 0};
    case Operation::forward_fp32:
    case Operation::backward_fp32_preprocess:
    case Operation::backward_fp32_dq:
    case Operation::backward_fp32_dk:
    case Operation::backward_fp32_dv:
    case Operation::backward_dbias:
    case Operation::backward_dalibi_partial:
    case Operation::backward_dalibi_reduce:
      return {fp32_tile(family, spec).threads, fp32_tile(family, spec).waves_per_simd, 0};
    case Operation::decode:
    case Operation::decode_mla:
    case Operation::decode_mla_warp_specialized:
    case Operation::decode_cluster:
    case Operation::decode_splitkv:
    case Operation::decode_fp32: {
      const DecodeTile tile = decode_tile(family, spec);
      return {tile.threads, tile.waves_per_simd, tile.dynamic_shared};
    }
    case Operation::combine:
    case Operation::combine_pdl:
      return {combine_tile.threads, combine_tile.waves_per_simd, 0};
    case Operation::read_memory:
      return {read_tile.threads, read_tile.waves_per_simd, 0};
  }
  return {};
}

}  // namespace rocflash::kernel
