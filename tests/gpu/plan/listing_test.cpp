// Plans of several hundred problems on every family: the listing that compares two versions of
// kernel selection, a recorded sample of it, and invariants.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "listing.hpp"

namespace rocflash::gpu {
namespace {

// ROCFLASH_LIST_PLANS=FILE writes the listing with a hash of all arguments.
TEST(PlanListing, SizeQueriesAgreeWithPlans) {
  const char* const file = std::getenv("ROCFLASH_LIST_PLANS");
  const auto close = [](std::FILE* f) { std::fclose(f); };
  const std::unique_ptr<std::FILE, decltype(close)> to(file ? std::fopen(file, "w") : nullptr);
  ASSERT_EQ(file != nullptr, to != nullptr);
  const std::vector<ListedChip> chips = listed_chips();
  int n = 0;
  for (const ListedCall& call : listed_calls()) {
    ++n;
    for (const ListedChip& chip : chips) {
      if (!to && n % 8 != 0) continue;  // a sample
      const std::string line = plan_text(call, chip.chip, to != nullptr);
      EXPECT_EQ(line.find("WORKSPACE DIFFERS"), line.npos) << call.name << " on " << chip.name;
      if (to) std::fprintf(to.get(), "%s: %s: %s\n", call.name.c_str(), chip.name, line.c_str());
    }
  }
}

// One paragraph per call: the devices with the same plan, then the plan.
std::string sample() {
  constexpr int step = 211;  // a prime: it visits all shapes and options
  const std::vector<ListedChip> chips = listed_chips();
  std::string all;
  int n = 0;
  for (const ListedCall& call : listed_calls()) {
    if (n++ % step != 0) continue;
    std::map<std::string, std::string> devices;
    for (const ListedChip& chip : chips) {
      std::string& names = devices[plan_text(call, chip.chip, false)];
      names += (names.empty() ? "" : ", ") + std::string(chip.name);
    }
    all += call.name + "\n";
    for (const auto& [plan, names] : devices)
      all.append("  ").append(names).append(":\n    ").append(plan).append("\n");
  }
  return all;
}

// ROCFLASH_RECORD_PLANS=1 records the sample again, after an intended change of selection.
TEST(PlanListing, SampleIsAsRecorded) {
  const std::string now = sample();
  if (std::getenv("ROCFLASH_RECORD_PLANS")) std::ofstream(ROCFLASH_RECORDED_PLANS) << now;
  std::ifstream file(ROCFLASH_RECORDED_PLANS);
  const std::string recorded{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(now, recorded) << "to record the plans again: ROCFLASH_RECORD_PLANS=1";
}

}  // namespace
}  // namespace rocflash::gpu
