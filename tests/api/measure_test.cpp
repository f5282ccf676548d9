// What the command measures devices with refuses what it cannot read, before it looks for a device.
#include "api/measure.hpp"

#include <gtest/gtest.h>

#include <string>

namespace {

TEST(Measure, RefusesWhatItCannotRead) {
  alignas(16) std::byte memory[32];
  std::uint32_t found = 0;
  const DLDevice nowhere{kDLROCM, 1 << 20};
  const auto refusal = [&](const void* data, std::size_t bytes, std::int32_t groups, void* to) {
    EXPECT_NE(rocflash_measure_read(nowhere, data, bytes, groups, to, nullptr), ROCFLASH_OK);
    const std::string message = rocflash_last_error();
    return message.substr(0, message.find(':'));
  };
  EXPECT_EQ(refusal(nullptr, 32, 1, &found), "data");
  EXPECT_EQ(refusal(memory + 4, 16, 1, &found), "data");
  EXPECT_EQ(refusal(memory, 20, 1, &found), "bytes");
  EXPECT_EQ(refusal(memory, 32, 0, &found), "groups");
  EXPECT_EQ(refusal(memory, 32, 0x7fffffff, &found), "groups");
  EXPECT_EQ(refusal(memory, 32, 1, nullptr), "found");
  EXPECT_EQ(refusal(memory, 32, 1, &found), "q");  // there is no such device
}

}  // namespace
