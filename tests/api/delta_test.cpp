// delta of backward: rowsum(dO·O) minus the gradient of lse, without the dropout scale.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

struct Option {
  const char* name;
  std::function<std::unique_ptr<Call>()> make;
};

const Option options[] = {
    {"no options",
     [] { return std::make_unique<Call>(Size{2, 70, 90, 4, 2, 32, 24}, DType::f32); }},
    {"sinks",
     [] {
       auto c = std::make_unique<Call>(Size{2, 9, 40, 2, 1, 16, 16}, DType::f32);
       c->with_sinks().with_mask();
       return c;
     }},
    {"dropout",
     [] {
       auto c = std::make_unique<Call>(Size{1, 20, 33, 2, 2, 16, 8}, DType::f32);
       c->with_dropout(0.25f);
       return c;
     }},
    {"seqused_q",
     [] {
       auto c = std::make_unique<Call>(Size{2, 6, 20, 2, 2, 8, 8}, DType::f32);
       c->with_used_q({3, 0});
       return c;
     }},
    {"packed",
     [] {
       auto c = std::make_unique<Call>(Size{.h = 2, .hk = 1, .d = 16, .dv = 16},
                                       std::vector<std::int64_t>{5, 0, 30},
                                       std::vector<std::int64_t>{7, 4, 30}, DType::f32);
       c->cu_q.assign({1, 5, 5, 33});  // rows 0, 33 and 34 are outside all sequences
       return c;
     }},
};

// The row sum that the definition gives for the stored out, which is 0 in unused rows.
double row_sum(const Call& c, std::int64_t b, std::int64_t h, std::int64_t row) {
  double sum = 0;
  for (std::int64_t column = 0; column < c.size.dv; ++column)
    sum += c.packed() ? c.dout.get({row, h, column}) * c.out.get({row, h, column})
                      : c.dout.get({b, row, h, column}) * c.out.get({b, row, h, column});
  return sum * (1 - static_cast<double>(c.problem.dropout_p));
}

TEST(Delta, IsTheRowSumWithoutTheDropoutScale) {
  for (const Option& option : options) {
    for (const auto backend : {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD,
                               ROCFLASH_BACKEND_REFERENCE, ROCFLASH_BACKEND_NAIVE}) {
      const auto call = option.make();
      Call& c = *call;
      c.backend(backend, 2).with_delta().expect_forward();
      c.expect_backward();
      double largest = 0;
      for (std::int64_t b = 0; b < (c.packed() ? 1 : c.size.b); ++b)
        for (std::int64_t h = 0; h < c.size.h; ++h)
          for (std::int64_t row = 0; row < c.lse.shape().back(); ++row) {
            const double expected = row_sum(c, b, h, row);
            largest = std::max(largest, std::abs(expected));
            EXPECT_NEAR(c.packed() ? c.delta.get({h, row}) : c.delta.get({b, h, row}), expected,
                        1e-5)
                << option.name << " " << backend << " " << b << " " << h << " " << row;
          }
      EXPECT_GT(largest, 0.1) << option.name;
    }
  }
}

// dlse may have any strides. It is not read in unused rows.
TEST(Delta, ContainsTheGradientOfLse) {
  for (const auto backend : {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD,
                             ROCFLASH_BACKEND_REFERENCE, ROCFLASH_BACKEND_NAIVE}) {
    Call c({2, 5, 7, 3, 1, 8, 8});
    c.backend(backend, 2).with_used_q({5, 3}).with_dropout(0.25f).with_delta().with_dlse();
    c.expect_forward();
    HostTensor spaced(DType::f32, {5, 3, 2, 2});
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 3; ++h)
        for (std::int64_t row = 0; row < 5; ++row)
          spaced.set({row, h, b, 1}, c.dlse.get({b, h, row}));
    spaced.set({4, 1, 1, 1}, std::nan(""));
    std::int64_t strides[] = {2, 4, 12};
    c.dlse.dl.strides = strides;
    c.dlse.dl.data = static_cast<float*>(spaced.dl.data) + 1;
    c.expect_backward();
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 3; ++h)
        for (std::int64_t row = 0; row < 5; ++row) {
          const bool used = b == 0 || row < 3;
          const double dlse = used ? 0.75 * spaced.get({row, h, b, 1}) : 0;
          EXPECT_NEAR(c.delta.get({b, h, row}), row_sum(c, b, h, row) - dlse, 1e-5) << backend;
        }
  }
}

// Batch and head strides are free, and memory between the rows is not written.
TEST(Delta, HonorsStrides) {
  Call c({2, 5, 7, 3, 1, 8, 8}), spaced({2, 5, 7, 3, 1, 8, 8});
  spaced.delta = HostTensor(DType::f32, {3, 2, 9});
  std::int64_t shape[] = {2, 3, 5}, strides[] = {9, 18, 1};
  spaced.set_pointers();
  spaced.delta.dl.shape = shape;
  spaced.delta.dl.strides = strides;
  c.with_delta();
  for (Call* one : {&c, &spaced}) {
    one->expect_forward();
    one->expect_backward();
  }
  const double untouched = HostTensor(DType::f32, {1}).flat(0);
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 3; ++h)
      for (std::int64_t row = 0; row < 9; ++row)
        EXPECT_EQ(spaced.delta.get({h, b, row}), row < 5 ? c.delta.get({b, h, row}) : untouched);
}

// It takes `out` as it is, which a NaN sink makes NaN also where a query attends to no key.
TEST(Delta, IsNaNWhereASinkMakesOutNaN) {
  for (const auto backend : {ROCFLASH_BACKEND_CPU, ROCFLASH_BACKEND_STANDARD,
                             ROCFLASH_BACKEND_REFERENCE, ROCFLASH_BACKEND_NAIVE}) {
    Call c({1, 3, 1, 2, 1, 8, 8});  // causal: only the last query attends to the key
    c.with_sinks().with_delta().backend(backend);
    c.problem.causal = 1;
    c.sinks.set_flat(1, std::nan(""));
    c.expect_forward();
    c.expect_backward();
    for (std::int64_t row = 0; row < 3; ++row) {
      EXPECT_TRUE(std::isfinite(c.delta.get({0, 0, row}))) << backend << " " << row;
      EXPECT_TRUE(std::isnan(c.delta.get({0, 1, row}))) << backend << " " << row;
    }
  }
}

}  // namespace
}  // namespace rocflash::test
