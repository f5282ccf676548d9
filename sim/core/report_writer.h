// Output about a launch (counters, predicted time, faults): one line of JSON for programs, a
// table for humans. Names in code objects may have any bytes; the output is always UTF-8.
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace rocflash::sim {

using Fields = std::initializer_list<std::pair<std::string_view, nlohmann::ordered_json>>;

std::string json_line(const nlohmann::ordered_json& fields);
std::string json_line(Fields fields);
std::string json_text(std::string_view text);  // in quotes

class Table {
 public:
  explicit Table(std::string title) : text_(std::move(title) + "\n") {}

  // A name, then columns of 16 characters.
  template <class... Values>
  void row(std::string_view name, const Values&... values) {
    text_ += fmt::format("  {:<26}", name);
    ((text_ += fmt::format("{:>16}", values)), ...);
    text_ += '\n';
  }
  void line(std::string_view text) { text_ += fmt::format("  {}\n", text); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

inline std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace rocflash::sim
