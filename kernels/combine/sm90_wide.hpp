// Merges parts of wide rows on Hopper, those that latent decode leaves (decode/sm90_latent.hpp). It is latency: there are
// thousands of rows of few parts, or few rows of a hundred. So it takes a third of the registers that combine/rows.hpp
// has for every shape, which is three times as many warps per multiprocessor, and the first values are on their way before
// their weights are known. Sums are those of combine/rows.hpp in the same order.
#pragma once

#include "combine/rows.hpp"

namespace rocflash::kernel {

// All rows are in use; parts are rows of f32 on 16 bytes; there are as many workgroups as it takes.
template <KernelSpec spec>
void combine_wide(const CombineArguments& a) {
  constexpr int waves = combine_tile.threads / arch::wave_size, lane_columns = 4,
                block = arch::wave_size * lane_columns, at_once = wide_parts;
  ROCFLASH_SHARED_ARRAY Float4 sums[waves][arch::wave_size];
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
  const float* const from =
      p.out_partial + at(p.out_partial_stride + 1, query, head) + (column < p.columns ? column : 0);
  const auto load = [&](Float4(&x)[at_once], int part) {
    ROCFLASH_UNROLL
    for (int i = 0; i < at_once; ++i, part += a.slices)
      x[i] =
          part < parts
              ? arch::load(reinterpret_cast<const Float4*>(from + part * p.out_partial_stride[0]))
              : Float4{};
  };
  const auto lse_of = [&](int part) {
    const float y = part < parts ? arch::load(lse + part * p.lse_partial_stride[0]) : -infinity;
    return is_infinite(y) ? -infinity : y;
  };
  Float4 x[at_once];
  load(x, slice);
  const bool has_sink = static_cast<bool>(a.problem.sinks);
  const float sink = has_sink ? sink_of(a.problem, head) : -infinity;
  Shares shares;
  float own = -infinity, own_sum = 0;
#pragma clang loop unroll(disable)
  for (int part = lane; part < parts; part += arch::wave_size)
    own = __builtin_fmaxf(own, lse_of(part));
  shares.highest = of_wave(own, [](float y, float z) { return __builtin_fmaxf(y, z); });
  if (has_sink) shares.highest = __builtin_fmaxf(shares.highest, sink);
#pragma clang loop unroll(disable)
  for (int part = lane; part < parts; part += arch::wave_size) {
    const float y = lse_of(part);
    own_sum += y == -infinity ? 0.0f : Shares::power(y - shares.highest);
  }
  shares.sum = of_wave(own_sum, [](float y, float z) { return y + z; });
  if (has_sink && sink != -infinity) shares.sum += Shares::power(sink - shares.highest);
  shares.scale = 1 / shares.sum;
  Float4 value = {};
  float own_share = 0;
#pragma clang loop unroll(disable)
  for (int n = 0, part = slice; part < parts; n += at_once, part += at_once * a.slices) {
    if (n > 0) load(x, part);
    // The lanes look up as many shares; then all of them take one part after the other.
    if (n % arch::wave_size == 0) own_share = shares.of(lse_of(part + lane * a.slices));
    ROCFLASH_UNROLL
    for (int i = 0; i < at_once; ++i) {
      const float share = arch::from_lane(own_share, (n + i) % arch::wave_size);
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
  const auto& to = p.out_stride;
  const std::int64_t element = at(to, query, head) + column * to[3];
  ROCFLASH_UNROLL
  for (int e = 0; e < lane_columns; ++e)
    if (column + e < p.columns) store_number(p.out, p.out_dtype, element + e * to[3], value[e]);
  if (p.lse && number_of_block == 0 && lane == 0) {
    arch::store(p.lse + at(p.lse_stride, head, query), shares.lse());
  }
}

}  // namespace rocflash::kernel
