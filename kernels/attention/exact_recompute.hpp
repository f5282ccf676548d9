// Scores computed one at a time with scalar FMAs, without matrix instructions: slow, but exact.
// Used for s_dmask and for the recomputation of non-finite outputs.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/elements.hpp"
#include "attention/quantized.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "attention/split_lse.hpp"

namespace rocflash::kernel {

template <DType dtype>
float read(const std::byte* row, int column) {
  return load_element(row, dtype, column);
}

// Splits the scale into a factor of both operands of q·k and a factor of the sum, so that products
// beyond the range of f32 before scaling do not overflow. The operands' factor is a power of two
// and therefore exact. It is limited, as the terms of a sum must not become infinities of both
// signs: with a softcap, scores beyond the range of f32 are legitimate.
struct ScaleShares {
  static constexpr int largest_exponent = 31;
  float share, rest;

  explicit ScaleShares(float scale) {
    const float size = __builtin_fabsf(scale);
    const int exponent = static_cast<int>(__builtin_bit_cast(std::uint32_t, size) >> 23) - 127;
    const int half = exponent >> 1 < largest_exponent ? exponent >> 1 : largest_exponent;
    share = size > 0 ? __builtin_bit_cast(float, (half + 127) << 23) : 0.0f;
    rest = size > 0 ? __builtin_copysignf(size / share / share, scale) : 1.0f;
  }
};

// One (batch, head) slice. `any_dtype`: the dtype is that of the problem, not of the kernel.
// `mixed`: K and V may have another dtype than Q, which only forward supports. `codes`: they may
// have 8 bits; with a table they do.
template <DType dtype, class ScoreDomain = NaturalLogDomain, bool any_dtype = false,
          bool mixed = any_dtype, Codes codes = Codes::none>
struct ExactScores {
  using Unit = ScoreDomain;
  const Problem& problem;
  const SequenceView& sequence;
  std::int64_t head;
  std::int32_t caches;
  CodeValues values = nullptr;  // the table
  ScoreMod score_mod{problem, sequence, head};

  const std::byte* query_row(std::int32_t query) const {
    const Rows& q = arch::reload_kernargs(problem).q;
    return row_address(q, stored(), sequence.batch, sequence.q_row + query, head);
  }
  const std::byte* row_of(const Rows& rows, std::int32_t key) const {
    if constexpr (codes != Codes::none)
      return row_address(arch::reload_kernargs(rows), caches, in_vgpr(sequence.batch),
                         in_vgpr(sequence.k_row + key), problem.kv_head(in_vgpr(head)));
    return key_row(arch::reload_kernargs(rows), stored_keys(), caches, sequence.batch,
                   sequence.k_row + key, problem.kv_head(head));
  }
  DType stored() const { return any_dtype ? problem.dtype : dtype; }
  DType stored_keys() const { return mixed ? problem.k.dtype : stored(); }
  bool has_scales() const {
    return codes == Codes::table || (codes == Codes::computed && is_8_bit(problem.k.dtype));
  }
  // Rows of quantized K and V, and their scales, are located in VGPRs: the strides exceed the SGPR
  // budget.
  static std::int64_t in_vgpr(std::int64_t x) {
    return arch::to_vgpr(static_cast<std::int32_t>(x));
  }
  // The scale of a row of K or V, and an element with it.
  float scale_of_key(const Rows& rows, const Descale& descale, std::int32_t key) const {
    if (!has_scales()) return 1;
    return scale_of(arch::reload_kernargs(descale), arch::reload_kernargs(rows), caches,
                    in_vgpr(sequence.batch), in_vgpr(sequence.k_row + key),
                    problem.kv_head(in_vgpr(head)));
  }
  float key_element(const std::byte* row, int column, float scale) const {
    if constexpr (codes == Codes::table)
      return values[arch::load(reinterpret_cast<const std::uint8_t*>(row) + column)] * scale;
    if (has_scales()) return load_code(row, problem.k.dtype, column) * scale;
    return load_element(row, stored_keys(), column);
  }

  // In the natural log domain. The key must be within the query's mask bounds.
  template <class Slope = NoSlopes>
  float score(const QueryView& query, std::int32_t key, Slope slope = {}) const {
    const std::byte *q = query_row(query.index), *k = row_of(problem.k, key);
    const ScaleShares scale(arch::reload_kernargs(problem).scale);
    const float k_scale = scale_of_key(problem.k, problem.k_descale, key);
    float s = 0;
    for (int column = 0; column < problem.head_dim; ++column)
      s += load_element(q, stored(), column) * scale.share *
           (key_element(k, column, k_scale) * scale.share);
    score_mod.template apply_scaled<1, Unit>(
        OneQuery{query.index}, [&](int) { return key; }, [&](int) -> float& { return s; },
        scale.rest, slope);
    return s;
  }
};

// The softmax of one query. `base` receives the value to subtract from its scores.
template <class Scores>
Normalizer exact_softmax(const Scores& scores, const QueryView& query, float& base) {
  using Unit = typename Scores::Unit;
  static_assert(Unit::from_natural == 1);
  const Problem& p = scores.problem;
  BasicOnlineSoftmax<Unit> softmax;
  for (std::int32_t key = query.begin; key < query.end; ++key) {
    const float score = scores.score(query, key);
    softmax.rescale(score);
    softmax.sum += Unit::exp(score - softmax.base());
    if (softmax.sum != softmax.sum) break;  // NaN propagates
  }
  const float sink = p.sinks ? sink_of(p, scores.head) : -infinity;
  if (sink != -infinity) {  // the sink's weight is relative to the same base
    softmax.rescale(sink);
    softmax.sum += Unit::exp(sink - softmax.base());
  }
  base = softmax.base();
  return normalize<Unit>(softmax.row_max, softmax.sum, false, 0);
}

// Recomputes columns [begin, end) of a row whose output is non-finite or inaccurate. Each lane sums
// one column at a time. Rows with ordinary results may need it for several reasons:
//
// - To a matrix instruction 0 times infinity or NaN is NaN, but a masked value must have no
//   influence.
// - The sum of values may overflow where their weighted mean does not.
// - q·k, or the score times log2(e), may overflow or lose its last bits where the score does not.
//
// Such rows are rare: low register pressure matters more than speed. The softmax is recomputed too,
// in the natural log domain.
//
// One lane calls store_lse(SplitLse); every lane calls store(column, output).
template <class Scores, class StoreLse, class Store>
void recompute_row(const Scores& scores, const QueryView& query, int begin, int end,
                   StoreLse store_lse, Store store) {
  const Problem& p = scores.problem;
  float base;
  const Normalizer normalizer = exact_softmax(scores, query, base);
  const float factor = normalizer.factor * (p.dropout.on() ? p.dropout.scale() : 1.0f);
  if (arch::lane() == 0) store_lse(SplitLse::of(base, 1 / normalizer.factor, normalizer.lse));
  for (int column = begin + arch::lane(); column < end; column += arch::wave_size) {
    float sum = factor - factor;  // NaN if the sink is +infinity or NaN, even without keys
    for (std::int32_t key = query.begin; key < query.end; ++key) {
      const float weight = Scores::Unit::exp(scores.score(query, key) - base) * factor;
      if (weight == 0 || (p.dropout.on() && !scores.score_mod.keeps(query.index, key))) continue;
      sum += weight * scores.key_element(scores.row_of(p.v, key), column,
                                         scores.scale_of_key(p.v, p.v_descale, key));
      if (sum != sum) break;  // NaN propagates
    }
    store(column, sum);
  }
}

template <class Scores>
void recompute_row(const Scores& scores, const QueryView& query, const ForwardOutputs& outputs,
                   int begin, int end) {
  // Addresses are computed after the results, because of register pressure.
  const SequenceView& s = scores.sequence;
  recompute_row(
      scores, query, begin, end,
      [&](SplitLse x) {
        if (outputs.lse)
          arch::store(&outputs.lse.at(s.batch, scores.head, s.q_row + query.index), x.lse);
      },
      [&](int column, float x) {
        std::byte* to =
            row_address(outputs.out, scores.stored(), s.batch, s.q_row + query.index, scores.head);
        store_element(to, scores.stored(), column, x);
      });
}

// All columns.
template <class Scores>
void recompute_row(const Scores& scores, const QueryView& query, const ForwardOutputs& outputs) {
  recompute_row(scores, query, outputs, 0, scores.problem.value_dim);
}

}  // namespace rocflash::kernel
