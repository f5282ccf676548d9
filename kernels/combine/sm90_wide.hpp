// Merges parts of wide rows on Hopper, those that latent decode leaves (decode/sm90_latent.hpp). It is latency: there are
// thousands of rows of few parts, or few rows of a hundred. So it has no branches for other shapes and takes fewer
// registers than combine/rows.hpp; all addresses are known before the parts are there; and the first values are on their way
// before their weights are known. Sums are those of combine/rows.hpp in the same order.
#pragma once

#include "attention/columns.hpp"
#include "combine/rows.hpp"

namespace rocflash::kernel {

// All rows are in use; parts are rows of f32 on 16 bytes; there are as many workgroups as it takes.
template <KernelSpec spec>
void combine_wide(const CombineArguments& a) {
  constexpr int waves = combine_tile.threads / arch::wave_size, lane_columns = 4,
                block = arch::wave_size * lane_columns,
                at_once = wide_parts + 1;  // 132 multiprocessors in pairs leave 66 to eight waves
  ROCFLASH_SHARED_ARRAY Float4 sums[waves][arch::wave_size];
  arch::fetch_arguments_by_turns<waves>(a);
  const Parts& p = a.parts;
  const int wave = arch::wave(), lane = arch::lane(), slice = wave % a.slices,
            together = waves / a.slices;
  const auto parts = static_cast<int>(p.parts), heads = static_cast<int>(p.heads),
             queries = static_cast<int>(p.queries),
             items = static_cast<int>(p.batch) * queries * heads * a.blocks;
  const int first = arch::group() * together, number = first + wave / a.slices,
            item = number < items ? number : first, number_of_block = item % a.blocks,
            number_of_row = item / a.blocks, head = number_of_row % heads,
            query = number_of_row / heads % queries, batch = number_of_row / heads / queries;
  const int column = number_of_block * block + lane_columns * lane;
  const auto at = [&](const std::int64_t* stride, int third, int fourth) {
    return batch * stride[0] + third * stride[1] + fourth * stride[2];
  };
  const float* const lse = p.lse_partial + at(p.lse_partial_stride + 1, head, query);
  const float* from = p.out_partial + at(p.out_partial_stride + 1, query, head) +
                      slice * p.out_partial_stride[0] + (column < p.columns ? column : 0);
  const std::int64_t step = a.slices * p.out_partial_stride[0];
  // The next parts of this wave.
  const auto load = [&](Float4(&x)[at_once], int part) {
    ROCFLASH_UNROLL
    for (int i = 0; i < at_once; ++i, part += a.slices, from += step)
      x[i] = part < parts ? arch::load(reinterpret_cast<const Float4*>(from)) : Float4{};
  };
  const auto lse_of = [&](int part) {
    const float y = part < parts ? arch::load(lse + part * p.lse_partial_stride[0]) : -infinity;
    return is_infinite(y) ? -infinity : y;
  };
  // Where everything lies is known by the time that it is there.
  arch::wait_for_launch_before();
  arch::let_next_launch_start();
  Float4 x[at_once];
  load(x, slice);
  const bool has_sink = static_cast<bool>(a.problem.sinks);
  const float sink = has_sink ? sink_of(a.problem, head) : -infinity;
  const Shares shares(lse, p.lse_partial_stride[0], parts, has_sink, sink);
  Float4 value = {};
#pragma clang loop unroll(disable)
  for (int n = 0, part = slice; part < parts; ++n, part += at_once * a.slices) {
    if (n > 0) load(x, part);
    // The lanes look up as many shares; then all of them take one part after the other.
    const float own_share = shares.of(lse_of(part + lane * a.slices));
    ROCFLASH_UNROLL
    for (int i = 0; i < at_once; ++i) {
      const float share = arch::from_lane(own_share, i);
      if (share != 0) value += share * x[i];  // an empty part has no values
    }
  }
  if (a.slices > 1) {
    sums[wave][lane] = value;
    arch::barrier();
    for (int n = 1; n < a.slices && slice == 0; ++n) value += sums[wave + n][lane];
  }
  if (slice != 0 || number >= items) return;
  if (shares.sum != shares.sum) value = shares.sum;  // NaN, even without any part
  const Parts& results = arch::again(a).parts;
  const auto& to = results.out_stride;  // columns lie one behind the other
  store_four(results.out + at(to, query, head) * bytes_of(results.out_dtype), results.out_dtype,
             column, static_cast<int>(results.columns), value);
  if (results.lse && number_of_block == 0 && lane == 0)
    arch::store(results.lse + at(results.lse_stride, head, query), shares.lse());
}

}  // namespace rocflash::kernel
