// NaN and infinity in the reference backends reach exactly the results that depend on them.
#include "support/non_finite_propagation.hpp"

#include <gtest/gtest.h>

namespace rocflash::test {
namespace {

const Size size{.b = 1, .sq = 6, .sk = 9, .h = 4, .hk = 2, .d = 3, .dv = 5};

TEST(NonFinitePropagation, Reference) {
  expect_non_finite_propagation(ROCFLASH_BACKEND_REFERENCE, DType::f64, 1, size);
  expect_non_finite_propagation(ROCFLASH_BACKEND_REFERENCE, DType::f16, 1, size);
}

TEST(NonFinitePropagation, Naive) {
  expect_non_finite_propagation(ROCFLASH_BACKEND_NAIVE, DType::f32, 1, size);
}

}  // namespace
}  // namespace rocflash::test
