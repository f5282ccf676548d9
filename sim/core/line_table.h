// Source lines of machine code, read from a code object's DWARF line tables (versions 2 to 5).
// A separate reader, because debug sections may be corrupt in any way: every offset is
// checked, work and memory are bounded by the sections' sizes, and what cannot be read is a table
// that ends early.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.h"

namespace rocflash::sim {

struct SourceLine {
  std::string file;
  u32 line = 0;
};

// The contents must outlive the table.
struct DebugSections {
  std::span<const u8> line, line_str, str, info, abbrev;
};

class LineTable {
 public:
  explicit LineTable(const DebugSections& sections);

  // Of an address as the file has it.
  [[nodiscard]] std::optional<SourceLine> find(u64 address) const;

 private:
  struct Path {  // relative to another directory: joined on lookup
    std::string_view base, directory, name;
  };
  struct Range {
    u64 begin, end;
    u32 path, line;
  };
  struct Unit;

  void read_unit(Unit& unit);
  static bool read_old_files(Unit& unit);
  static bool read_new_files(Unit& unit);
  void run(Unit& unit);
  std::string_view compilation_directory(u64 table) const;

  DebugSections sections_;
  std::vector<Path> paths_;
  std::vector<Range> ranges_;  // by begin
};

}  // namespace rocflash::sim
