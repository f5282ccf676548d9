// The oracle's gradients against finite differences of its own forward, in double, feature by
// feature.
#include <gtest/gtest.h>

#include <cmath>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

struct Feature {
  const char* name;
  void (*add)(Call&);
  Size size{.b = 2, .sq = 3, .sk = 4, .h = 4, .hk = 2, .d = 3, .dv = 2};
  bool packed = false;
};

const Feature features[] = {
    {"plain", [](Call&) {}},
    {"more_queries",
     [](Call& c) { c.problem.causal = 1; },
     {.b = 1, .sq = 5, .sk = 3, .d = 2, .dv = 5}},
    {"causal", [](Call& c) { c.problem.causal = 1; }},
    {"window", [](Call& c) { c.with_window(1, 1); }},
    {"chunk", [](Call& c) { c.problem.attention_chunk = 2; }},
    {"mask", [](Call& c) { c.with_mask(); }},
    {"scale", [](Call& c) { c.with_scale(-0.7f); }},
    {"softcap", [](Call& c) { c.problem.softcap = 1.5f; }},
    {"alibi", [](Call& c) { c.with_alibi(true); }},
    {"bias", [](Call& c) { c.with_bias(); }},
    {"bias_for_queries", [](Call& c) { c.with_bias({1, 1, c.size.sq, 1}).with_alibi(); }},
    {"bias_for_keys", [](Call& c) { c.with_bias({c.size.b, 1, 1, c.size.sk}).with_sinks(); }},
    {"bias_for_heads",
     [](Call& c) { c.with_bias({1, c.size.h, 1, 1}).with_sinks().with_dropout(0.3f); }},
    {"bias_softcap",
     [](Call& c) {
       c.with_bias({1, c.size.h, c.size.sq, c.size.sk}).with_alibi();
       c.problem.softcap = 1.5f;
     }},
    {"sinks", [](Call& c) { c.with_sinks(); }},
    {"dropout", [](Call& c) { c.with_dropout(0.4f); }},
    {"softcap_and_dropout",
     [](Call& c) {
       c.with_dropout(0.4f);
       c.problem.softcap = 2;
     }},
    {"mqa", [](Call&) {}, {.b = 1, .sq = 2, .sk = 3, .h = 3, .hk = 1, .d = 2, .dv = 3}},
    {"used_lengths",
     [](Call& c) { c.with_used_q({2, 3}).with_used_k({4, 3}).with_leftpad({1, 0}); }},
    {"packed", [](Call& c) { c.problem.causal = 1; }, {.h = 2, .hk = 1, .d = 3, .dv = 2}, true},
    {"all_packed",
     [](Call& c) {
       c.with_mask().with_alibi().with_bias().with_sinks().with_dropout(0.3f).with_window(3, 1);
       c.with_used_k({3, 0, 2}).with_leftpad({1, 0, 0}).with_scale(0.9f);
       c.problem.softcap = 3;
     },
     {.h = 2, .hk = 1, .d = 3, .dv = 2},
     true},
    {"all",
     [](Call& c) {
       c.with_mask().with_alibi().with_bias().with_sinks().with_dropout(0.3f).with_window(3, 1);
       c.problem.softcap = 3;
       c.problem.causal = 1;
     }},
};

class Gradients : public testing::TestWithParam<Feature> {};

double loss(Call& c) {
  c.expect_forward();
  double sum = 0;
  for (std::int64_t n = 0; n < c.out.size(); ++n) sum += c.out.flat(n) * c.dout.flat(n);
  return sum;
}

void expect_derivative(Call& c, HostTensor& input, const HostTensor& gradient, double tolerance,
                       const char* name) {
  const double step = 1e-5;
  for (std::int64_t n = 0; n < input.size(); ++n) {
    const double x = input.flat(n);
    input.set_flat(n, x + step);
    const double above = loss(c), high = input.flat(n);  // as it was rounded
    input.set_flat(n, x - step);
    const double below = loss(c), low = input.flat(n);
    input.set_flat(n, x);
    EXPECT_NEAR(gradient.flat(n), (above - below) / (high - low), tolerance)
        << name << " element " << n;
  }
}

TEST_P(Gradients, AgreeWithFiniteDifferences) {
  const Feature& f = GetParam();
  auto call = f.packed ? std::make_unique<Call>(f.size, std::vector<std::int64_t>{3, 0, 2},
                                                std::vector<std::int64_t>{4, 2, 3}, DType::f64)
                       : std::make_unique<Call>(f.size, DType::f64);
  Call& c = *call;
  f.add(c);
  c.backend(ROCFLASH_BACKEND_REFERENCE);
  c.with_option_gradients();
  c.expect_forward();
  c.expect_backward();
  double largest = 0;
  for (const double x : c.dq.values()) largest = std::max(largest, std::abs(x));
  EXPECT_GT(largest, 1e-3) << "no gradient to speak of, so nothing is tested";
  expect_derivative(c, c.q, c.dq, 1e-8, "q");
  expect_derivative(c, c.k, c.dk, 1e-8, "k");
  expect_derivative(c, c.v, c.dv, 1e-8, "v");
  if (c.sinks) expect_derivative(c, c.sinks, c.dsinks, 1e-6, "sinks");  // dsinks is f32
  if (c.bias) expect_derivative(c, c.bias, c.dbias, 1e-8, "bias");
  if (c.alibi) expect_derivative(c, c.alibi, c.dalibi, 1e-5, "alibi_slopes");  // both are f32
}

INSTANTIATE_TEST_SUITE_P(Reference, Gradients, testing::ValuesIn(features),
                         [](const auto& feature) { return std::string(feature.param.name); });

}  // namespace
}  // namespace rocflash::test
