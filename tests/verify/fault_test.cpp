// Fault injection: a device that ignores or misinterprets one option must fail, in every dtype, in
// the row of the table that verifies the option.
#include <gtest/gtest.h>

#include "verify/run.hpp"
#include "verify/scalar.hpp"
#include "verify/table.hpp"

namespace rocflash::verify {
namespace {

struct Fault {
  const char* feature;
  const char* what;
  void (*inject)(Problem&);
  void (*inject_append)(Append&) = nullptr;
};

const Fault faults[] = {
    {"causal", "ignored", [](Problem& p) { p.causal = false; }},
    {"window left", "one too many", [](Problem& p) { p.window->left += 1; }},
    {"window right", "one too few", [](Problem& p) { p.window->right -= 1; }},
    {"chunk", "ignored", [](Problem& p) { p.attention_chunk = 0; }},
    {"scale negative", "positive", [](Problem& p) { p.softmax_scale = -*p.softmax_scale; }},
    {"softcap", "ignored", [](Problem& p) { p.softcap = 0; }},
    {"alibi (h)", "ignored", [](Problem& p) { p.alibi_slopes.reset(); }},
    {"bias (b,h,q,k)", "ignored", [](Problem& p) { p.bias.reset(); }},
    {"bias -inf", "ignored", [](Problem& p) { p.bias.reset(); }},
    {"mask (b,h,q,k)", "ignored", [](Problem& p) { p.mask.reset(); }},
    {"sinks", "ignored", [](Problem& p) { p.sinks.reset(); }},
    {"dropout", "ignored", [](Problem& p) { p.dropout_p = 0; }},
    {"dropout", "another seed", [](Problem& p) { p.dropout_seed += 1; }},
    {"dropout", "another offset", [](Problem& p) { p.dropout_offset += std::uint64_t{1} << 32; }},
    {"seqused_q", "ignored", [](Problem& p) { p.seqused_q.reset(); }},
    {"seqused_k causal", "ignored", [](Problem& p) { p.seqused_k.reset(); }},
    {"pages 16", "read without block table",
     [](Problem& p) {
       p.k = Tensor(p.k.data(), p.k.dtype(), {p.q.shape()[0], 64, p.k.shape()[2], p.k.shape()[3]});
       p.v = Tensor(p.v.data(), p.v.dtype(), {p.q.shape()[0], 64, p.v.shape()[2], p.v.shape()[3]});
       p.block_table.reset();
     }},
    {"cache_batch_idx", "ignored",
     [](Problem& p) {
       const auto first = [&](const Tensor& t) {
         return Tensor(t.data(), t.dtype(),
                       {p.q.shape()[0], t.shape()[1], t.shape()[2], t.shape()[3]});
       };
       p.k = first(p.k);
       p.v = first(p.v);
       p.cache_batch_idx.reset();
     }},
    {"leftpad_k", "ignored", [](Problem& p) { p.leftpad_k.reset(); }},
    {"append 3 causal", "ignored", nullptr,
     [](Append& a) {
       a.k_new.reset();
       a.v_new.reset();
     }},
    {"append 3 causal", "values are keys", nullptr, [](Append& a) { a.v_new = a.k_new; }},
    {"append pages 16 leftpad_k", "padding ignored", [](Problem& p) { p.leftpad_k.reset(); }},
    {"rotary", "ignored", nullptr,
     [](Append& a) {
       a.rotary_cos.reset();
       a.rotary_sin.reset();
     }},
    {"rotary interleaved causal", "in halves", nullptr,
     [](Append& a) { a.rotary_interleaved = false; }},
    {"rotary queries alone", "first positions ignored", nullptr,
     [](Append& a) { a.rotary_seqlens.reset(); }},
};

const Shape& shape_named(const std::string& name) {
  return *std::find_if(shapes().begin(), shapes().end(),
                       [&](const Shape& s) { return s.name == name; });
}

class Faults : public testing::TestWithParam<Fault> {};

TEST_P(Faults, are_detected) {
  const auto feature = std::find_if(features().begin(), features().end(),
                                    [](const Feature& f) { return f.name == GetParam().feature; });
  ASSERT_NE(feature, features().end());
  for (const DType t : dtypes) {
    const Case c = make_case(*feature, shape_named("64x64"), t, 0);
    Device device(Backend::naive);
    EXPECT_TRUE(run(c, device).good()) << "naive attention without a fault, " << c.name();
    device.fault = GetParam().inject;
    device.append_fault = GetParam().inject_append;
    EXPECT_FALSE(run(c, device).good()) << c.name() << ", " << GetParam().what;
  }
}

INSTANTIATE_TEST_SUITE_P(Options, Faults, testing::ValuesIn(faults), [](const auto& instance) {
  std::string name = std::string(instance.param.feature) + "_" + instance.param.what;
  for (char& c : name) {
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
});

TEST(Run, reports_the_message_of_an_error) {
  Device device(Backend::naive);
  device.fault = [](Problem& p) { p.softcap = -1; };
  const Result r = run(make_case(features()[0], shape_named("1x1"), DType::f32, 0), device);
  EXPECT_FALSE(r.good());
  EXPECT_NE(r.failure.find("softcap"), std::string::npos) << r.failure;
}

TEST(Run, results_are_in_the_order_of_the_cases) {
  const std::vector<Case> list = cases(Level::full, 0, "plain/f16/d");
  std::size_t calls = 0;
  const auto results = run_all(list, Backend::naive, 3, [&](const Result&) { ++calls; });
  ASSERT_EQ(results.size(), list.size());
  EXPECT_EQ(calls, list.size());
  for (std::size_t n = 0; n < list.size(); ++n) EXPECT_EQ(results[n].what.name(), list[n].name());
}

}  // namespace
}  // namespace rocflash::verify
