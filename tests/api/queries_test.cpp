// Queries of the library and the machine.
#include <gtest/gtest.h>
#include <rocflash/rocflash.h>
#include <rocflash/rocflash.hpp>

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

TEST(Queries, DefaultThreadsComeFromTheEnvironment) {
  auto limits = sized<rocflash_limits>();
  setenv("ROCFLASH_NUM_THREADS", "7", 1);
  EXPECT_EQ(rocflash_query_limits(&limits), ROCFLASH_OK);
  EXPECT_EQ(limits.default_threads, 7);
  setenv("ROCFLASH_NUM_THREADS", "-1", 1);
  EXPECT_EQ(rocflash_query_limits(&limits), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(),
               "ROCFLASH_NUM_THREADS is '-1'; it must be a number from 1 to 1024");
  setenv("ROCFLASH_NUM_THREADS", "", 1);  // an empty variable counts as unset
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
  // A forced instruction set is the one in use.
  if (const char* forced = std::getenv("ROCFLASH_CPU_ISA")) {
    EXPECT_EQ(arch, forced);
  }
}

TEST(Queries, DriversReportTheirStatus) {
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

TEST(Queries, RejectIndicesOutOfRange) {
  auto device = sized<rocflash_device>();
  int count = 1;
  while (rocflash_query_device(count, &device) == ROCFLASH_OK) ++count;
  for (const int index : {-1, count, 1000}) {
    EXPECT_EQ(rocflash_query_device(index, &device), ROCFLASH_INVALID_ARGUMENT);
    EXPECT_EQ(rocflash_last_error(), "index is " + std::to_string(index) + "; this machine has " +
                                         std::to_string(count) + " supported device" +
                                         (count == 1 ? "" : "s"));
  }
  auto target = sized<rocflash_target>();
  EXPECT_EQ(rocflash_query_target(-1, &target), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(rocflash_query_target(1000, &target), ROCFLASH_INVALID_ARGUMENT);
  auto driver = sized<rocflash_driver>();
  for (const int index : {-1, 2}) {
    EXPECT_EQ(rocflash_query_driver(index, &driver), ROCFLASH_INVALID_ARGUMENT);
    EXPECT_EQ(rocflash_last_error(), "index is " + std::to_string(index) + "; there are 2 drivers");
  }
}

TEST(Queries, PlainIsTheFormerNameOfNaive) {
  static_assert(ROCFLASH_BACKEND_PLAIN == ROCFLASH_BACKEND_NAIVE && ROCFLASH_BACKEND_NAIVE == 3);
  static_assert(rocflash::Backend::plain == rocflash::Backend::naive);
}

TEST(Queries, RejectStructsWithoutSize) {
  EXPECT_EQ(rocflash_query_limits(nullptr), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(), "limits is null; it is required");
  rocflash_limits limits{};
  EXPECT_EQ(rocflash_query_limits(&limits), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(rocflash_last_error(),
            "limits.struct_size is 0; it must be sizeof(*limits): at least " +
                std::to_string(sizeof limits) + ", at most 4096 and a multiple of 8");
  rocflash_device device{};
  device.struct_size = 8;
  EXPECT_EQ(rocflash_query_device(0, &device), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_EQ(rocflash_query_driver(0, nullptr), ROCFLASH_INVALID_ARGUMENT);
  EXPECT_STREQ(rocflash_last_error(), "driver is null; it is required");
}

// The struct of a newer caller is larger: known fields are filled in, the others are unchanged.
TEST(Queries, FillLargerStructs) {
  struct {
    rocflash_limits known{};
    std::int64_t added = 77;
  } grown;
  grown.known.struct_size = sizeof grown;
  ASSERT_EQ(rocflash_query_limits(&grown.known), ROCFLASH_OK);
  EXPECT_EQ(grown.known.struct_size, sizeof grown);
  EXPECT_EQ(grown.known.max_head_dim, 576);
  EXPECT_EQ(grown.added, 77);
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
