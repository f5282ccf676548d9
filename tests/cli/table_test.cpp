// Alignment of tables.
#include "cli/table.hpp"

#include <gtest/gtest.h>

#include <array>

namespace rocflash::cli {
namespace {

TEST(Table, aligns_text_left_and_numbers_right) {
  Table table({"feature", "time [ms]"});
  table.add({"a", "1.5"});
  table.add({"a longer one", "12345678.25"});
  table.add({"short"});
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  table.print(file);
  std::rewind(file);
  std::string text(1000, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  EXPECT_EQ(text,
            "feature         time [ms]\n"
            "------------  -----------\n"
            "a                     1.5\n"
            "a longer one  12345678.25\n"
            "short\n");
}

}  // namespace
}  // namespace rocflash::cli
