// Merges attention over parts of the keys: each row is the mean of its parts, weighted by their shares of the
// whole sum. One wave, or several that divide the parts, handles a row; each of its lanes has four columns
// at a time. Parts are added in an order that only their number decides.
#pragma once

#include "arch/arch.hpp"
#include "attention/numbers.hpp"
#include "attention/score.hpp"
#include "attention/softmax.hpp"
#include "table/combine.hpp"

namespace rocflash::kernel {

// One row of all parts.
struct CombinedRow {
  const Parts& p;
  std::int64_t batch, query, head;

  CombinedRow(const Parts& parts, std::int64_t row) : p(parts) {
    if (row <= 0x7fffffff && parts.heads <= 0x7fffffff && parts.queries <= 0x7fffffff) {
      // Division of 64 bits takes as long as a load.
      const auto r = static_cast<std::uint32_t>(row), h = static_cast<std::uint32_t>(parts.heads),
                 q = static_cast<std::uint32_t>(parts.queries);
      batch = r / h / q;
      query = r / h % q;
      head = r % h;
    } else {
      batch = row / parts.heads / parts.queries;
      query = row / parts.heads % parts.queries;
      head = row % parts.heads;
    }
  }

  float lse(std::int64_t part) const {
    const auto& s = p.lse_partial_stride;
    return arch::load(p.lse_partial + part * s[0] + batch * s[1] + head * s[2] + query * s[3]);
  }
  const float* out(std::int64_t part) const {
    const auto& s = p.out_partial_stride;
    return p.out_partial + part * s[0] + batch * s[1] + query * s[2] + head * s[3];
  }
};

inline bool is_infinite(float x) { return __builtin_fabsf(x) == infinity; }

// What turns a part's lse into its weight. The sink is one more part, without values; one of
// +infinity or NaN makes everything NaN.
struct Shares {
  float highest = -infinity, sum = 0;

  static float power(float difference) { return arch::exp2(difference * log2_e); }

  Shares() = default;
  Shares(const CombinedRow& row, bool has_sink, float sink) {
    constexpr int at_once = 4;  // loads that do not wait for each other
    const std::int64_t parts = row.p.parts;
    float own = -infinity, own_sum = 0;
    for (std::int64_t first = arch::lane(); first < parts; first += at_once * arch::wave_size) {
      ROCFLASH_UNROLL
      for (int i = 0; i < at_once; ++i) {
        const std::int64_t n = first + i * arch::wave_size;
        const float lse = n < parts ? row.lse(n) : -infinity;
        own = __builtin_fmaxf(own, is_infinite(lse) ? -infinity : lse);
      }
    }
    highest = arch::largest_of_wave(own);
    if (has_sink) highest = __builtin_fmaxf(highest, sink);
    for (std::int64_t first = arch::lane(); first < parts; first += at_once * arch::wave_size) {
      ROCFLASH_UNROLL
      for (int i = 0; i < at_once; ++i) {
        const std::int64_t n = first + i * arch::wave_size;
        const float lse = n < parts ? row.lse(n) : -infinity;
        own_sum += is_infinite(lse) ? 0.0f : power(lse - highest);
      }
    }
    sum = arch::sum_of_wave(own_sum);
    if (has_sink && sink != -infinity) sum += power(sink - highest);
  }
  float of(float lse) const { return is_infinite(lse) ? 0.0f : power(lse - highest) / sum; }
  float lse() const { return sum == 0 ? infinity : highest + arch::log2(sum) * ln_2; }
};

// Whether a row of decode is in use; rows of no sequence and rows that are not in use become 0. Rows beyond
// max_seqlen_q are not written.
enum class RowUse { used, unused, untouched };
inline RowUse row_use(const Problem& p, std::int64_t batch, std::int64_t row) {
  const Lengths& l = p.lengths;
  if (l.packed_q()) {
    batch = sequence_of_row(l.cu_q, l.batch, row);
    if (batch < 0) return RowUse::unused;
  }
  const SequenceView s(p, batch);
  const std::int64_t query = row - s.q_row;
  return query < 0 || query >= s.q_rows ? RowUse::untouched
         : query < s.sq                 ? RowUse::used
                                        : RowUse::unused;
}

template <KernelSpec spec>
void combine(const CombineArguments& a) {
  constexpr int waves = combine_tile.threads / arch::wave_size, lane_columns = 4,
                block = arch::wave_size * lane_columns;
  ROCFLASH_SHARED_ARRAY Float4 sums[waves][arch::wave_size];
  const Parts& p = a.parts;
  const int wave = arch::thread() / arch::wave_size, slice = wave % a.slices,
            together = waves / a.slices;
  const std::int64_t rows = p.batch * p.queries * p.heads;
  const auto& from = p.out_partial_stride;
  const bool chunks = (reinterpret_cast<std::uintptr_t>(p.out_partial) % 16 == 0) && from[4] == 1 &&
                      (from[0] | from[1] | from[2] | from[3]) % 4 == 0;

  for (std::int64_t first = std::int64_t{arch::group()} * together; first < rows;
       first += std::int64_t{a.groups} * together) {
    const std::int64_t number = first + wave / a.slices;
    const bool exists = number < rows;
    const CombinedRow row(p, exists ? number : first);
    const RowUse use = !exists        ? RowUse::untouched
                       : a.of_problem ? row_use(a.problem, row.batch, row.query)
                                      : RowUse::used;
    Shares shares;
    if (use == RowUse::used) {
      const bool has_sink = a.of_problem && a.problem.sinks;
      shares = Shares(row, has_sink, has_sink ? sink_of(a.problem, row.head) : 0.0f);
    }

    for (std::int64_t begin = 0; begin < p.columns; begin += block) {
      const std::int64_t column = begin + lane_columns * arch::lane();
      Float4 value = {};
      const std::int64_t parts = use == RowUse::used ? p.parts : 0;
      // The lanes look up the shares of as many parts; then all of them take one part after the other.
      for (std::int64_t base = slice; base < parts; base += arch::wave_size * a.slices) {
        const std::int64_t own_part = base + arch::lane() * a.slices;
        const float own_share = own_part < parts ? shares.of(row.lse(own_part)) : 0;
        const auto count =
            static_cast<int>(smaller((parts - base + a.slices - 1) / a.slices, arch::wave_size));
        // Loads that do not wait for each other; their shares lie in scalar registers.
        constexpr int at_once = arch::wave_size == 64 ? 2 : 8;
        for (int first_part = arch::in_lanes(0); first_part < count; first_part += at_once) {
          float share[at_once];
          Float4 x[at_once];
          ROCFLASH_UNROLL
          for (int i = 0; i < at_once; ++i) {
            const int n = first_part + i;
            share[i] = arch::in_lanes(arch::from_lane(own_share, n < arch::wave_size ? n : 0));
            x[i] = 0;
            if (n >= count || share[i] == 0) continue;  // an empty part has no values
            const float* from_part = row.out(base + n * a.slices) + column * from[4];
            if (chunks && column + lane_columns <= p.columns) {
              x[i] = arch::load(reinterpret_cast<const Float4*>(from_part));
            } else {
              ROCFLASH_UNROLL
              for (int e = 0; e < lane_columns; ++e)
                if (column + e < p.columns) x[i][e] = arch::load(from_part + e * from[4]);
            }
          }
          ROCFLASH_UNROLL
          for (int i = 0; i < at_once; ++i) {
            if (first_part + i < count && share[i] != 0) value += share[i] * x[i];
          }
        }
      }
      if (a.slices > 1) {
        arch::barrier();  // the sums of the block before have been read
        sums[wave][arch::lane()] = value;
        arch::barrier();
        for (int n = 1; n < a.slices && slice == 0; ++n) value += sums[wave + n][arch::lane()];
      }
      if (slice != 0 || use == RowUse::untouched) continue;
      if (shares.sum != shares.sum) value = shares.sum;  // NaN, even without any part
      const Parts& results = arch::again(a).parts;
      const auto& to = results.out_stride;
      const std::int64_t element = row.batch * to[0] + row.query * to[1] + row.head * to[2];
      ROCFLASH_UNROLL
      for (int e = 0; e < lane_columns; ++e)
        if (column + e < p.columns)
          store_number(results.out, results.out_dtype, element + (column + e) * to[3], value[e]);
    }
    const Parts& results = arch::again(a).parts;
    if (results.lse && slice == 0 && use != RowUse::untouched && arch::lane() == 0) {
      const auto& s = results.lse_stride;
      arch::store(results.lse + row.batch * s[0] + row.head * s[1] + row.query * s[2],
                  use == RowUse::used ? shares.lse() : infinity);
    }
  }
}

}  // namespace rocflash::kernel
