// NaN and infinity in the oracle go where the mathematics sends them, and nowhere else.
#include "support/confinement.hpp"

#include <gtest/gtest.h>

namespace rocflash::test {
namespace {

const Size size{.b = 1, .sq = 6, .sk = 9, .h = 4, .hk = 2, .d = 3, .dv = 5};

TEST(Confinement, Reference) {
  expect_confinement(ROCFLASH_BACKEND_REFERENCE, DType::f64, 1, size);
  expect_confinement(ROCFLASH_BACKEND_REFERENCE, DType::f16, 1, size);
}

TEST(Confinement, Plain) { expect_confinement(ROCFLASH_BACKEND_PLAIN, DType::f32, 1, size); }

}  // namespace
}  // namespace rocflash::test
