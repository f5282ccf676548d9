#include "table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace rocflash::cli {

Table::Table(std::vector<std::string> titles, std::size_t left_columns)
    : left_columns_(left_columns), rows_{std::move(titles)} {}

void Table::add(std::vector<std::string> cells) {
  cells.resize(rows_.front().size());
  rows_.push_back(std::move(cells));
}

void Table::print(std::FILE* to) const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_)
    for (std::size_t n = 0; n < row.size(); ++n) widths[n] = std::max(widths[n], row[n].size());

  const auto print_row = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t n = 0; n < row.size(); ++n) {
      const char* pattern = n < left_columns_ ? "{}{:<{}}" : "{}{:>{}}";
      line += fmt::format(fmt::runtime(pattern), n > 0 ? "  " : "", row[n], widths[n]);
    }
    fmt::print(to, "{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  };
  print_row(rows_.front());
  std::vector<std::string> rule;
  rule.reserve(widths.size());
  for (const std::size_t width : widths) rule.emplace_back(width, '-');
  print_row(rule);
  std::for_each(rows_.begin() + 1, rows_.end(), print_row);
}

}  // namespace rocflash::cli
