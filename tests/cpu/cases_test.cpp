// The table of cases against the oracle, at the tolerance rule: every feature in every dtype with
// odd sizes and strides, and random mixtures of them. The same table that `rocflash verify` runs.
#include <gtest/gtest.h>

#include "verify/run.hpp"
#include "verify/table.hpp"

namespace rocflash::verify {
namespace {

constexpr int workers = 2;

// `leeway` times the bound of the rule is allowed.
void expect_good(const std::vector<Case>& cases, Backend backend, double leeway = 1) {
  ASSERT_FALSE(cases.empty());
  for (const Result& r : run_all(cases, backend, workers)) {
    std::string why = r.failure;
    for (const Finding& f : r.findings) {
      if (!f.defect.empty() || !(f.error <= leeway * f.bound()))
        why += "\n  " + f.tensor + ": error " + std::to_string(f.error) + ", allowed " +
               std::to_string(f.bound()) + " " + f.defect;
    }
    if (!why.empty()) ADD_FAILURE() << r.what.name() << " (" << r.what.describe() << ") " << why;
  }
}

// The standard backend is there to be timed, not to be the most precise: it is asked for the right
// result, and a mistake is far beyond this leeway.
constexpr double for_comparison = 16;

std::vector<Case> mixtures(std::size_t count, std::uint64_t seed) {
  std::vector<Case> list;
  for (; list.size() < count; ++seed) {
    Case c = mixed_case(dtypes[list.size() % 3], seed);
    list.push_back(std::move(c));
  }
  return list;
}

TEST(Cases, EveryFeatureAndShape) { expect_good(cases(Level::quick), Backend::cpu); }
TEST(Cases, Mixtures) { expect_good(mixtures(200, 1000), Backend::cpu); }
// The yardstick of speed must compute the same, if not to the last digit.
TEST(Cases, StandardAttentionIsRightToo) {
  expect_good(mixtures(60, 5000), Backend::standard, for_comparison);
  std::vector<Case> some;
  const std::vector<Case> all = cases(Level::quick);
  for (std::size_t n = 0; n < all.size(); n += 3) some.push_back(all[n]);
  expect_good(some, Backend::standard, 2);
}

}  // namespace
}  // namespace rocflash::verify
