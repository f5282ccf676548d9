// The yardstick: plain attention errs about as much as the dtype's steps say. A yardstick that
// erred too much would let everything pass; one that erred too little would let nothing pass.
#include <gtest/gtest.h>

#include <cmath>

#include "support/call.hpp"

namespace rocflash::test {
namespace {

double error(const std::vector<double>& got, const std::vector<double>& exact) {
  double largest = 0;
  for (std::size_t n = 0; n < got.size(); ++n)
    largest = std::max(largest, std::abs(got[n] - exact[n]));
  return largest;
}

double magnitude(const std::vector<double>& x) {
  return error(x, std::vector<double>(x.size(), 0.0));
}

struct Step {
  DType dtype;
  double epsilon;  // of rounding to nearest, relative
};

TEST(Plain, ErrsByTheStepsOfItsDtype) {
  for (const Step step :
       {Step{DType::f32, 0x1p-24}, Step{DType::f16, 0x1p-11}, Step{DType::bf16, 0x1p-8}}) {
    for (const bool full : {false, true}) {
      Call c({.b = 2, .sq = 17, .sk = 33, .h = 4, .hk = 2, .d = 16, .dv = 8}, step.dtype, 7);
      if (full) {
        c.with_alibi().with_bias().with_sinks().with_dropout(0.2f);
        c.problem.softcap = 5;
        c.problem.causal = 1;
      }
      const auto run = [&](rocflash_backend which, DType dtype) {
        for (HostTensor* t : {&c.out, &c.dq, &c.dk, &c.dv}) *t = HostTensor(dtype, t->shape());
        c.backend(which).expect_forward();
        // Backward reads what forward of the same backend wrote.
        c.expect_backward();
        return std::vector{c.out.values(), c.dq.values(), c.dk.values(), c.dv.values()};
      };
      const auto exact = run(ROCFLASH_BACKEND_REFERENCE, DType::f64);
      const auto plain = run(ROCFLASH_BACKEND_PLAIN, step.dtype);
      for (std::size_t n = 0; n < exact.size(); ++n) {
        const double relative = error(plain[n], exact[n]) / magnitude(exact[n]) / step.epsilon;
        EXPECT_GT(relative, 0.2) << name_of(step.dtype) << " " << n;
        EXPECT_LT(relative, 16) << name_of(step.dtype) << " " << n;
      }
    }
  }
}

// The oracle in the inputs' dtype is the oracle in double, rounded once.
TEST(Reference, RoundsOnceWhenStoring) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Call c({.b = 1, .sq = 9, .sk = 11, .h = 2, .hk = 1, .d = 8, .dv = 8}, dtype);
    c.backend(ROCFLASH_BACKEND_REFERENCE).expect_forward();
    const auto rounded = c.out.values();
    c.out = HostTensor(DType::f64, c.out.shape());
    c.expect_forward();
    for (std::int64_t n = 0; n < c.out.size(); ++n) {
      std::uint64_t bits = 0;
      store_double(&bits, dtype, 0, c.out.flat(n));
      EXPECT_EQ(load_as_double(&bits, dtype, 0), rounded[static_cast<std::size_t>(n)]);
    }
  }
}

}  // namespace
}  // namespace rocflash::test
