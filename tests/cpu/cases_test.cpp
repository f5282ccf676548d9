// The table of cases against the oracle, at the tolerance rule: every feature in every dtype with
// odd sizes and strides, and random mixtures of them. The same table that `rocflash verify` runs.
#include <gtest/gtest.h>

#include "verify/run.hpp"
#include "verify/table.hpp"

namespace rocflash::verify {
namespace {

constexpr int workers = 2;

void expect_good(const std::vector<Case>& cases, Backend backend) {
  ASSERT_FALSE(cases.empty());
  for (const Result& r : run_all(cases, backend, workers)) {
    if (r.good()) continue;
    std::string why = r.failure;
    for (const Finding& f : r.findings) {
      if (!f.good())
        why += "\n  " + f.tensor + ": error " + std::to_string(f.error) + ", allowed " +
               std::to_string(f.bound) + " " + f.defect;
    }
    ADD_FAILURE() << r.what.name() << " (" << r.what.describe() << ") " << why;
  }
}

std::vector<Case> mixtures(int count, std::uint64_t seed) {
  std::vector<Case> list;
  for (int n = 0; n < count; ++n)
    list.push_back(mixed_case(dtypes[n % 3], seed + static_cast<std::uint64_t>(n)));
  return list;
}

TEST(Cases, EveryFeatureAndShape) { expect_good(cases(Level::quick), Backend::cpu); }
TEST(Cases, Mixtures) { expect_good(mixtures(300, 1000), Backend::cpu); }
TEST(Cases, StandardAttentionIsRightToo) {
  expect_good(mixtures(60, 5000), Backend::standard);
  std::vector<Case> some = cases(Level::quick);
  std::vector<Case> third;
  for (std::size_t n = 0; n < some.size(); n += 3) third.push_back(some[n]);
  expect_good(third, Backend::standard);
}

}  // namespace
}  // namespace rocflash::verify
