// Progress on terminals and in logs, and suggestions for misspelt words.
#include "cli/output.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <string_view>

#include "cli/spelling.hpp"

namespace rocflash::cli {
namespace {

std::string written(Progress::Style style, Progress::Seconds interval, int steps = 3) {
  std::FILE* const file = std::tmpfile();
  {
    Progress progress(file, style, interval);
    for (int n = 1; n <= steps; ++n) progress.show("step " + std::to_string(n));
  }
  std::array<char, 4096> text{};
  std::rewind(file);
  const std::size_t size = std::fread(text.data(), 1, text.size(), file);
  std::fclose(file);
  return {text.data(), size};
}

TEST(Progress, RewritesALineOfTheTerminal) {
  const std::string text = written(Progress::Style::terminal, Progress::Seconds(1000));
  EXPECT_NE(text.find("\r\033[Kstep 3"), std::string::npos);
  EXPECT_TRUE(text.ends_with("\r\033[K"));
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(Progress, DrawsABarOnTheTerminal) {
  std::FILE* const file = std::tmpfile();
  {
    Progress progress(file, Progress::Style::terminal, Progress::Seconds(0));
    progress.show("one", 1, 4);
    progress.show("all", 4, 4);
  }
  std::array<char, 4096> text{};
  std::rewind(file);
  const std::string_view drawn(text.data(), std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  EXPECT_NE(drawn.find("[#####               ]  25% one"), std::string_view::npos) << drawn;
  EXPECT_NE(drawn.find("[####################] 100% all"), std::string_view::npos) << drawn;
}

TEST(Progress, AppendsLinesToALog) {
  EXPECT_EQ(written(Progress::Style::log, Progress::Seconds(0)),
            "[0 s] step 1\n[0 s] step 2\n[0 s] step 3\n");
  EXPECT_EQ(written(Progress::Style::log, Progress::Seconds(1000)), "");
}

TEST(Progress, IsSilentWhenQuiet) {
  EXPECT_EQ(written(Progress::Style::silent, Progress::Seconds(0)), "");
}

TEST(Closest, FindsWhatWasMeant) {
  const std::vector<std::string> known{"info", "verify", "bench", "--device", "--dtype"};
  EXPECT_EQ(closest("verfy", known), "verify");
  EXPECT_EQ(closest("bnech", known), "bench");
  EXPECT_EQ(closest("--devise", known), "--device");
  EXPECT_EQ(closest("dance", known), "");
  EXPECT_EQ(closest("", known), "");
}

}  // namespace
}  // namespace rocflash::cli
