// Device names, and the documented refusals of GPUs.
#include <gtest/gtest.h>

#include "verify/gpu.hpp"
#include "verify/run.hpp"
#include "verify/table.hpp"

namespace rocflash::verify {
namespace {

TEST(DeviceName, ParsesCpuHipAndCuda) {
  EXPECT_FALSE(DeviceName("cpu").gpu());
  EXPECT_EQ(DeviceName("cpu").dlpack().device_type, kDLCPU);
  EXPECT_EQ(DeviceName("hip:3").dlpack().device_type, kDLROCM);
  EXPECT_EQ(DeviceName("hip:3").dlpack().device_id, 3);
  EXPECT_EQ(DeviceName("cuda:0").dlpack().device_type, kDLCUDA);
  EXPECT_EQ(DeviceName("cuda").dlpack().device_id, 0);
  EXPECT_EQ(DeviceName("rocm:2").driver, "hip");
  EXPECT_EQ(DeviceName("rocm:2").dlpack().device_id, 2);
}

TEST(DeviceName, ParsesTheSimulator) {
  const DeviceName name("sim:gfx942");
  EXPECT_EQ(name.simulated, "gfx942");
  EXPECT_EQ(name.driver, "hip");
  EXPECT_EQ(name.dlpack().device_id, 0);
  EXPECT_TRUE(DeviceName("hip:0").simulated.empty());
}

TEST(DeviceName, RejectsOtherNames) {
  for (const char* text : {"", "gpu", "hip:", "hip:x", "hip:-1", "cuda:1x", "cpu:0", "rocm:", "sim",
                           "sim:", "sim:sm_90"}) {
    try {
      DeviceName name(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::invalid_argument);
      EXPECT_NE(std::string(e.what()).find(std::string("'") + text + "'"), std::string::npos);
    }
  }
}

TEST(Gpu, OpenReportsWhyADriverIsNotInUse) {
  for (const rocflash_driver& d : drivers()) {
    if (d.in_use) continue;
    try {
      Gpu::open(DeviceName(std::string(d.name) + ":0"));
      ADD_FAILURE() << d.name;
    } catch (const Error& e) {
      EXPECT_EQ(e.status(), Status::unsupported);
      EXPECT_NE(std::string(e.what()).find(d.reason), std::string::npos) << e.what();
    }
  }
}

// Every other refusal of a GPU is a failure of verify.
TEST(DocumentedRefusals, AreOnlyF64) {
  for (const Case& c : cases(Level::quick))
    EXPECT_EQ(!documented_refusal(c).empty(), c.dtype == DType::f64) << c.name();
}

}  // namespace
}  // namespace rocflash::verify
