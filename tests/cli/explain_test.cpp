// `rocflash explain` as a user meets it: exit status, text and JSON.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace {

using nlohmann::json;

std::pair<int, std::string> explain(const std::string& arguments,
                                    const std::string& redirect = "2>&1") {
  std::FILE* pipe = popen((ROCFLASH_COMMAND " explain " + arguments + " " + redirect).c_str(), "r");
  if (!pipe) return {-1, ""};
  std::string text;
  std::array<char, 4096> part{};
  while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

TEST(Explain, PrintsLaunchesAndRejections) {
  const auto [status, text] = explain("--arch gfx942 --head-dim 128 --with softcap");
  EXPECT_EQ(status, 0) << text;
  for (const char* part : {"gfx942, family cdna3, 304 units", "forward_bf16_128_generic",
                           "workspace: 0 bytes", "does not support softcap"})
    EXPECT_NE(text.find(part), text.npos) << part << "\n" << text;
}

TEST(Explain, WritesJson) {
  const auto [status, text] = explain(
      "--arch sm_90 --op decode --heads 32 --kv-heads 8 --head-dim 128 --seqlen 1000,131072 "
      "--page-size 64 --json -",
      "2>/dev/null");
  ASSERT_EQ(status, 0);
  const json j = json::parse(text);
  ASSERT_EQ(j["results"].size(), 2u);
  EXPECT_EQ(j["results"][0]["launches"][0]["kernel"], "decode_cluster_bf16_128");
  EXPECT_EQ(j["results"][0]["launches"][0]["operation"], "decode");
  EXPECT_EQ(j["results"][0]["launches"][0]["schedule"], "cluster");
  const json& lengthy = j["results"][1];
  EXPECT_EQ(lengthy["launches"][0]["kernel"], "decode_splitkv_bf16_128");
  EXPECT_GT(lengthy["splits"], 1);
  EXPECT_GT(lengthy["workspace_bytes"], 0);
  EXPECT_EQ(lengthy["rejected"][0]["kernel"], "decode_cluster_bf16_128");
  EXPECT_EQ(lengthy["rejected"][0]["operation"], "decode");
  EXPECT_EQ(lengthy["rejected"][0]["schedule"], "cluster");
}

// Registers and LDS of kernels that this build has, as `rocflash kernels` prints them.
TEST(Explain, ReportsResourcesOfBuiltKernels) {
  const auto run = [](const std::string& arguments) {
    std::FILE* pipe = popen((ROCFLASH_COMMAND " " + arguments + " 2>/dev/null").c_str(), "r");
    std::string text;
    std::array<char, 4096> part{};
    while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe))
      text.append(part.data(), n);
    pclose(pipe);
    return json::parse(text);
  };
  for (const json& target : run("report --json -")["targets"]) {
    const std::string arch = target["arch"];
    if (!arch.starts_with("gfx")) continue;
    const json plan = run("explain --arch " + arch + " --head-dim 128 --json -");
    const json& launch = plan["results"][0]["launches"][0];
    for (const json& kernel : target["kernels"])
      if (kernel["name"] == launch["kernel"]) {
        EXPECT_EQ(launch["vgpr"], kernel["vgpr"]);
        EXPECT_EQ(launch["lds"], kernel["lds"]);
        EXPECT_EQ(launch["block"], kernel["threads"]);
      }
    EXPECT_TRUE(launch["vgpr"].is_number()) << arch;
  }
}

TEST(Explain, EveryOperationOnEveryArchitecture) {
  for (const char* arch : {"gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100",
                           "gfx1201", "sm_80", "sm_90"}) {
    for (const char* call :
         {"forward", "forward --with varlen,softcap", "forward --dtype f32 --with mask", "backward",
          "backward --with varlen,dropout", "backward --head-dim 256 --kv-heads 1", "decode",
          "decode --with varlen --page-size 64",
          "decode --heads 128 --kv-heads 1 --head-dim 576 --value-dim 512 --with latent", "append",
          "append --page-size 16", "forward --with quantized", "decode --with quantized",
          "combine --splits 9", "rotate --with varlen", "forward --with weights",
          "backward --with bias,alibi,sinks,option-gradients"}) {
      const auto [status, text] =
          explain(std::string("--arch ") + arch + " --json - --op " + call, "2>/dev/null");
      ASSERT_EQ(status, 0) << arch << " " << call << "\n" << text;
      const json result = json::parse(text)["results"][0];
      EXPECT_FALSE(result["launches"].empty()) << arch << " " << call;
      for (const json& launch : result["launches"]) EXPECT_GT(launch["grid"][0], 0);
      for (const json& rejected : result["rejected"])
        EXPECT_FALSE(rejected["reason"].get<std::string>().empty()) << arch << " " << call;
      const std::string first = result["launches"][0]["kernel"];
      const bool rotates =
          std::string(call).starts_with("append") || std::string(call).starts_with("rotate");
      if (rotates) EXPECT_EQ(first, "append_f32") << arch;
      if (std::string(call).starts_with("combine")) EXPECT_EQ(first, "combine_f32") << arch;
      if (std::string(call).ends_with("weights")) {
        const std::string last = result["launches"].back()["kernel"];
        EXPECT_EQ(last, "weights_bf16") << arch;
      }
      if (std::string(call).ends_with("gradients"))
        for (const char* kernel : {"backward_dsinks_f32", "backward_dbias_f32",
                                   "backward_dalibi_partial_f32", "backward_dalibi_reduce_f32"})
          EXPECT_NE(result["launches"].dump().find(kernel), std::string::npos) << arch << kernel;
    }
  }
}

TEST(Explain, InvalidUsageExitsWith2) {
  const std::pair<const char*, const char*> invalid[] = {
      {"--device cpu", "--arch"},
      {"--arch gfx000", "gfx942"},
      {"--arch gfx942 --with magic", "softcap"},
      {"--arch gfx942 --op decode --window 4,4", "--window"},
      {"--arch gfx942 --page-size 16", "--page-size"},
      {"--arch gfx942 --op combine", "--splits"},
      {"--arch gfx942 --head-dim 577", "--head-dim"},
      {"--arch gfx942 --heads 3 --kv-heads 2", "--heads"},
      {"--arch gfx942 --seqlen 0", "--seqlen"},
  };
  for (const auto& [arguments, part] : invalid) {
    const auto [status, text] = explain(arguments);
    EXPECT_EQ(status, 2) << arguments << "\n" << text;
    EXPECT_NE(text.find(part), text.npos) << arguments << "\n" << text;
  }
}

TEST(Explain, MissingDeviceExitsWith1) {
  setenv("ROCFLASH_HIP_LIBRARY", "/no/such/driver.so", 1);
  const auto [status, text] = explain("--device hip:0");
  EXPECT_EQ(status, 1) << text;
  EXPECT_NE(text.find("the hip driver is not in use"), text.npos) << text;
  unsetenv("ROCFLASH_HIP_LIBRARY");
}

}  // namespace
