// Text tables with aligned columns. Titles have the units, so that cells are numbers.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace rocflash::cli {

class Table {
 public:
  // The first `left_columns` columns are text, aligned left; the others are numbers, aligned
  // right.
  explicit Table(std::vector<std::string> titles, std::size_t left_columns = 1);

  void add(std::vector<std::string> cells);
  void print(std::FILE* to) const;

 private:
  std::size_t left_columns_;
  std::vector<std::vector<std::string>> rows_;  // the titles first
};

}  // namespace rocflash::cli
