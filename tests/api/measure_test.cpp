// The bandwidth measurement validates its arguments before it selects a device.
#include "api/measure.hpp"

#include <gtest/gtest.h>

#include <string>

namespace {

TEST(Measure, RejectsInvalidArguments) {
  alignas(16) std::byte memory[32];
  std::uint32_t found = 0;
  const DLDevice no_device{kDLROCM, 1 << 20};
  const auto refusal = [&](const void* data, std::size_t bytes, std::int32_t groups, void* to) {
    EXPECT_NE(rocflash_measure_read(no_device, data, bytes, groups, to, nullptr), ROCFLASH_OK);
    const std::string message = rocflash_last_error();
    return message.substr(0, message.find_first_of(": "));
  };
  EXPECT_EQ(refusal(nullptr, 32, 1, &found), "data");
  EXPECT_EQ(refusal(memory + 4, 16, 1, &found), "data");
  EXPECT_EQ(refusal(memory, 20, 1, &found), "bytes");
  EXPECT_EQ(refusal(memory, 32, 0, &found), "groups");
  EXPECT_EQ(refusal(memory, 32, 0x7fffffff, &found), "groups");
  EXPECT_EQ(refusal(memory, 32, 1, nullptr), "found");
  EXPECT_EQ(refusal(memory, 32, 1, &found), "q");  // no such device
}

}  // namespace
