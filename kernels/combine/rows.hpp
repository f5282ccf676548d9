// Merges attention over parts of the keys: each row is the mean of its parts, weighted by their shares of the
// whole sum. One wave, or several that divide the parts, handles some columns of a row; each of its lanes has four
// of them. Parts are added in an order that only their number decides.
//
// After decode of a short cache this is as long as decode itself: what counts then is how many instructions a wave
// executes, so addresses are pointers that advance, and loops have short forms for few parts.
#pragma once

#include "arch/arch.hpp"
#include "attention/numbers.hpp"
#include "attention/score.hpp"
#include "attention/softmax.hpp"
#include "table/combine.hpp"

namespace rocflash::kernel {

// One row of all parts.
struct CombinedRow {
  std::int64_t batch, query, head;

  CombinedRow(const Parts& p, std::int64_t row) {
    if (row <= 0x7fffffff && p.heads <= 0x7fffffff && p.queries <= 0x7fffffff) {
      // Division of 64 bits takes as long as a load.
      const auto r = static_cast<std::uint32_t>(row), h = static_cast<std::uint32_t>(p.heads),
                 q = static_cast<std::uint32_t>(p.queries);
      batch = r / h / q;
      query = r / h % q;
      head = r % h;
    } else {
      batch = row / p.heads / p.queries;
      query = row / p.heads % p.queries;
      head = row % p.heads;
    }
  }

  // Of part 0.
  const float* lse(const Parts& p) const {
    const auto& s = p.lse_partial_stride;
    return p.lse_partial + batch * s[1] + head * s[2] + query * s[3];
  }
  const float* out(const Parts& p) const {
    const auto& s = p.out_partial_stride;
    return p.out_partial + batch * s[1] + query * s[2] + head * s[3];
  }
};

// Over all lanes, the same in each of them.
template <class Combine>
float of_wave(float x, Combine combine) {
  x = combine(x, arch::rotated<8>(x));
  x = combine(x, arch::rotated<4>(x));
  x = combine(x, arch::rotated<2>(x));
  x = combine(x, arch::rotated<1>(x));
  float whole = arch::from_lane(x, 0);
  ROCFLASH_UNROLL
  for (int first = 16; first < arch::wave_size; first += 16)
    whole = combine(whole, arch::from_lane(x, first));
  return whole;
}

inline bool is_infinite(float x) { return __builtin_fabsf(x) == infinity; }

// What turns a part's lse into its weight. The sink is one more part, without values; one of
// +infinity or NaN makes everything NaN.
struct Shares {
  float highest = -infinity, sum = 0, scale = 0;

  static float power(float difference) { return arch::exp2(difference * log2_e); }

  Shares() = default;
  // `lse` is that of part 0, the others follow at `stride`.
  Shares(const float* lse, std::int64_t stride, std::int64_t parts, bool has_sink, float sink) {
    float own = -infinity, own_sum = 0;
    visit(lse, stride, parts, [&](float x) { own = __builtin_fmaxf(own, x); });
    highest = of_wave(own, [](float x, float y) { return __builtin_fmaxf(x, y); });
    if (has_sink) highest = __builtin_fmaxf(highest, sink);
    visit(lse, stride, parts,
          [&](float x) { own_sum += x == -infinity ? 0.0f : power(x - highest); });
    sum = of_wave(own_sum, [](float x, float y) { return x + y; });
    if (has_sink && sink != -infinity) sum += power(sink - highest);
    scale = 1 / sum;
  }
  float of(float lse) const { return is_infinite(lse) ? 0.0f : power(lse - highest) * scale; }
  float lse() const { return sum == 0 ? infinity : highest + arch::log2(sum) * ln_2; }

 private:
  // The parts of this lane; those that are empty have -infinity.
  template <class Visit>
  static void visit(const float* lse, std::int64_t stride, std::int64_t parts, Visit with) {
    const auto load = [&](std::int64_t n) {
      const float x = n < parts ? arch::load(lse + n * stride) : -infinity;
      return is_infinite(x) ? -infinity : x;
    };
    if (parts <= arch::wave_size) return with(load(arch::lane()));
    constexpr int at_once = 4;  // loads that do not wait for each other
    for (std::int64_t first = arch::lane(); first < parts; first += at_once * arch::wave_size) {
      float x[at_once];
      ROCFLASH_UNROLL
      for (int i = 0; i < at_once; ++i) x[i] = load(first + i * arch::wave_size);
      ROCFLASH_UNROLL
      for (int i = 0; i < at_once; ++i) with(x[i]);
    }
  }
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

// Four neighbouring columns of one row, in one part after the other.
struct CombinedColumns {
  const float* at;  // in the next part
  std::int64_t step, column_stride;
  int columns;  // that exist, at least one; others read the first

  // `whole`: all lanes have four, on 16 bytes.
  template <bool whole>
  Float4 load() const {
    if constexpr (whole) return arch::load(reinterpret_cast<const Float4*>(at));
    Float4 x = {};
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e) x[e] = arch::load(at + (e < columns ? e : 0) * column_stride);
    return x;
  }
};

// value += the weighted parts from number `first` on, whose shares the lanes have. Loads of `at_once` parts do not wait for
// each other.
template <bool whole, int at_once>
void add_parts(Float4& value, CombinedColumns& from, float own_share, int first) {
  float share[at_once];
  Float4 x[at_once];
  ROCFLASH_UNROLL
  for (int i = 0; i < at_once; ++i) {
    const float of_part = arch::from_lane(own_share, first + i);
    share[i] = arch::in_lanes(of_part);
    x[i] = 0;
    // An empty part has no values, and neither has one that does not exist. By its bits: the same in every lane.
    if (__builtin_bit_cast(std::uint32_t, of_part) != 0) x[i] = from.load<whole>();
    from.at += from.step;
  }
  ROCFLASH_UNROLL
  for (int i = 0; i < at_once; ++i) value += share[i] * x[i];
}

template <KernelSpec spec>
void combine(const CombineArguments& a) {
  constexpr int waves = combine_tile.threads / arch::wave_size, lane_columns = 4,
                block = arch::wave_size * lane_columns;
  ROCFLASH_SHARED_ARRAY Float4 sums[waves][arch::wave_size];
  const Parts& p = a.parts;
  const int wave = arch::wave(), slice = wave % a.slices, together = waves / a.slices;
  const std::int64_t items = p.batch * p.queries * p.heads * a.blocks;
  const auto& from = p.out_partial_stride;
  const bool chunks = (reinterpret_cast<std::uintptr_t>(p.out_partial) % 16 == 0) && from[4] == 1 &&
                      (from[0] | from[1] | from[2] | from[3]) % 4 == 0;
  const Lengths& lengths = a.problem.lengths;
  const bool looks_up = a.of_problem && (lengths.packed_q() || lengths.used_q);

  for (std::int64_t first = std::int64_t{arch::group()} * together; first < items;
       first += std::int64_t{a.groups} * together) {
    const std::int64_t number = first + wave / a.slices, item = number < items ? number : first;
    const std::int64_t number_of_row =
        item <= 0x7fffffff ? static_cast<std::uint32_t>(item) / static_cast<std::uint32_t>(a.blocks)
                           : item / a.blocks;
    const auto number_of_block = static_cast<int>(item - number_of_row * a.blocks);
    const CombinedRow row(arch::again(a).parts, number_of_row);
    const RowUse use = number >= items ? RowUse::untouched
                       : looks_up      ? row_use(arch::again(a).problem, row.batch, row.query)
                                       : RowUse::used;
    Shares shares;
    Float4 value = {};
    const std::int64_t column = std::int64_t{number_of_block} * block + lane_columns * arch::lane();
    if (use == RowUse::used) {
      // Loaded again for each row: all of it is more than the scalar registers hold.
      const CombineArguments& again = arch::again(a);
      const Parts& given = again.parts;
      const auto& stride = given.out_partial_stride;
      const bool has_sink = again.of_problem && again.problem.sinks;
      const float* lse = row.lse(given);
      // In vector registers, which are plenty here.
      const std::int64_t lse_stride = arch::in_lanes(given.lse_partial_stride[0]),
                         part_stride = arch::in_lanes(stride[0]),
                         parts = arch::in_lanes(given.parts),
                         column_stride = arch::in_lanes(stride[4]);
      shares = Shares(lse, lse_stride, parts, has_sink,
                      has_sink ? sink_of(again.problem, row.head) : 0.0f);
      // Lanes past the last column read the first ones: then all of them do the same.
      const std::int64_t from_column = column < given.columns ? column : 0;
      const auto left = static_cast<int>(clamp(given.columns - from_column, 0, lane_columns));
      CombinedColumns columns{
          arch::in_lanes(row.out(given) + from_column * column_stride + slice * part_stride),
          part_stride * again.slices, column_stride, left};
      const bool whole = chunks && !arch::any(left != lane_columns);
      // The lanes look up the shares of as many parts; then all of them take one part after the other.
      for (std::int64_t base = slice; base < parts; base += arch::wave_size * again.slices) {
        const std::int64_t own_part = base + arch::lane() * again.slices;
        const float own_share =
            own_part < parts ? shares.of(arch::load(lse + own_part * lse_stride)) : 0;
        // Slices are a power of two.
        const int count = arch::uniform(static_cast<int>(smaller(
            (parts - base + again.slices - 1) >> __builtin_ctz(again.slices), arch::wave_size)));
        // The lanes are a multiple of those at once: where there is no part, the share is 0.
        constexpr int at_once = 8;
        static_assert(arch::wave_size % at_once == 0);
        int n = 0;
        if (whole) {
          _Pragma("clang loop unroll(disable)") for (; n + 1 < count; n += at_once)
              add_parts<true, at_once>(value, columns, own_share, n);
        }
        _Pragma("clang loop unroll(disable)") for (; n < count; ++n)
            add_parts<false, 1>(value, columns, own_share, n);
      }
    }
    if (a.slices > 1) {
      arch::barrier();  // the sums of the item before have been read
      sums[wave][arch::lane()] = value;
      arch::barrier();
      _Pragma("clang loop unroll(disable)") for (int n = 1; n < a.slices && slice == 0; ++n)
          value += sums[wave + n][arch::lane()];
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
    if (results.lse && number_of_block == 0 && arch::lane() == 0) {
      const auto& s = results.lse_stride;
      arch::store(results.lse + row.batch * s[0] + row.head * s[1] + row.query * s[2],
                  use == RowUse::used ? shares.lse() : infinity);
    }
  }
}

}  // namespace rocflash::kernel
