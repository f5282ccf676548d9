// Combine kernel of split-KV: each row is the sum of its partial results, weighted with exp(LSE −
// combined LSE). One wave, or several waves that divide the splits, computes a column block of a
// row; each lane has four columns. The order of the additions depends only on the number of splits,
// so the results are deterministic.
//
// After decode over a short KV cache this kernel takes as long as decode itself. The instruction
// count per wave then dominates: addresses are pointers that advance, and loops have short forms
// for few splits.
#pragma once

#include "arch/arch.hpp"
#include "attention/elements.hpp"
#include "attention/online_softmax.hpp"
#include "attention/score_mod.hpp"
#include "table/combine.hpp"

namespace rocflash::kernel {

// Position of an output row, and its partial results.
struct CombinedRow {
  std::int64_t batch, query, head;

  CombinedRow(const Partials& p, std::int64_t row) {
    if (row <= 0x7fffffff && p.heads <= 0x7fffffff && p.queries <= 0x7fffffff) {
      // A 64-bit division takes as long as a load.
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

  // Of split 0.
  const float* lse(const Partials& p) const {
    const auto& s = p.lse_partial_stride;
    return p.lse_partial + batch * s[1] + head * s[2] + query * s[3];
  }
  const float* out(const Partials& p) const {
    const auto& s = p.out_partial_stride;
    return p.out_partial + batch * s[1] + query * s[2] + head * s[3];
  }
};

// Reduction over the wave; the result is uniform.
template <class Combine>
float reduce_wave(float x, Combine combine) {
  x = combine(x, arch::row_ror<8>(x));
  x = combine(x, arch::row_ror<4>(x));
  x = combine(x, arch::row_ror<2>(x));
  x = combine(x, arch::row_ror<1>(x));
  float result = arch::readlane(x, 0);
  ROCFLASH_UNROLL
  for (int first = 16; first < arch::wave_size; first += 16)
    result = combine(result, arch::readlane(x, first));
  return result;
}

inline bool is_infinite(float x) { return __builtin_fabsf(x) == infinity; }

// Weights of the splits of a row, from their LSEs. The sink is one more split, without values; a
// sink of +infinity or NaN makes the row NaN.
struct SplitWeights {
  float max_lse = -infinity, sum = 0, scale = 0;

  static float exp(float difference) { return arch::exp2(difference * log2_e); }

  SplitWeights() = default;
  // `lse` is that of split 0, the others follow at `stride`. `rests`: each LSE is followed by its
  // rest (attention/split_lse.hpp).
  SplitWeights(const float* lse, std::int64_t stride, std::int64_t splits, bool rests,
               bool has_sink, float sink)
      : rests_(rests) {
    float own = -infinity, own_sum = 0;
    visit(lse, stride, splits, [&](float x, float) { own = __builtin_fmaxf(own, x); });
    max_lse = reduce_wave(own, [](float x, float y) { return __builtin_fmaxf(x, y); });
    if (has_sink) max_lse = __builtin_fmaxf(max_lse, sink);
    visit(lse, stride, splits,
          [&](float x, float rest) { own_sum += x == -infinity ? 0.0f : exp(x - max_lse + rest); });
    sum = reduce_wave(own_sum, [](float x, float y) { return x + y; });
    if (has_sink && sink != -infinity) sum += exp(sink - max_lse);
    scale = 1 / sum;
  }
  // The weight of the split with this LSE.
  float of(const float* lse) const {
    const float x = arch::load(lse), rest = rests_ ? arch::load(lse + 1) : 0.0f;
    return is_infinite(x) ? 0.0f : exp(x - max_lse + rest) * scale;
  }
  float lse() const { return sum == 0 ? infinity : max_lse + arch::log2(sum) * ln_2; }

 private:
  // Visits the LSEs of this lane's splits; -infinity for empty splits.
  template <class Visit>
  void visit(const float* lse, std::int64_t stride, std::int64_t splits, Visit with) const {
    const auto load = [&](std::int64_t n) {
      const float x = n < splits ? arch::load(lse + n * stride) : -infinity;
      return is_infinite(x) ? -infinity : x;
    };
    const auto rest = [&](std::int64_t n) {
      return rests_ && n < splits ? arch::load(lse + n * stride + 1) : 0.0f;
    };
    if (splits <= arch::wave_size) return with(load(arch::lane()), rest(arch::lane()));
    constexpr int at_once = 4;  // loads in flight
    for (std::int64_t first = arch::lane(); first < splits; first += at_once * arch::wave_size) {
      float x[at_once], y[at_once];
      ROCFLASH_UNROLL
      for (int i = 0; i < at_once; ++i) {
        x[i] = load(first + i * arch::wave_size);
        y[i] = rest(first + i * arch::wave_size);
      }
      ROCFLASH_UNROLL
      for (int i = 0; i < at_once; ++i) with(x[i], y[i]);
    }
  }

  bool rests_ = false;
};

// Whether each LSE has a rest: the partial results come from decode.
inline bool has_rests(const CombineArguments& a) {
  return a.from_decode && a.partials.lse_partial_stride[3] == 2;
}

// Use of an output row of decode: unused rows and rows outside all sequences become 0; rows past
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

// Loads four adjacent columns of a row, split by split.
struct CombinedColumns {
  const float* at;  // column of the next split
  std::int64_t step, column_stride;
  int columns;  // in bounds, at least one; the others load the first one

  // `vectorized`: all lanes have four columns in bounds, 16-byte aligned.
  template <bool vectorized>
  Float4 load() const {
    if constexpr (vectorized) return arch::load(reinterpret_cast<const Float4*>(at));
    Float4 x = {};
    ROCFLASH_UNROLL
    for (int e = 0; e < 4; ++e) x[e] = arch::load(at + (e < columns ? e : 0) * column_stride);
    return x;
  }
};

// value += weighted splits from lane `first`'s on; each lane has the weight of one split. The loads
// of `at_once` splits are in flight together.
template <bool vectorized, int at_once>
void add_splits(Float4& value, CombinedColumns& from, float own_weight, int first) {
  float weight[at_once];
  Float4 x[at_once];
  ROCFLASH_UNROLL
  for (int i = 0; i < at_once; ++i) {
    const float uniform_weight = arch::readlane(own_weight, first + i);
    weight[i] = arch::to_vgpr(uniform_weight);
    x[i] = 0;
    // Empty splits have no values. The bits are compared to keep the branch scalar.
    if (__builtin_bit_cast(std::uint32_t, uniform_weight) != 0) x[i] = from.load<vectorized>();
    from.at += from.step;
  }
  ROCFLASH_UNROLL
  for (int i = 0; i < at_once; ++i) value += weight[i] * x[i];
}

template <KernelSpec spec>
void combine(const CombineArguments& a) {
  constexpr int waves = combine_tile.threads / arch::wave_size, lane_columns = 4,
                block = arch::wave_size * lane_columns;
  ROCFLASH_SHARED_ARRAY Float4 sums[waves][arch::wave_size];
  const Partials& p = a.partials;
  const int wave = arch::wave(), slice = wave % a.slices, together = waves / a.slices;
  const std::int64_t items = p.batch * p.queries * p.heads * a.blocks;
  const auto& from = p.out_partial_stride;
  const bool chunks = (reinterpret_cast<std::uintptr_t>(p.out_partial) % 16 == 0) && from[4] == 1 &&
                      (from[0] | from[1] | from[2] | from[3]) % 4 == 0;
  const Lengths& lengths = a.problem.lengths;
  const bool looks_up = a.from_decode && (lengths.packed_q() || lengths.used_q);

  for (std::int64_t first = std::int64_t{arch::workgroup_id()} * together; first < items;
       first += std::int64_t{a.workgroups} * together) {
    const std::int64_t number = first + wave / a.slices, item = number < items ? number : first;
    const std::int64_t row_index =
        item <= 0x7fffffff ? static_cast<std::uint32_t>(item) / static_cast<std::uint32_t>(a.blocks)
                           : item / a.blocks;
    const auto block_index = static_cast<int>(item - row_index * a.blocks);
    const CombinedRow row(arch::reload_kernargs(a).partials, row_index);
    const RowUse use = number >= items ? RowUse::untouched
                       : looks_up ? row_use(arch::reload_kernargs(a).problem, row.batch, row.query)
                                  : RowUse::used;
    SplitWeights split_weights;
    Float4 value = {};
    const std::int64_t column = std::int64_t{block_index} * block + lane_columns * arch::lane();
    if (use == RowUse::used) {
      // Reloaded for each row: the SGPRs do not hold all arguments.
      const CombineArguments& reloaded = arch::reload_kernargs(a);
      const Partials& partials = reloaded.partials;
      const auto& stride = partials.out_partial_stride;
      const bool has_sink = reloaded.from_decode && reloaded.problem.sinks;
      const float* lse = row.lse(partials);
      // In VGPRs, to save SGPRs.
      const std::int64_t lse_stride = arch::to_vgpr(partials.lse_partial_stride[0]),
                         split_stride = arch::to_vgpr(stride[0]),
                         splits = arch::to_vgpr(partials.splits),
                         column_stride = arch::to_vgpr(stride[4]);
      split_weights = SplitWeights(lse, lse_stride, splits, has_rests(reloaded), has_sink,
                                   has_sink ? sink_of(reloaded.problem, row.head) : 0.0f);
      // Lanes past the last column load the first ones, which avoids divergence.
      const std::int64_t from_column = column < partials.columns ? column : 0;
      const auto left = static_cast<int>(clamp(partials.columns - from_column, 0, lane_columns));
      CombinedColumns columns{
          arch::to_vgpr(row.out(partials) + from_column * column_stride + slice * split_stride),
          split_stride * reloaded.slices, column_stride, left};
      const bool vectorized = chunks && !arch::any(left != lane_columns);
      // Each lane computes the weight of one split; then all lanes process these splits in order.
      for (std::int64_t base = slice; base < splits; base += arch::wave_size * reloaded.slices) {
        const std::int64_t own_split = base + arch::lane() * reloaded.slices;
        const float own_weight =
            own_split < splits ? split_weights.of(lse + own_split * lse_stride) : 0;
        // `slices` is a power of two.
        const int count = arch::uniform(static_cast<int>(
            smaller((splits - base + reloaded.slices - 1) >> __builtin_ctz(reloaded.slices),
                    arch::wave_size)));
        // The batches do not exceed the lanes; lanes past the last split have weight 0.
        constexpr int at_once = 8;
        static_assert(arch::wave_size % at_once == 0);
        int n = 0;
        if (vectorized) {
          _Pragma("clang loop unroll(disable)") for (; n + 1 < count; n += at_once)
              add_splits<true, at_once>(value, columns, own_weight, n);
        }
        _Pragma("clang loop unroll(disable)") for (; n < count; ++n)
            add_splits<false, 1>(value, columns, own_weight, n);
      }
    }
    if (a.slices > 1) {
      arch::barrier();  // the sums of the previous item have been read
      sums[wave][arch::lane()] = value;
      arch::barrier();
      _Pragma("clang loop unroll(disable)") for (int n = 1; n < a.slices && slice == 0; ++n)
          value += sums[wave + n][arch::lane()];
    }
    if (slice != 0 || use == RowUse::untouched) continue;
    if (split_weights.sum != split_weights.sum)
      value = split_weights.sum;  // NaN, even without splits
    const Partials& results = arch::reload_kernargs(a).partials;
    const auto& to = results.out_stride;
    const std::int64_t element = row.batch * to[0] + row.query * to[1] + row.head * to[2];
    ROCFLASH_UNROLL
    for (int e = 0; e < lane_columns; ++e)
      if (column + e < p.columns)
        store_element(results.out, results.out_dtype, element + (column + e) * to[3], value[e]);
    if (results.lse && block_index == 0 && arch::lane() == 0) {
      const auto& s = results.lse_stride;
      arch::store(results.lse + row.batch * s[0] + row.head * s[1] + row.query * s[2],
                  use == RowUse::used ? split_weights.lse() : infinity);
    }
  }
}

}  // namespace rocflash::kernel
