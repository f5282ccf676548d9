#include "gpu/dispatch/features.hpp"

#include <algorithm>

#include "attention/arguments.hpp"
#include "attention/mask_bounds.hpp"
#include "gpu/dispatch/rows.hpp"
#include "gpu/dispatch/sequences.hpp"

namespace rocflash::gpu {
namespace {

// Whether outputs or gradients are sums of few products.
bool has_short_sums(const Problem& p) {
  constexpr std::int64_t few = 32;
  const Visibility& v = p.visibility;
  const bool few_visible =
      (v.left >= 0 && v.right >= 0 && v.left + v.right < few) || (v.chunk > 0 && v.chunk <= few);
  return std::min(p.head_dim, p.value_dim) <= few || std::min(p.max_q, p.max_k) <= few ||
         few_visible;
}

void add_options(Features& f, const Problem& p) {
  f = f | kernel::ScoreModifiers::of(p);
  f.add_if(p.scale < 0, Feature::negative_scale);
  f.add_if(kernel::products_overflow(p), Feature::tiny_scale);
  f.add_if(static_cast<bool>(p.sinks), Feature::sinks);
  f.add_if(kernel::has_feature<Feature::dropout>(p), Feature::dropout);
  f.add_if(p.visibility.left >= 0, Feature::left_bound);
  f.add_if(p.visibility.right >= 0, Feature::right_bound);
  f.add_if(p.visibility.chunk > 0, Feature::chunk);
  f.add_if(p.deterministic, Feature::deterministic);
}

void add_lengths(Features& f, const Problem& p) {
  const Lengths& l = p.lengths;
  f.add_if(l.cu_q != nullptr, Feature::varlen_q);
  f.add_if(l.cu_k != nullptr, Feature::varlen_k);
  f.add_if(l.used_q != nullptr, Feature::seqused_q);
  f.add_if(l.used_k != nullptr, Feature::seqused_k);
  f.add_if(l.leftpad_k != nullptr, Feature::left_padding);
  // Specialized kernels have 32-bit mask bounds.
  f.add_if(std::max({p.max_q, p.max_k, p.visibility.chunk}) > kernel::max_mask_bound,
           Feature::long_sequences);
  f.add_if(has_no_sequences(p), Feature::no_sequences);
  f.add_if(l.rows_k == 0, Feature::no_keys);
}

void add_precision(Features& f, const Problem& p) {
  f.add_if(p.k.dtype != p.dtype || p.v.dtype != p.dtype, Feature::mixed_dtypes);
  f.add_if(p.dtype == DType::f32 && has_short_sums(p), Feature::short_sums);
}

Features without_rows(const Problem& p) {
  Features f;
  add_options(f, p);
  add_lengths(f, p);
  add_precision(f, p);
  f.add_if(p.k.blocks != nullptr, Feature::paged);
  return f;
}

}  // namespace

Features features_of(const Problem& p) {
  return without_rows(p) | row_features(p.q) | row_features(p.k) | row_features(p.v);
}

Features features_of(const Problem& p, const ForwardOutputs& o, Gradients gradients) {
  Features f = features_of(p);
  f.add_if(row_features(o.out).any(), Feature::unaligned_outputs);
  f.add_if(static_cast<bool>(o.s_dmask), Feature::attention_weights);
  f.add_if(gradients == Gradients::possible, Feature::training);
  return f;
}

Features features_of(const Problem& p, const BackwardTensors& t) {
  Features f = without_rows(p);
  for (const Rows* rows : {&p.q, &p.k, &p.v})
    if (*rows) f = f | row_features(*rows);
  for (const Rows* rows : {&t.dout, &t.dq, &t.dk, &t.dv})
    f.add_if(*rows && row_features(*rows).any(), Feature::unaligned_outputs);
  // Warp-specialized kernels load the lse of a query tile with vector loads.
  f.add_if(t.lse.query_stride != 1 && p.lengths.rows_q != 1, Feature::strided_lse);
  return f;
}

int head_dim_of(const Problem& p) { return std::max(p.head_dim, p.value_dim); }

}  // namespace rocflash::gpu
