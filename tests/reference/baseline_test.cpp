// The baseline, naive attention in the input's dtype: its error is of the order of the dtype's
// rounding error. A larger error would accept any backend; a smaller one would accept none.
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

struct Rounding {
  DType dtype;
  double epsilon;  // unit roundoff
};

TEST(Naive, ErrorIsThatOfRounding) {
  for (const Rounding rounding : {Rounding{DType::f32, 0x1p-24}, Rounding{DType::f16, 0x1p-11},
                                  Rounding{DType::bf16, 0x1p-8}}) {
    for (const bool options : {false, true}) {
      Call c({.b = 2, .sq = 17, .sk = 33, .h = 4, .hk = 2, .d = 16, .dv = 8}, rounding.dtype, 7);
      if (options) {
        c.with_alibi().with_bias().with_sinks().with_dropout(0.2f);
        c.problem.softcap = 5;
        c.problem.causal = 1;
      }
      const auto run = [&](rocflash_backend which, DType dtype) {
        for (HostTensor* t : {&c.out, &c.dq, &c.dk, &c.dv}) *t = HostTensor(dtype, t->shape());
        c.backend(which).expect_forward();
        // Backward takes the out and lse of the same backend's forward.
        c.expect_backward();
        return std::vector{c.out.values(), c.dq.values(), c.dk.values(), c.dv.values()};
      };
      const auto exact = run(ROCFLASH_BACKEND_REFERENCE, DType::f64);
      const auto naive = run(ROCFLASH_BACKEND_NAIVE, rounding.dtype);
      for (std::size_t n = 0; n < exact.size(); ++n) {
        const double relative = error(naive[n], exact[n]) / magnitude(exact[n]) / rounding.epsilon;
        EXPECT_GT(relative, 0.2) << name_of(rounding.dtype) << " " << n;
        EXPECT_LT(relative, 16) << name_of(rounding.dtype) << " " << n;
      }
    }
  }
}

// The reference's result in the input dtype is its f64 result, rounded once.
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
