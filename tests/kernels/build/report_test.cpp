// Every target has every kernel of the table, without spills and with the planned occupancy.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "gpu/family.hpp"
#include "table/workgroups.hpp"

namespace rocflash::kernel {
namespace {

nlohmann::json targets() {
  std::ifstream file(ROCFLASH_KERNEL_REPORT);
  return nlohmann::json::parse(file).at("targets");
}

struct Plan {
  std::string name;
  WorkgroupShape group;
};

std::vector<Plan> plans_for(const nlohmann::json& target) {
  const Family family = gpu::family_of(target.at("family").get<std::string>()).value();
  std::vector<Plan> plans;
  for (int n = 0; n < kernel_count; ++n) {
    if (has_kernel(family, n))
      plans.push_back({kernel_name(n), workgroup_shape(family, kernel_spec(n))});
  }
  return plans;
}

// Calls check(label, kernel, plan) for each kernel of each target.
template <class Check>
void for_each_kernel(Check check) {
  for (const auto& target : targets()) {
    const auto plans = plans_for(target);
    for (const auto& kernel : target.at("kernels")) {
      const std::string name = kernel.at("name");
      const auto plan = std::ranges::find(plans, name, &Plan::name);
      if (plan == plans.end()) continue;  // EveryTargetHasTheKernelsOfTheTable reports it
      check(target.at("arch").get<std::string>() + " " + name, kernel, *plan);
    }
  }
}

TEST(Report, EveryTargetHasTheKernelsOfTheTable) {
  const auto all = targets();
  ASSERT_FALSE(all.empty());
  for (const auto& target : all) {
    std::set<std::string> planned, compiled;
    for (const Plan& plan : plans_for(target)) planned.emplace(plan.name);
    for (const auto& kernel : target.at("kernels")) compiled.insert(kernel.at("name"));
    EXPECT_EQ(compiled, planned) << target.at("arch");
  }
}

TEST(Report, NothingSpills) {
  for_each_kernel([](const std::string& label, const nlohmann::json& kernel, const Plan&) {
    EXPECT_EQ(kernel.at("scratch"), 0) << label;
    if (kernel.at("vgpr").is_null()) return;  // PTX: ptxas allocates registers
    // gfx908 spills VGPRs to AGPRs before memory; both count as spills.
    if (!label.starts_with("gfx908 ")) EXPECT_EQ(kernel.at("vgpr_spills"), 0) << label;
    EXPECT_EQ(kernel.at("sgpr_spills"), 0) << label;
  });
}

TEST(Report, WorkgroupsAreAsPlanned) {
  for_each_kernel([](const std::string& label, const nlohmann::json& kernel, const Plan& plan) {
    if (kernel.at("threads").is_null()) return;  // PTX without .maxntid
    EXPECT_EQ(kernel.at("threads"), plan.group.threads) << label;
  });
}

TEST(Report, OccupancyIsAsPlanned) {
  for_each_kernel([](const std::string& label, const nlohmann::json& kernel, const Plan& plan) {
    if (kernel.at("waves_per_simd").is_null()) return;
    EXPECT_GE(kernel.at("waves_per_simd"), plan.group.waves_per_simd) << label;
  });
}

// The limit is that of the smallest member. Kernels with large tiles need newer members; the launch
// plan checks the device.
TEST(Report, SharedMemoryIsWithinTheLimit) {
  for_each_kernel([](const std::string& label, const nlohmann::json& kernel, const Plan& plan) {
    const bool large = plan.name.starts_with("backward_fused_large_smem");
    EXPECT_LE(kernel.at("lds"), large ? 227 * 1024 : kernel.at("lds_limit").get<int>()) << label;
  });
}

}  // namespace
}  // namespace rocflash::kernel
