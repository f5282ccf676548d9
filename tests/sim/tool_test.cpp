// The command line of rocflash-sim.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/settings.h"
#include "harness.h"

namespace rocflash::sim::test {
namespace {

struct Output {
  std::string text;
  int status;
};

Output command(const std::string& arguments) {
  Output out{"", -1};
  FILE* pipe = popen((std::string(ROCFLASH_SIM_TOOL) + " " + arguments + " 2>&1").c_str(), "r");
  char line[512];
  while (std::fgets(line, sizeof line, pipe) != nullptr) out.text += line;
  out.status = WEXITSTATUS(pclose(pipe));
  return out;
}

class Tool : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "rocflash-sim-" +
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(directory_);
    const auto code = compile_hip(ROCFLASH_SIM_TEST_SOURCE "/kernels/suite.hip", "gfx942",
                                  "-O3 -ffp-contract=off -mcode-object-version=5");
    std::ofstream(directory_ + "/k.co", std::ios::binary)
        .write(reinterpret_cast<const char*>(code.data()), std::streamsize(code.size()));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void describe(int count) {
    std::ofstream(directory_ + "/run.json") << R"({
      "code_object": "k.co", "kernel": "add_u32", "grid": 1, "block": [64],
      "buffers": {"a": {"type": "u32", "count": 64, "iota": 100},
                  "b": {"type": "u32", "count": 64, "fill": 5},
                  "c": {"type": "u32", "count": )"
                                            << count << R"(}},
      "arguments": [{"buffer": "a"}, {"buffer": "b"}, {"buffer": "c"}, {"u32": 64}],
      "print": [{"buffer": "c", "first": 60, "count": 4}]})";
  }

  std::string directory_;
};

TEST_F(Tool, RunsPrintsAndCounts) {
  describe(64);
  const auto out = command("run " + directory_ + "/run.json --listing --counters table");
  EXPECT_EQ(out.status, 0) << out.text;
  for (const char* expected :
       {"165", "168", "v_add_u32", "executed", "waves per SIMD", "64-byte transactions"}) {
    EXPECT_NE(out.text.find(expected), std::string::npos) << expected << "\n" << out.text;
  }
}

TEST_F(Tool, StopsToShowRegisters) {
  describe(64);
  const auto out =
      command("run " + directory_ + "/run.json --break add_u32+0x0 --registers v0,s0-s1,exec");
  EXPECT_EQ(out.status, 0) << out.text;
  EXPECT_NE(out.text.find("before s_"), std::string::npos) << out.text;
  EXPECT_NE(out.text.find("0000003f"), std::string::npos) << "v0 of the last lane\n" << out.text;
  EXPECT_NE(out.text.find("exec_lo"), std::string::npos) << out.text;
}

TEST_F(Tool, PredictsTime) {
  describe(64);
  const std::string timeline = directory_ + "/timeline.json";
  const auto out =
      command("run " + directory_ + "/run.json --time --report instructions --timeline " +
              timeline + " --clock 1000");
  EXPECT_EQ(out.status, 0) << out.text;
  for (const char* expected : {"predicted time [us]", "s_waitcnt", "1000"}) {
    EXPECT_NE(out.text.find(expected), std::string::npos) << expected << "\n" << out.text;
  }
  std::ifstream file(timeline);
  std::string first;
  std::getline(file, first);
  EXPECT_NE(first.find("traceEvents"), std::string::npos) << first;
}

TEST_F(Tool, ReportsAndFails) {
  describe(63);
  const auto out = command("run " + directory_ + "/run.json");
  EXPECT_EQ(out.status, 1) << out.text;
  EXPECT_NE(out.text.find("out-of-bounds"), std::string::npos) << out.text;
  EXPECT_NE(out.text.find("buffer c"), std::string::npos) << out.text;
}

// The description with one piece of it replaced.
TEST_F(Tool, RejectsUnsupportedKeys) {
  describe(64);
  std::ifstream in(directory_ + "/run.json");
  const std::string good(std::istreambuf_iterator<char>(in), {});
  const struct {
    const char *from, *to, *expected;
  } cases[] = {
      {"\"count\": 64, \"fill\": 5", "\"count\": 4611686018427387904, \"fill\": 5", "no memory"},
      {"\"fill\": 5", "\"values\": []", "buffer 'b': values"},
      {"\"fill\": 5", "\"fil\": 5", "buffer 'b' has no 'fil'"},
      {"\"fill\": 5", "\"fill\": 4294967296", "4294967296 does not fit u32"},
      {"\"fill\": 5", "\"fill\": 1e300", "not an integer"},
      {"\"fill\": 5", "\"file\": \"run.json\", \"count\": 5000", "its file has"},
      {"\"count\": 64", "\"count\": \"many\"", "/buffers/a/count"},
      {"\"block\": [64]", "\"block\": [64, 1, 1, 1]", "block"},
      {"\"grid\"", "\"grit\"", "no 'grit'"},
      {"{\"u32\": 64}", "{\"u64\": 64}", "arguments take 32 bytes"},
      {", {\"u32\": 64}", "", "arguments take 24 bytes"},
  };
  for (const auto& c : cases) {
    std::string text = good;
    text.replace(text.find(c.from), std::strlen(c.from), c.to);
    std::ofstream(directory_ + "/run.json") << text;
    const auto out = command("run " + directory_ + "/run.json");
    EXPECT_EQ(out.status, 2) << c.to << "\n" << out.text;
    EXPECT_NE(out.text.find(c.expected), std::string::npos) << c.to << "\n" << out.text;
  }
}

TEST_F(Tool, RejectsInvalidOptions) {
  describe(64);
  const std::string run = "run " + directory_ + "/run.json ";
  for (const std::string& line :
       {std::string(), run + "--threads -1", run + "--hits 0", run + "--break add_u32+zz",
        run + "--break add_u32 --registers v-1", run + "--clock 0",
        std::string("coverage --arch gfx1")}) {
    const auto out = command(line);
    EXPECT_EQ(out.status, 2) << line << "\n" << out.text;
  }
}

TEST(Settings, RejectInvalidValues) {
  for (const auto& [name, value] : {std::pair{"ROCFLASH_SIM_ARCH", ","},
                                    {"ROCFLASH_SIM_DEVICES", "1000000000000"},
                                    {"ROCFLASH_SIM_THREADS", "99999999999"}}) {
    setenv(name, value, 1);
    EXPECT_THROW(read_settings(), std::invalid_argument) << name;
    unsetenv(name);
  }
}

TEST_F(Tool, DescribesAndDisassembles) {
  const auto info = command("info " + directory_ + "/k.co");
  EXPECT_NE(info.text.find("add_u32"), std::string::npos) << info.text;
  const auto list = command("disassemble " + directory_ + "/k.co");
  EXPECT_EQ(list.status, 0) << "an instruction is not simulated";
  EXPECT_NE(list.text.find("s_endpgm"), std::string::npos);
  const auto coverage = command("coverage --arch gfx1201");
  EXPECT_NE(coverage.text.find("0 without semantics"), std::string::npos) << coverage.text;
  EXPECT_EQ(command("run nowhere.json").status, 2);
}

}  // namespace
}  // namespace rocflash::sim::test
