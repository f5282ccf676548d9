// The gradients of the reference against finite differences of its forward, in double, for each
// option.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

struct Option {
  const char* name;
  void (*add)(Call&);
  Size size{.b = 2, .sq = 3, .sk = 4, .h = 4, .hk = 2, .d = 3, .dv = 2};
  bool packed = false;
};

const Option options[] = {
    {"no_options", [](Call&) {}},
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

class Gradients : public testing::TestWithParam<Option> {};

double loss(Call& c) {
  c.expect_forward();
  double sum = 0;
  for (std::int64_t n = 0; n < c.out.size(); ++n) sum += c.out.flat(n) * c.dout.flat(n);
  for (std::int64_t n = 0; c.dlse && n < c.dlse.size(); ++n)
    if (std::isfinite(c.lse.flat(n))) sum += c.lse.flat(n) * c.dlse.flat(n);
  return sum;
}

void expect_derivative(Call& c, HostTensor& input, const HostTensor& gradient, double tolerance,
                       const char* name, double step = 1e-5) {
  for (std::int64_t n = 0; n < input.size(); ++n) {
    const double x = input.flat(n);
    input.set_flat(n, x + step);
    const double above = loss(c), high = input.flat(n);  // after rounding
    input.set_flat(n, x - step);
    const double below = loss(c), low = input.flat(n);
    input.set_flat(n, x);
    EXPECT_NEAR(gradient.flat(n), (above - below) / (high - low), tolerance)
        << name << " element " << n;
  }
}

std::unique_ptr<Call> call_of(const Option& option) {
  auto call = option.packed
                  ? std::make_unique<Call>(option.size, std::vector<std::int64_t>{3, 0, 2},
                                           std::vector<std::int64_t>{4, 2, 3}, DType::f64)
                  : std::make_unique<Call>(option.size, DType::f64);
  option.add(*call);
  call->backend(ROCFLASH_BACKEND_REFERENCE);
  call->with_option_gradients();
  return call;
}

TEST_P(Gradients, AgreeWithFiniteDifferences) {
  const auto call = call_of(GetParam());
  Call& c = *call;
  c.expect_forward();
  c.expect_backward();
  double largest = 0;
  for (const double x : c.dq.values()) largest = std::max(largest, std::abs(x));
  EXPECT_GT(largest, 1e-3) << "all gradients are close to 0, so nothing is tested";
  expect_derivative(c, c.q, c.dq, 1e-8, "q");
  expect_derivative(c, c.k, c.dk, 1e-8, "k");
  expect_derivative(c, c.v, c.dv, 1e-8, "v");
  if (c.sinks) expect_derivative(c, c.sinks, c.dsinks, 1e-6, "sinks");  // dsinks is f32
  if (c.bias) expect_derivative(c, c.bias, c.dbias, 1e-8, "bias");
  if (c.alibi) expect_derivative(c, c.alibi, c.dalibi, 1e-5, "alibi_slopes");  // both are f32
}

// The loss depends on lse alone, which is f32 and needs large steps.
TEST_P(Gradients, OfLseAgreeWithFiniteDifferences) {
  const auto call = call_of(GetParam());
  Call& c = *call;
  c.with_dlse().expect_forward();
  for (std::int64_t n = 0; n < c.dout.size(); ++n) c.dout.set_flat(n, 0);
  // The lse of fully masked and of unused rows is +inf, and its gradient is not read.
  for (std::int64_t n = 0; n < c.lse.size(); ++n)
    if (std::isinf(c.lse.flat(n))) c.dlse.set_flat(n, std::nan(""));
  c.expect_backward();
  double largest = 0;
  for (const double x : c.dq.values()) largest = std::max(largest, std::abs(x));
  EXPECT_GT(largest, 0.02) << "all gradients are close to 0, so nothing is tested";
  constexpr double step = 0x1p-6, tolerance = 1e-3;
  expect_derivative(c, c.q, c.dq, tolerance, "q", step);
  expect_derivative(c, c.k, c.dk, tolerance, "k", step);
  for (const double x : c.dv.values()) EXPECT_EQ(x, 0);
  if (c.sinks) expect_derivative(c, c.sinks, c.dsinks, tolerance, "sinks", step);
  if (c.bias) expect_derivative(c, c.bias, c.dbias, tolerance, "bias", step);
  if (c.alibi) expect_derivative(c, c.alibi, c.dalibi, tolerance, "alibi_slopes", step);
}

INSTANTIATE_TEST_SUITE_P(Reference, Gradients, testing::ValuesIn(options),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace rocflash::test
