// Every kernel that the table promises is there for every target, without spills and with the
// planned occupancy.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tools/plan.hpp"

namespace rocflash::kernel {
namespace {

nlohmann::json targets() {
  std::ifstream file(ROCFLASH_KERNEL_REPORT);
  return nlohmann::json::parse(file).at("targets");
}

// Calls check(label, kernel, plan) for each kernel of each target.
template <class Check>
void for_each_kernel(Check check) {
  const auto all = targets();
  ASSERT_FALSE(all.empty());
  for (const auto& target : all) {
    const std::string arch = target.at("arch");
    const auto family = family_of(target.at("family").get<std::string>());
    ASSERT_TRUE(family) << arch;
    std::map<std::string, nlohmann::json> kernels;
    for (const auto& kernel : target.at("kernels")) kernels[kernel.at("name")] = kernel;
    for (const Plan& plan : plans_of(*family)) {
      const auto found = kernels.find(std::string(plan.name));
      ASSERT_NE(found, kernels.end()) << arch << " has no " << plan.name;
      check(arch + " " + std::string(plan.name), found->second, plan);
      kernels.erase(found);
    }
    for (const auto& [name, kernel] : kernels) ADD_FAILURE() << arch << ": no plan for " << name;
  }
}

TEST(Report, NothingSpills) {
  for_each_kernel([](const std::string& label, const nlohmann::json& kernel, const Plan&) {
    EXPECT_EQ(kernel.at("scratch"), 0) << label;
    if (kernel.at("vgpr").is_null()) return;  // PTX: the driver's compiler decides
    EXPECT_EQ(kernel.at("vgpr_spills"), 0) << label;
    EXPECT_EQ(kernel.at("sgpr_spills"), 0) << label;
  });
}

TEST(Report, WorkgroupsAreAsPlanned) {
  for_each_kernel([](const std::string& label, const nlohmann::json& kernel, const Plan& plan) {
    EXPECT_EQ(kernel.at("threads"), plan.threads) << label;
  });
}

TEST(Report, OccupancyIsAsPlanned) {
  for_each_kernel([](const std::string& label, const nlohmann::json& kernel, const Plan& plan) {
    if (kernel.at("waves_per_simd").is_null()) return;
    EXPECT_GE(kernel.at("waves_per_simd"), plan.waves_per_simd) << label;
  });
}

TEST(Report, SharedMemoryIsWithinTheLimit) {
  for_each_kernel([](const std::string& label, const nlohmann::json& kernel, const Plan&) {
    EXPECT_LE(kernel.at("lds"), kernel.at("lds_limit")) << label;
  });
}

}  // namespace
}  // namespace rocflash::kernel
