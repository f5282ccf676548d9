// Runs the built command and looks at its exit status, its words and its JSON.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

using nlohmann::json;

struct Outcome {
  int status;
  std::string text;
};

// `redirect` says what becomes of standard error.
Outcome command(const std::string& arguments, const std::string& redirect = "2>&1") {
  std::FILE* pipe = popen((ROCFLASH_COMMAND " " + arguments + " " + redirect).c_str(), "r");
  Outcome o{-1, {}};
  if (!pipe) return o;
  std::array<char, 4096> part{};
  while (const std::size_t n = std::fread(part.data(), 1, part.size(), pipe))
    o.text.append(part.data(), n);
  const int status = pclose(pipe);
  o.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return o;
}

bool has(const Outcome& o, const std::string& words) {
  return o.text.find(words) != std::string::npos;
}

TEST(Command, help_and_version_are_answers) {
  for (const char* arguments :
       {"--help", "info --help", "verify --help", "bench --help", "--version"}) {
    const Outcome o = command(arguments, "2>/dev/null");
    EXPECT_EQ(o.status, 0) << arguments;
    EXPECT_FALSE(o.text.empty()) << arguments;
  }
  EXPECT_TRUE(has(command("--version"), "rocflash 0."));
}

TEST(Command, a_senseless_command_line_exits_with_2_and_says_why) {
  const std::pair<const char*, const char*> senseless[] = {
      {"", "subcommand"},
      {"dance", "dance"},
      {"info --colour", "--colour"},
      {"verify --device quantum", "cpu"},
      {"verify --quick --full", "--full"},
      {"verify --threads -1", "--threads"},
      {"verify --filter no-such-case", "no-such-case"},
      {"verify --filter causal/f32/d8 --every 1000000007", "--every: 1000000007 leaves none of"},
      {"bench --op sideways", "forward"},
      {"bench --dtype f8", "bf16"},
      {"bench --seqlen 0", "--seqlen: Value 0 not in range 1 to 2147483647"},
      {"bench --op decode --seqlen 40 --page-size 9223372036854775807", "--page-size"},
      {"verify --device gpu", "hip:0, or auto"},
      {"verify --every -1", "to 2147483647"},
      {"bench --seqlen 128,many", "many"},
      {"bench --window 3", "--window"},
      {"bench --heads", "--heads"},
      {"bench --page-size 16", "--page-size"},
      {"bench --op backward --cold", "--cold"},
      {"bench --op decode --window 4,4", "--window"},
      {"bench --op decode --seqlen-k 64", "--seqlen-k"},
  };
  for (const auto& [arguments, words] : senseless) {
    const Outcome o = command(arguments);
    EXPECT_EQ(o.status, 2) << arguments << "\n" << o.text;
    EXPECT_TRUE(has(o, words)) << arguments << "\n" << o.text;
    EXPECT_EQ(command(arguments, "2>/dev/null").text, "") << arguments;
  }
}

TEST(Command, what_the_library_refuses_exits_with_1_and_its_words) {
  const Outcome o = command("bench --seqlen 8 --head-dim 577 --repeat 1");
  EXPECT_EQ(o.status, 1);
  EXPECT_TRUE(has(o, "577")) << o.text;
  const Outcome heads = command("bench --seqlen 8 --heads 3 --kv-heads 2 --repeat 1");
  EXPECT_EQ(heads.status, 1);
  EXPECT_TRUE(has(heads, "heads")) << heads.text;
  const Outcome size = command("bench --batch 2147483647 --heads 2147483647 --seqlen 2147483647");
  EXPECT_EQ(size.status, 1);
  EXPECT_TRUE(has(size, "not enough memory")) << size.text;
}

TEST(Command, info_tells_the_path_and_the_drivers) {
  const Outcome o = command("info");
  EXPECT_EQ(o.status, 0);
  for (const char* words : {"rocflash 0.", "path", "threads", "hip", "cuda"})
    EXPECT_TRUE(has(o, words)) << words;
  const json j = json::parse(command("info --json -", "2>/dev/null").text);
  EXPECT_EQ(j["devices"][0]["type"], "cpu");
  EXPECT_EQ(j["drivers"].size(), 2u);
  EXPECT_FALSE(j["drivers"][0]["reason"].get<std::string>().empty());
  // What a device computes is asked of it, not claimed for all.
  EXPECT_TRUE(has(o, "backward bf16 f16 f32, head sizes to ")) << o.text;
  EXPECT_FALSE(has(o, "backward yes")) << o.text;
  for (const char* operation : {"forward", "backward", "decode"})
    EXPECT_EQ(j["devices"][0]["largest_head_dim"][operation]["f32"], j["max_head_dim"])
        << operation;
}

TEST(Command, info_honours_the_number_of_threads) {
  setenv("ROCFLASH_NUM_THREADS", "3", 1);
  EXPECT_EQ(json::parse(command("info --json -", "2>/dev/null").text)["threads"], 3);
  setenv("ROCFLASH_NUM_THREADS", "many", 1);
  const Outcome o = command("info");
  EXPECT_EQ(o.status, 1);
  EXPECT_TRUE(has(o, "ROCFLASH_NUM_THREADS")) << o.text;
  unsetenv("ROCFLASH_NUM_THREADS");
}

TEST(Command, info_tells_the_kernels) {
  const Outcome o = command("info");
  EXPECT_TRUE(has(o, "GPU kernels")) << o.text;
  const json j = json::parse(command("info --json -", "2>/dev/null").text);
  for (const json& t : j["targets"]) {
    EXPECT_FALSE(t["family"].get<std::string>().empty());
    EXPECT_TRUE(t["driver"] == "hip" || t["driver"] == "cuda");
  }
}

TEST(Command, a_gpu_that_is_not_there_is_a_failure_with_a_reason) {
  setenv("ROCFLASH_HIP_LIBRARY", "/no/such/driver.so", 1);
  for (const char* arguments : {"verify --device hip:0 --filter plain", "bench --device hip:0",
                                "bench --device hip:0 --op backward"}) {
    const Outcome o = command(arguments);
    EXPECT_EQ(o.status, 1) << o.text;
    EXPECT_TRUE(has(o, "the hip driver is not in use: ROCFLASH_HIP_LIBRARY is set, but:"))
        << o.text;
  }
  unsetenv("ROCFLASH_HIP_LIBRARY");
}

TEST(Command, verify_takes_a_sample) {
  const auto cases = [](const std::string& more) {
    const Outcome o = command("verify --filter /f16/ --json - " + more, "2>/dev/null");
    return json::parse(o.text)["cases"].get<int>();
  };
  const int all = cases("--every 1"), some = cases("--every 5");
  EXPECT_GT(some, 0);
  EXPECT_LT(some, all / 2);
}

TEST(Command, verify_reports_by_feature) {
  const Outcome o = command("verify --filter softcap --seed 3 --threads 2");
  EXPECT_EQ(o.status, 0) << o.text;
  for (const char* words : {"softcap causal", "f32 forward", "backward", "ok", "cases passed"})
    EXPECT_TRUE(has(o, words)) << o.text;
  EXPECT_FALSE(has(o, "\033")) << "no terminal, no control codes";
}

TEST(Command, verify_writes_json) {
  const auto file =
      std::filesystem::temp_directory_path() / ("rocflash_cli_test_" + std::to_string(getpid()));
  const Outcome o = command("verify --filter gqa/ --json " + file.string());
  EXPECT_EQ(o.status, 0) << o.text;
  const json j = json::parse(std::ifstream(file));
  std::filesystem::remove(file);
  EXPECT_EQ(j["failed"], 0);
  EXPECT_EQ(j["cases"], j["results"].size());
  EXPECT_EQ(j["level"], "quick");
  EXPECT_LE(j["results"][0]["tensors"]["dq"]["ratio"].get<double>(), 1.0);
  const Outcome nowhere = command("verify --filter gqa/f32 --json /no/such/folder/x.json");
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_TRUE(has(nowhere, "/no/such/folder/x.json"));
}

TEST(Command, bench_compares_with_standard_attention) {
  const std::string shape = "bench --batch 1 --heads 4 --kv-heads 2 --seqlen 64,96 --repeat 2 ";
  for (const char* more : {"--op forward", "--op backward --dtype f16",
                           "--dtype bf16 --no-causal --seqlen-k 80", "--window 16,0 --threads 1"}) {
    const Outcome o = command(shape + more);
    EXPECT_EQ(o.status, 0) << o.text;
    for (const char* words : {"GFLOP/s", "speed-up [x]", "memory reduction [x]", "max difference"})
      EXPECT_TRUE(has(o, words)) << o.text;
  }
  const json j = json::parse(command(shape + "--json -", "2>/dev/null").text);
  ASSERT_EQ(j["results"].size(), 2u);
  EXPECT_EQ(j["results"][1]["seqlen_q"], 96);
  EXPECT_GT(j["results"][0]["gflops"].get<double>(), 0);
  EXPECT_LT(j["results"][0]["max_difference"].get<double>(), 1e-4);
}

TEST(Command, bench_compares_decode_with_reading_and_pages_with_one_tensor) {
  const std::string shape =
      "bench --op decode --dtype bf16 --heads 4 --kv-heads 2 --seqlen 70 --page-size 16 --repeat "
      "1 ";
  for (const char* more : {"", "--cold"}) {
    const Outcome o = command(shape + more);
    EXPECT_EQ(o.status, 0) << o.text;
    for (const char* words : {"share of reading", "one tensor", "append"})
      EXPECT_TRUE(has(o, words)) << o.text;
  }
  const json j = json::parse(command(shape + "--json -", "2>/dev/null").text);
  ASSERT_EQ(j["results"].size(), 2u);
  EXPECT_FALSE(j["results"][0].contains("one_tensor_seconds"));
  for (const char* name : {"seconds", "read_seconds", "one_tensor_seconds", "append_seconds"})
    EXPECT_GT(j["results"][1][name].get<double>(), 0) << name;
}

TEST(Command, bench_can_leave_standard_attention_out) {
  const Outcome o = command("bench --seqlen 64 --repeat 1 --no-standard");
  EXPECT_EQ(o.status, 0);
  EXPECT_FALSE(has(o, "speed-up")) << o.text;
  EXPECT_TRUE(has(o, " thread")) << o.text;
}

}  // namespace
