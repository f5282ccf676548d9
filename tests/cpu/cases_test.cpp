// The table of cases of `rocflash verify`: every feature in every dtype with odd sizes and strides,
// and random combinations, compared with the reference implementation at the error bound.
#include <gtest/gtest.h>

#include "verify/run.hpp"
#include "verify/table.hpp"

namespace rocflash::verify {
namespace {

constexpr int workers = 2;

// Errors up to `leeway` times the bound are allowed.
void expect_good(const std::vector<Case>& cases, Backend backend, double leeway = 1) {
  ASSERT_FALSE(cases.empty());
  for (const Result& r : run_all(cases, backend, workers)) {
    std::string failure = r.failure;
    for (const Comparison& f : r.comparisons) {
      if (!f.defect.empty() || !(f.error <= leeway * f.bound()))
        failure += "\n  " + f.tensor + ": error " + std::to_string(f.error) + ", allowed " +
                   std::to_string(f.bound()) + " " + f.defect;
    }
    if (!failure.empty())
      ADD_FAILURE() << r.what.name() << " (" << r.what.describe() << ") " << failure;
  }
}

// The standard backend is a baseline of speed and less accurate. Wrong results exceed this leeway
// by far.
constexpr double standard_leeway = 16;

std::vector<Case> mixed_cases(std::size_t count, std::uint64_t seed) {
  std::vector<Case> list;
  for (; list.size() < count; ++seed) {
    Case c = mixed_case(dtypes[list.size() % 3], seed);
    list.push_back(std::move(c));
  }
  return list;
}

TEST(Cases, EveryFeatureAndShape) { expect_good(cases(Level::quick), Backend::cpu); }
TEST(Cases, Mixed) { expect_good(mixed_cases(200, 1000), Backend::cpu); }
// The baseline of speed computes the same function, at a looser bound.
TEST(Cases, StandardBackend) {
  expect_good(mixed_cases(60, 5000), Backend::standard, standard_leeway);
  std::vector<Case> some;
  const std::vector<Case> all = cases(Level::quick);
  for (std::size_t n = 0; n < all.size(); n += 3) some.push_back(all[n]);
  expect_good(some, Backend::standard, 2);
}

}  // namespace
}  // namespace rocflash::verify
