// What the library says about itself and the machine.
#include <gtest/gtest.h>
#include <rocflash/rocflash.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

template <class Struct>
Struct sized() {
  Struct s{};
  s.struct_size = sizeof s;
  return s;
}

TEST(Queries, Limits) {
  auto limits = sized<rocflash_limits>();
  ASSERT_EQ(rocflash_query_limits(&limits), ROCFLASH_OK) << rocflash_last_error();
  EXPECT_EQ(limits.struct_size, sizeof limits);
  EXPECT_EQ(limits.max_head_dim, 576);
  EXPECT_EQ(limits.has_backward, 1);
  EXPECT_GE(limits.default_threads, 1);
  EXPECT_EQ(limits.dropout_steps, 65536);
}

TEST(Queries, DefaultThreadsFollowTheVariable) {
  auto limits = sized<rocflash_limits>();
  setenv("ROCFLASH_NUM_THREADS", "7", 1);
  EXPECT_EQ(rocflash_query_limits(&limits), ROCFLASH_OK);
  EXPECT_EQ(limits.default_threads, 7);
  setenv("ROCFLASH_NUM_THREADS", "-1", 1);
  EXPECT_EQ(rocflash_query_limits(&limits), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(),
               "ROCFLASH_NUM_THREADS: '-1'; it must be a number from 1 to 1024");
  setenv("ROCFLASH_NUM_THREADS", "", 1);  // set to nothing is not set
  EXPECT_EQ(rocflash_query_limits(&limits), ROCFLASH_OK);
  unsetenv("ROCFLASH_NUM_THREADS");
}

TEST(Queries, FirstDeviceIsTheCpu) {
  auto device = sized<rocflash_device>();
  ASSERT_EQ(rocflash_query_device(0, &device), ROCFLASH_OK) << rocflash_last_error();
  EXPECT_EQ(device.device.device_type, kDLCPU);
  EXPECT_STRNE(device.name, "");
  EXPECT_GE(device.units, 1);
  const std::string arch = device.arch;
  EXPECT_TRUE(arch == "baseline" || arch == "avx2" || arch == "avx512" || arch == "avx512_bf16" ||
              arch == "amx")
      << arch;
  // A path that was forced is the path that is taken.
  if (const char* forced = std::getenv("ROCFLASH_CPU_ISA")) {
    EXPECT_EQ(arch, forced);
  }
}

TEST(Queries, DriversSayWhatCameOfThem) {
  const char* names[] = {"hip", "cuda"};
  for (int n = 0; n < 2; ++n) {
    auto driver = sized<rocflash_driver>();
    ASSERT_EQ(rocflash_query_driver(n, &driver), ROCFLASH_OK) << rocflash_last_error();
    EXPECT_STREQ(driver.name, names[n]);
    EXPECT_STRNE(driver.reason, "");
    EXPECT_NE(driver.library, nullptr);
    EXPECT_TRUE(driver.in_use == 0 || driver.in_use == 1);
  }
}

TEST(Queries, TargetsNameTheirDriver) {
  auto target = sized<rocflash_target>();
  for (int n = 0; rocflash_query_target(n, &target) == ROCFLASH_OK; ++n) {
    const std::string arch = target.arch, driver = target.driver;
    EXPECT_EQ(driver, arch.starts_with("gfx") ? "hip" : "cuda") << arch;
    EXPECT_STRNE(target.family, "") << arch;
  }
}

TEST(Queries, RefuseWhatIsNotThere) {
  auto device = sized<rocflash_device>();
  int count = 1;
  while (rocflash_query_device(count, &device) == ROCFLASH_OK) ++count;
  for (const int index : {-1, count, 1000}) {
    EXPECT_EQ(rocflash_query_device(index, &device), ROCFLASH_INVALID_ARGUMENT);
    EXPECT_EQ(rocflash_last_error(),
              "index: " + std::to_string(index) + "; this machine has " + std::to_string(count) +
                  (count == 1 ? " device" : " devices") + " that can be used");
  }
  auto target = sized<rocflash_target>();
  EXPECT_EQ(rocflash_query_target(-1, &target), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(rocflash_query_target(1000, &target), ROCFLASH_INVALID_ARGUMENT);
  auto driver = sized<rocflash_driver>();
  for (const int index : {-1, 2}) {
    EXPECT_EQ(rocflash_query_driver(index, &driver), ROCFLASH_INVALID_ARGUMENT);
    EXPECT_EQ(rocflash_last_error(), "index: " + std::to_string(index) + "; there are 2 drivers");
  }
}

TEST(Queries, RefuseStructsOfNoSize) {
  EXPECT_EQ(rocflash_query_limits(nullptr), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(), "limits: is null");
  rocflash_limits limits{};
  EXPECT_EQ(rocflash_query_limits(&limits), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(rocflash_last_error(), "limits.struct_size: 0; it must be sizeof(*limits), " +
                                       std::to_string(sizeof limits) +
                                       " or more for a newer caller, at most 4096");
  rocflash_device device{};
  device.struct_size = 8;
  EXPECT_EQ(rocflash_query_device(0, &device), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(rocflash_query_driver(0, nullptr), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(), "driver: is null");
}

// A newer caller's struct is larger: what we know is filled in, the rest is left as it is.
TEST(Queries, FillLargerStructs) {
  struct {
    rocflash_limits today{};
    std::int64_t tomorrow = 77;
  } grown;
  grown.today.struct_size = sizeof grown;
  ASSERT_EQ(rocflash_query_limits(&grown.today), ROCFLASH_OK);
  EXPECT_EQ(grown.today.struct_size, sizeof grown);
  EXPECT_EQ(grown.today.max_head_dim, 576);
  EXPECT_EQ(grown.tomorrow, 77);
}

TEST(Queries, StatusNames) {
  EXPECT_STREQ(rocflash_status_name(ROCFLASH_OK), "ROCFLASH_OK");
  EXPECT_STREQ(rocflash_status_name(ROCFLASH_INVALID_ARGUMENT), "ROCFLASH_INVALID_ARGUMENT");
  EXPECT_STREQ(rocflash_status_name(ROCFLASH_OUT_OF_MEMORY), "ROCFLASH_OUT_OF_MEMORY");
  EXPECT_STREQ(rocflash_status_name(ROCFLASH_DEVICE_ERROR), "ROCFLASH_DEVICE_ERROR");
  EXPECT_STREQ(rocflash_status_name(ROCFLASH_INTERNAL), "ROCFLASH_INTERNAL");
  EXPECT_STREQ(rocflash_status_name(static_cast<rocflash_status>(7)), "not a rocflash_status");
}

}  // namespace
