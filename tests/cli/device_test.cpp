// --device of the command: the default, and the simulator.
#include "cli/device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

namespace rocflash::cli {
namespace {

std::string output(const std::string& words) {
  std::FILE* pipe = popen((words + " 2>&1").c_str(), "r");
  if (!pipe) return {};
  std::array<char, 4096> part{};
  std::string text;
  while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), n);
  pclose(pipe);
  return text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string simulated =
    "env ROCFLASH_HIP_LIBRARY=" ROCFLASH_SIMULATOR " ROCFLASH_SIM_ARCH=gfx942 " ROCFLASH_COMMAND;

// The simulator is a GPU like any other, so it is the best device of a machine without one.
TEST(Device, TheDefaultIsTheBest) {
  if (!std::filesystem::exists(ROCFLASH_SIMULATOR)) GTEST_SKIP() << "the simulator is not built";
  for (const char* words :
       {" verify --filter 'decode gqa/f16'",
        " bench --batch 1 --heads 1 --seqlen 16 --repeat 1 --no-standard", " explain"})
    EXPECT_TRUE(has(output(simulated + words), "gfx942")) << output(simulated + words);
}

TEST(Device, AmdComesFirst) {
  if (!std::filesystem::exists(ROCFLASH_SIMULATOR)) GTEST_SKIP() << "the simulator is not built";
  const std::string text = output(simulated + " info");
  EXPECT_LT(text.find("\nhip:0"), text.find("\nCPU")) << text;
  EXPECT_LT(text.rfind("  hip  "), text.rfind("  cuda ")) << text;
}

TEST(Device, SimStartsTheSimulator) {
  if (!std::filesystem::exists(ROCFLASH_SIMULATOR)) GTEST_SKIP() << "the simulator is not built";
  const std::string command = ROCFLASH_COMMAND;
  const std::string text =
      output(command + " verify --device sim:gfx1100 --filter 'decode gqa/f16'");
  EXPECT_TRUE(has(text, "sim:gfx1100 (Simulated ") && has(text, "gfx1100): ")) << text;
  EXPECT_TRUE(has(text, "cases passed")) << text;
  EXPECT_TRUE(has(output(command + " info --device sim:gfx942"), "hip:0      Simulated MI300X"));
}

TEST(Device, AMissingSimulatorIsNamed) {
  const std::string text = output("env ROCFLASH_SIM_LIBRARY=/nowhere.so " ROCFLASH_COMMAND
                                  " verify --device sim:gfx942");
  EXPECT_TRUE(has(text, "--device: sim:gfx942 needs the simulator, but /nowhere.so: ")) << text;
}

TEST(Device, RocmIsAnAliasOfHip) {
  const std::string text =
      output("env ROCFLASH_HIP_LIBRARY=/nowhere.so " ROCFLASH_COMMAND " verify --device rocm:0");
  EXPECT_TRUE(has(text, "the hip driver is not in use")) << text;
}

}  // namespace
}  // namespace rocflash::cli
