// The features of a call, and the kernels that support them.
#include "gpu/dispatch/features.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "attention/arguments.hpp"
#include "gpu/plan/problems.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Op;
using kernel::Variant;
using kernel::feature_set::score_modifiers;

struct Given {
  Given() {
    p = dense_problem(DType::bf16, {});
    o.out = output(DType::bf16, {});
    t = gradients(DType::bf16, {});
  }
  Problem p;
  ForwardOutputs o;
  BackwardTensors t;
};

TEST(Features, ProblemWithoutOptionsHasNone) {
  const Given g;
  EXPECT_TRUE(features_of(g.p, g.o).none());
  EXPECT_TRUE(features_of(g.p, g.t).none());
  EXPECT_EQ(features_of(g.p, g.o, Gradients::possible), Feature::training);
}

TEST(Features, EachOptionIsOneFeature) {
  const auto* ints = reinterpret_cast<const std::int32_t*>(0x100);
  const std::pair<Features, std::function<void(Given&)>> options[] = {
      {Feature::mask, [](Given& g) { g.p.mask.data = at(0x100); }},
      {Feature::bias, [](Given& g) { g.p.bias.data = at(0x100); }},
      {Feature::alibi, [](Given& g) { g.p.alibi.data = at(0x100); }},
      {Feature::softcap, [](Given& g) { g.p.softcap = 3; }},
      {Feature::zero_scale, [](Given& g) { g.p.scale = 0; }},
      {Feature::large_scale, [](Given& g) { g.p.scale = 0x1p96f; }},
      {Feature::large_scale | Feature::negative_scale, [](Given& g) { g.p.scale = -0x1p96f; }},
      {Feature::negative_scale, [](Given& g) { g.p.scale = -1; }},
      {Feature::tiny_scale, [](Given& g) { g.p.scale = 0x1p-97f; }},
      {Feature::sinks, [](Given& g) { g.p.sinks.data = at(0x100); }},
      {Feature::dropout, [](Given& g) { g.p.dropout.p = 0.5f; }},
      {Feature::left_bound, [](Given& g) { g.p.visibility.left = 0; }},
      {Feature::right_bound, [](Given& g) { g.p.visibility.right = 0; }},
      {Feature::chunk, [](Given& g) { g.p.visibility.chunk = 7; }},
      {Feature::varlen_q, [&](Given& g) { g.p.lengths.cu_q = ints; }},
      {Feature::varlen_k, [&](Given& g) { g.p.lengths.cu_k = ints; }},
      {Feature::seqused_q, [&](Given& g) { g.p.lengths.used_q = ints; }},
      {Feature::seqused_k, [&](Given& g) { g.p.lengths.used_k = ints; }},
      {Feature::left_padding, [&](Given& g) { g.p.lengths.leftpad_k = ints; }},
      {Feature::long_sequences, [](Given& g) { g.p.max_k = std::int64_t{1} << 30; }},
      {Feature::no_keys, [](Given& g) { g.p.lengths.rows_k = 0; }},
      {Feature::paged, [&](Given& g) { g.p.k.blocks = g.p.v.blocks = ints; }},
      {Feature::unaligned_rows, [](Given& g) { g.p.k.data += 8; }},
      {Feature::unaligned_rows, [](Given& g) { g.p.v.head_stride += 1; }},
      {Feature::partial_vectors, [](Given& g) { g.p.q.columns = 124; }},
      {Feature::overlapping_rows, [](Given& g) { g.p.v.row_stride = 0; }},
      {Feature::large_strides,
       [](Given& g) { g.p.k.row_stride = (std::int64_t{1} << 31) / 256 / 2; }},
      {Feature::unaligned_outputs,
       [](Given& g) { g.o.out.row_stride += 3, g.t.dq.row_stride += 3; }},
      {Feature::mixed_dtypes, [](Given& g) { g.p.k.dtype = g.p.v.dtype = DType::f16; }},
      {Feature::deterministic, [](Given& g) { g.p.deterministic = true; }},
  };
  for (const auto& [feature, change] : options) {
    Given g;
    change(g);
    EXPECT_EQ(features_of(g.p, g.o), feature) << &change - &options[0].second;
    EXPECT_EQ(features_of(g.p, g.t), feature) << &change - &options[0].second;
    // The device's predicate for the same options (kernels/attention/arguments.hpp).
    EXPECT_EQ((features_of(g.p) & score_modifiers).any(), kernel::has_score_modifiers(g.p));
  }
  Given weights;
  weights.o.s_dmask.data = at(0x100);
  EXPECT_EQ(features_of(weights.p, weights.o), Feature::attention_weights);
  Given lse;
  lse.t.lse.query_stride = 8;
  EXPECT_EQ(features_of(lse.p, lse.t), Feature::strided_lse);
  lse.p.lengths.rows_q = 1;
  EXPECT_TRUE(features_of(lse.p, lse.t).none());
}

TEST(Features, NamesAreDistinct) {
  std::set<std::string> names;
  for (int n = 0; n < kernel::feature_count; ++n) names.insert(name_of(static_cast<Feature>(n)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kernel::feature_count));
  EXPECT_FALSE(names.contains(""));
}

// A generic kernel runs what the specialized kernel of the same operation does not support; their
// matrix instructions have operands of one dtype.
TEST(Features, GenericKernelsSupportAll) {
  for (int n = 0; n < kernel::kernel_count; ++n) {
    const kernel::KernelSpec& spec = kernel::kernel_spec(n);
    const Features unsupported = unsupported_features(spec);
    if (spec.variant == Variant::generic) {
      EXPECT_EQ(unsupported, Feature::mixed_dtypes) << kernel::kernel_name(n);
    } else if (spec.variant == Variant::specialized) {
      EXPECT_EQ(unsupported & score_modifiers, score_modifiers) << kernel::kernel_name(n);
    }
  }
}

}  // namespace
}  // namespace rocflash::gpu
