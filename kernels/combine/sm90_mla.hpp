// Combine kernel of MLA decode on Hopper (decode/sm90_mla.hpp). It is latency-bound: there are
// thousands of rows of few splits, or few rows of a hundred splits. It has no branches for other
// shapes and takes fewer registers than combine/rows.hpp. With PDL it computes all addresses before
// the partial results are complete, and issues the first loads before it computes the weights. The
// order of the additions is that of combine/rows.hpp.
#pragma once

#include "attention/store_columns.hpp"
#include "combine/rows.hpp"

namespace rocflash::kernel {

// All rows are in use, partial results are 16-byte aligned, and the grid covers all items.
template <KernelSpec spec>
void combine_mla(const CombineArguments& a) {
  constexpr int waves = combine_tile.threads / arch::wave_size, lane_columns = 4,
                block = arch::wave_size * lane_columns,
                at_once = wide_splits + 1;  // 132 SMs in clusters of two: 66 splits for 8 waves
  ROCFLASH_SHARED_ARRAY Float4 sums[waves][arch::wave_size];
  arch::prefetch_kernel_params_by_warp<waves>(a);
  const Partials& p = a.partials;
  const int wave = arch::wave(), lane = arch::lane(), slice = wave % a.slices,
            together = waves / a.slices;
  const auto splits = static_cast<int>(p.splits), heads = static_cast<int>(p.heads),
             queries = static_cast<int>(p.queries),
             items = static_cast<int>(p.batch) * queries * heads * a.blocks;
  const int first = arch::workgroup_id() * together, number = first + wave / a.slices,
            item = number < items ? number : first, block_index = item % a.blocks,
            row_index = item / a.blocks, head = row_index % heads,
            query = row_index / heads % queries, batch = row_index / heads / queries;
  const int column = block_index * block + lane_columns * lane;
  const auto at = [&](const std::int64_t* stride, int third, int fourth) {
    return batch * stride[0] + third * stride[1] + fourth * stride[2];
  };
  const float* const lse = p.lse_partial + at(p.lse_partial_stride + 1, head, query);
  const float* from = p.out_partial + at(p.out_partial_stride + 1, query, head) +
                      slice * p.out_partial_stride[0] + (column < p.columns ? column : 0);
  const std::int64_t step = a.slices * p.out_partial_stride[0];
  // Loads the next splits of this wave.
  const auto load = [&](Float4(&x)[at_once], int split) {
    ROCFLASH_UNROLL
    for (int i = 0; i < at_once; ++i, split += a.slices, from += step)
      x[i] = split < splits ? arch::load(reinterpret_cast<const Float4*>(from)) : Float4{};
  };
  arch::grid_dependency_wait();
  arch::launch_dependents();
  Float4 x[at_once];
  load(x, slice);
  const bool has_sink = static_cast<bool>(a.problem.sinks);
  const float sink = has_sink ? sink_of(a.problem, head) : -infinity;
  const SplitWeights split_weights(lse, p.lse_partial_stride[0], splits, has_rests(a), has_sink,
                                   sink);
  Float4 value = {};
#pragma clang loop unroll(disable)
  for (int n = 0, split = slice; split < splits; ++n, split += at_once * a.slices) {
    if (n > 0) load(x, split);
    // Each lane computes the weight of one split; then all lanes process these splits in order.
    const int own_split = split + lane * a.slices;
    const float own_weight =
        own_split < splits ? split_weights.of(lse + own_split * p.lse_partial_stride[0]) : 0.0f;
    ROCFLASH_UNROLL
    for (int i = 0; i < at_once; ++i) {
      const float weight = arch::readlane(own_weight, i);
      if (weight != 0) value += weight * x[i];  // an empty split has no values
    }
  }
  if (a.slices > 1) {
    sums[wave][lane] = value;
    arch::barrier();
    for (int n = 1; n < a.slices && slice == 0; ++n) value += sums[wave + n][lane];
  }
  if (slice != 0 || number >= items) return;
  if (split_weights.sum != split_weights.sum)
    value = split_weights.sum;  // NaN, even without splits
  const Partials& results = arch::reload_kernargs(a).partials;
  const auto& to = results.out_stride;  // contiguous columns
  store_four(results.out + at(to, query, head) * bytes_of(results.out_dtype), results.out_dtype,
             column, static_cast<int>(results.columns), value);
  if (results.lse && block_index == 0 && lane == 0)
    arch::store(results.lse + at(results.lse_stride, head, query), split_weights.lse());
}

}  // namespace rocflash::kernel
