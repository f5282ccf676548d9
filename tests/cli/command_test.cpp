// Runs the built command and checks its exit status, its messages and its JSON.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
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

// `redirect` redirects standard error.
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

bool has(const Outcome& o, const std::string& text) {
  return o.text.find(text) != std::string::npos;
}

TEST(Command, help_and_version_succeed) {
  for (const char* arguments :
       {"--help", "info --help", "verify --help", "bench --help", "--version"}) {
    const Outcome o = command(arguments, "2>/dev/null");
    EXPECT_EQ(o.status, 0) << arguments;
    EXPECT_FALSE(o.text.empty()) << arguments;
  }
  const Outcome o = command("--version");
  EXPECT_TRUE(has(o, "rocflash 0."));
  for (const char* arguments : {"-V", "version"}) EXPECT_EQ(command(arguments).text, o.text);
  EXPECT_EQ(command("help").text, command("--help").text);
  EXPECT_EQ(command("help bench").text, command("bench --help").text);
  EXPECT_EQ(command("help report").text, command("kernels --help").text);
}

TEST(Command, a_failed_write_exits_with_1_and_a_reason) {
  for (const char* arguments : {"--help", "version", "info", "info --json", "doctor", "kernels"}) {
    const Outcome o = command(arguments, "2>&1 >/dev/full");
    EXPECT_EQ(o.status, 1) << arguments;
    // Once; --json alone prints the text to standard error.
    const std::string reason =
        "rocflash: cannot write to standard output: No space left on device\n";
    EXPECT_EQ(o.text.find("cannot write"), o.text.rfind(reason) + 10) << arguments << o.text;
  }
}

TEST(Command, a_closed_pipe_ends_it_without_a_message) {
  // The shell ignores SIGPIPE, which the command inherits, as from Python.
  for (const char* arguments : {"info", "kernels", "verify --filter gqa/f32 --device cpu"}) {
    const std::string program = std::string(ROCFLASH_COMMAND " ") + arguments;
    std::FILE* pipe =
        popen(("(trap '' PIPE; (sleep 0.2; " + program + ") | true) 2>&1").c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::array<char, 512> part{};
    const std::size_t size = std::fread(part.data(), 1, part.size(), pipe);
    EXPECT_EQ(std::string(part.data(), size), "") << arguments;
    pclose(pipe);
  }
}

TEST(Command, invalid_settings_are_one_error_of_every_command) {
  const std::pair<const char*, const char*> settings[] = {
      {"ROCFLASH_CPU_ISA", "rocflash: ROCFLASH_CPU_ISA is 'sse9'; this CPU supports "},
      {"ROCFLASH_NUM_THREADS", "rocflash: ROCFLASH_NUM_THREADS is 'sse9'; it must be a number"}};
  for (const auto& [variable, message] : settings) {
    setenv(variable, "sse9", 1);
    for (const char* arguments :
         {"info", "verify", "bench", "explain --arch gfx942", "kernels", "verify --device hip:0"}) {
      const Outcome o = command(arguments);
      EXPECT_EQ(o.status, 1) << arguments;
      EXPECT_EQ(o.text.find(message), 0u) << arguments << "\n" << o.text;
      EXPECT_EQ(std::count(o.text.begin(), o.text.end(), '\n'), 1) << arguments << "\n" << o.text;
    }
    unsetenv(variable);
  }
}

TEST(Command, an_invalid_command_line_exits_with_2_and_a_message) {
  const std::pair<const char*, const char*> invalid[] = {
      {"", "subcommand"},
      {"dance", "rocflash: 'dance' is not a command\n"},
      {"verfy --full", "rocflash: 'verfy' is not a command; did you mean 'verify'?"},
      {"help bnech", "rocflash: 'bnech' is not a command; did you mean 'bench'?"},
      {"verify --devise cpu",
       "rocflash verify: '--devise' is not an option; did you mean '--device'?"},
      {"verify cpu", "rocflash verify: 'cpu' is not expected"},
      {"info --color", "--color"},
      {"verify --device quantum", "cpu"},
      {"verify --quick --full", "--full"},
      {"verify --threads -1", "--threads"},
      {"verify --filter no-such-case", "no-such-case"},
      {"verify --filter causal/f32/d8 --every 1000000007", "--every: 1000000007 leaves none of"},
      {"bench --op sideways", "forward"},
      {"bench --dtype f8", "bf16"},
      {"bench --seqlen 0", "--seqlen: Value 0 not in range 1 to 2147483647"},
      {"bench --op decode --seqlen 40 --page-size 9223372036854775807", "--page-size"},
      {"verify --device gpu", "'gpu'; it must be auto, cpu, hip:N (or rocm:N), cuda:N or sim:ARCH"},
      {"verify --device sim:gfx000", "the simulator has no gfx000; it has gfx906, gfx908"},
      {"verify --every -1", "to 2147483647"},
      {"bench --seqlen 128,many", "many"},
      {"bench --window 3", "--window"},
      {"bench --heads", "--heads"},
      {"bench --page-size 16", "--page-size"},
      {"bench --op backward --cold", "--cold"},
      {"bench --op decode --window 4,4", "--window"},
      {"bench --op decode --seqlen-k 64", "--seqlen-k"},
  };
  for (const auto& [arguments, message] : invalid) {
    const Outcome o = command(arguments);
    EXPECT_EQ(o.status, 2) << arguments << "\n" << o.text;
    EXPECT_TRUE(has(o, message)) << arguments << "\n" << o.text;
    EXPECT_EQ(command(arguments, "2>/dev/null").text, "") << arguments;
  }
}

TEST(Command, an_error_of_the_library_exits_with_1_and_its_message) {
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

TEST(Command, info_shows_the_path_and_the_drivers) {
  const Outcome o = command("info");
  EXPECT_EQ(o.status, 0);
  for (const char* text : {"rocflash 0.", "path", "threads", "hip", "cuda"})
    EXPECT_TRUE(has(o, text)) << text;
  const json j = json::parse(command("info --json -", "2>/dev/null").text);
  EXPECT_EQ(json::parse(command("info --json", "2>/dev/null").text), j);
  EXPECT_EQ(j["devices"][0]["type"], "cpu");
  EXPECT_EQ(j["drivers"].size(), 2u);
  EXPECT_FALSE(j["drivers"][0]["reason"].get<std::string>().empty());
  // Capabilities are queried from the device.
  EXPECT_TRUE(has(o, "backward bf16 f16 f32, head dimensions to ")) << o.text;
  EXPECT_FALSE(has(o, "backward yes")) << o.text;
  EXPECT_GT(j["dropout_steps"].get<int>(), 0);
  EXPECT_TRUE(j["has_backward"].get<bool>());
  EXPECT_TRUE(j["devices"][0]["refusals"].empty());
  EXPECT_EQ(
      json::parse(command("info --device cpu --json -", "2>/dev/null").text)["devices"].size(), 1u);
  for (const char* operation : {"forward", "backward", "decode"})
    EXPECT_EQ(j["devices"][0]["largest_head_dim"][operation]["f32"], j["max_head_dim"])
        << operation;
}

TEST(Command, info_shows_the_configured_number_of_threads) {
  setenv("ROCFLASH_NUM_THREADS", "3", 1);
  EXPECT_EQ(json::parse(command("info --json -", "2>/dev/null").text)["threads"], 3);
  setenv("ROCFLASH_NUM_THREADS", "many", 1);
  const Outcome o = command("info");
  EXPECT_EQ(o.status, 1);
  EXPECT_TRUE(has(o, "ROCFLASH_NUM_THREADS")) << o.text;
  unsetenv("ROCFLASH_NUM_THREADS");
}

TEST(Command, info_lists_the_kernels) {
  const Outcome o = command("info");
  EXPECT_TRUE(has(o, "GPU kernels")) << o.text;
  const json j = json::parse(command("info --json -", "2>/dev/null").text);
  for (const json& t : j["targets"]) {
    EXPECT_FALSE(t["family"].get<std::string>().empty());
    EXPECT_TRUE(t["driver"] == "hip" || t["driver"] == "cuda");
  }
}

TEST(Command, an_unavailable_gpu_is_an_error_with_a_reason) {
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

TEST(Command, quiet_verify_prints_its_last_line) {
  const Outcome o = command("verify --device cpu --filter gqa/f32 --quiet");
  EXPECT_EQ(o.status, 0);
  EXPECT_EQ(std::count(o.text.begin(), o.text.end(), '\n'), 1) << o.text;
  EXPECT_TRUE(has(o, "cases passed")) << o.text;
}

TEST(Command, doctor_finds_the_cpu) {
  const json j = json::parse(command("doctor --json -", "2>/dev/null").text);
  EXPECT_TRUE(j["errors"].is_number());
  EXPECT_EQ(j["findings"][0]["id"], "system.kernel");
  const Outcome o = command("doctor");
  EXPECT_EQ(o.status, j["errors"].get<int>() > 0 ? 1 : 0);
  EXPECT_TRUE(has(o, "kernel")) << o.text;
}

TEST(Command, verify_runs_a_sample) {
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
  for (const char* text : {"softcap causal", "f32 forward", "backward", "ok", "cases passed"})
    EXPECT_TRUE(has(o, text)) << o.text;
  EXPECT_FALSE(has(o, "\033")) << "control codes without a terminal";
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
  const Outcome unwritable = command("verify --filter gqa/f32 --json /no/such/directory/x.json");
  EXPECT_EQ(unwritable.status, 1);
  EXPECT_TRUE(has(unwritable, "/no/such/directory/x.json"));
}

TEST(Command, bench_compares_with_naive_attention) {
  const std::string shape = "bench --batch 1 --heads 4 --kv-heads 2 --seqlen 64,96 --repeat 2 ";
  for (const char* more : {"--op forward", "--op backward --dtype f16",
                           "--dtype bf16 --no-causal --seqlen-k 80", "--window 16,0 --threads 1"}) {
    const Outcome o = command(shape + more);
    EXPECT_EQ(o.status, 0) << o.text;
    for (const char* text : {"GFLOP/s", "speed-up [x]", "memory reduction [x]", "max difference"})
      EXPECT_TRUE(has(o, text)) << o.text;
  }
  const json j = json::parse(command(shape + "--json -", "2>/dev/null").text);
  ASSERT_EQ(j["results"].size(), 2u);
  EXPECT_EQ(j["results"][1]["seqlen_q"], 96);
  EXPECT_GT(j["results"][0]["gflops"].get<double>(), 0);
  EXPECT_LT(j["results"][0]["max_difference"].get<double>(), 1e-4);
}

TEST(Command, bench_compares_decode_with_reading_and_paged_with_contiguous_caches) {
  const std::string shape =
      "bench --op decode --dtype bf16 --heads 4 --kv-heads 2 --seqlen 70 --page-size 16 --repeat "
      "1 ";
  for (const char* more : {"", "--cold"}) {
    const Outcome o = command(shape + more);
    EXPECT_EQ(o.status, 0) << o.text;
    for (const char* text : {"share of reading", "one tensor", "append"})
      EXPECT_TRUE(has(o, text)) << o.text;
  }
  const json j = json::parse(command(shape + "--json -", "2>/dev/null").text);
  ASSERT_EQ(j["results"].size(), 2u);
  EXPECT_FALSE(j["results"][0].contains("one_tensor_seconds"));
  for (const char* name : {"seconds", "read_seconds", "one_tensor_seconds", "append_seconds"})
    EXPECT_GT(j["results"][1][name].get<double>(), 0) << name;
}

TEST(Command, bench_can_skip_naive_attention) {
  const Outcome o = command("bench --seqlen 64 --repeat 1 --no-standard");
  EXPECT_EQ(o.status, 0);
  EXPECT_FALSE(has(o, "speed-up")) << o.text;
  EXPECT_TRUE(has(o, " thread")) << o.text;
}

}  // namespace
