// Headers, file tables and programs of .debug_line, and from .debug_info the compilation directory
// of a unit before DWARF 5.
#include "core/line_table.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace rocflash::sim {
namespace {

enum : u64 {
  kFormAddr = 0x01,
  kFormBlock2 = 0x03,
  kFormBlock4 = 0x04,
  kFormData2 = 0x05,
  kFormData4 = 0x06,
  kFormData8 = 0x07,
  kFormString = 0x08,
  kFormBlock = 0x09,
  kFormBlock1 = 0x0a,
  kFormData1 = 0x0b,
  kFormFlag = 0x0c,
  kFormSdata = 0x0d,
  kFormStrp = 0x0e,
  kFormUdata = 0x0f,
  kFormRefAddr = 0x10,
  kFormRef1 = 0x11,
  kFormRef2 = 0x12,
  kFormRef4 = 0x13,
  kFormRef8 = 0x14,
  kFormRefUdata = 0x15,
  kFormSecOffset = 0x17,
  kFormExprloc = 0x18,
  kFormFlagPresent = 0x19,
  kFormStrx = 0x1a,
  kFormAddrx = 0x1b,
  kFormData16 = 0x1e,
  kFormLineStrp = 0x1f,
  kFormStrx1 = 0x25,
  kFormStrx2 = 0x26,
  kFormStrx3 = 0x27,
  kFormStrx4 = 0x28,
};

std::string_view string_at(std::span<const u8> bytes, u64 offset) {
  if (offset >= bytes.size()) return {};
  const auto* first = reinterpret_cast<const char*>(bytes.data()) + offset;
  return {first, strnlen(first, bytes.size() - offset)};
}

// Reads forward; past the end everything is zero and `good` is false.
class Cursor {
 public:
  explicit Cursor(std::span<const u8> bytes, u64 at = 0) : bytes_(bytes), at_(at) {
    if (at_ > bytes_.size()) fail();
  }
  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] bool done() const { return !good_ || at_ >= bytes_.size(); }
  [[nodiscard]] u64 at() const { return at_; }
  [[nodiscard]] u64 left() const { return bytes_.size() - at_; }

  u64 fixed(u64 size) {
    if (!has(size)) return 0;
    u64 value = 0;
    std::memcpy(&value, bytes_.data() + at_, std::min<u64>(size, 8));
    at_ += size;
    return value;
  }
  void skip(u64 size) {
    if (has(size)) at_ += size;
  }
  u64 uleb() { return leb(false); }
  i64 sleb() { return static_cast<i64>(leb(true)); }
  std::string_view string() {
    const std::string_view text = string_at(bytes_, at_);
    skip(text.size() + 1);
    return good_ ? text : std::string_view{};
  }
  // The next `size` bytes on their own.
  Cursor part(u64 size) {
    const u64 from = at_;
    skip(size);
    return Cursor(good_ ? bytes_.subspan(from, size) : std::span<const u8>{});
  }

 private:
  bool has(u64 size) {
    if (good_ && size <= bytes_.size() - at_) return true;
    fail();
    return false;
  }
  void fail() {
    good_ = false;
    at_ = bytes_.size();
  }
  u64 leb(bool is_signed) {
    u64 value = 0;
    for (u32 shift = 0;; shift += 7) {
      const u64 byte = fixed(1);
      if (shift < 64) value |= (byte & 127) << shift;
      if ((byte & 128) != 0) continue;
      if (is_signed && (byte & 64) != 0 && shift + 7 < 64) value |= ~0ull << (shift + 7);
      return value;
    }
  }

  std::span<const u8> bytes_;
  u64 at_;
  bool good_ = true;
};

struct Value {
  u64 number = 0;
  std::string_view text;
};

// One attribute or file entry; an unknown form leaves the cursor where nothing can be read.
Value read_form(Cursor& c, u64 form, u64 offset_bytes, u64 address_bytes,
                const DebugSections& sections) {
  switch (form) {
    case kFormString:
      return {0, c.string()};
    case kFormStrp:
      return {0, string_at(sections.str, c.fixed(offset_bytes))};
    case kFormLineStrp:
      return {0, string_at(sections.line_str, c.fixed(offset_bytes))};
    case kFormAddr:
      return {c.fixed(address_bytes), {}};
    case kFormData1:
    case kFormFlag:
    case kFormRef1:
    case kFormStrx1:
      return {c.fixed(1), {}};
    case kFormData2:
    case kFormRef2:
    case kFormStrx2:
      return {c.fixed(2), {}};
    case kFormStrx3:
      return {c.fixed(3), {}};
    case kFormData4:
    case kFormRef4:
    case kFormStrx4:
      return {c.fixed(4), {}};
    case kFormData8:
    case kFormRef8:
      return {c.fixed(8), {}};
    case kFormData16:
      return {c.fixed(16), {}};
    case kFormRefAddr:
    case kFormSecOffset:
      return {c.fixed(offset_bytes), {}};
    case kFormUdata:
    case kFormRefUdata:
    case kFormStrx:
    case kFormAddrx:
      return {c.uleb(), {}};
    case kFormSdata:
      return {static_cast<u64>(c.sleb()), {}};
    case kFormFlagPresent:
      return {1, {}};
    case kFormBlock:
    case kFormExprloc:
      c.skip(c.uleb());
      return {};
    case kFormBlock1:
      c.skip(c.fixed(1));
      return {};
    case kFormBlock2:
      c.skip(c.fixed(2));
      return {};
    case kFormBlock4:
      c.skip(c.fixed(4));
      return {};
    default:
      c.skip(~0ull);
      return {};
  }
}

// Replaces bytes that are not printable text.
std::string printable(std::string_view bytes) {
  std::string text(bytes.substr(0, 4096));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 32 || static_cast<unsigned char>(c) > 126) c = '?';
  }
  return text;
}

}  // namespace

struct LineTable::Unit {
  Unit(const Cursor& bytes, const DebugSections& all)
      : header(bytes), program(bytes), sections(all) {}

  Cursor header;
  Cursor program;
  const DebugSections& sections;
  u64 version = 0;
  u64 offset_bytes = 4;
  u64 address_bytes = 8;
  u64 least_instruction = 1;
  i64 line_base = 0;
  u64 line_range = 1;
  u64 opcode_base = 1;
  std::array<u8, 256> operands{};  // of standard operations
  std::string_view base;           // the compilation directory
  std::vector<std::string_view> directories;
  std::vector<Path> files;
};

LineTable::LineTable(const DebugSections& sections) : sections_(sections) {
  Cursor all(sections.line);
  while (!all.done()) {
    const u64 start = all.at();
    u64 size = all.fixed(4);
    const bool wide = size == 0xffffffff;
    if (wide) size = all.fixed(8);
    Cursor unit_bytes = all.part(std::min(size, all.left()));
    if (size == 0) continue;
    const u64 version = unit_bytes.fixed(2);
    if (!unit_bytes.good() || version < 2 || version > 5) continue;
    Unit unit(unit_bytes, sections_);
    unit.version = version;
    unit.offset_bytes = wide ? 8 : 4;
    if (version >= 5) {
      unit.address_bytes = unit_bytes.fixed(1);
      unit_bytes.skip(1);
    } else {
      unit.base = compilation_directory(start);
    }
    unit.header = unit_bytes.part(unit_bytes.fixed(unit.offset_bytes));
    unit.program = unit_bytes;
    if (unit.header.good()) read_unit(unit);
  }
  std::ranges::sort(ranges_, [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;  // the narrower one is found
  });
}

void LineTable::read_unit(Unit& unit) {
  Cursor& h = unit.header;
  unit.least_instruction = h.fixed(1);
  if (unit.version >= 4) h.skip(1);  // operations per instruction of machines with long words
  h.skip(1);                         // whether rows are statements at first
  unit.line_base = static_cast<i8>(h.fixed(1));
  unit.line_range = h.fixed(1);
  unit.opcode_base = h.fixed(1);
  for (u64 i = 1; i < unit.opcode_base; ++i) unit.operands[i] = static_cast<u8>(h.fixed(1));
  if (!h.good() || unit.line_range == 0 || unit.opcode_base == 0) return;
  if (!(unit.version >= 5 ? read_new_files(unit) : read_old_files(unit))) return;
  run(unit);
}

// Versions 2 to 4 number directories and files from 1; directory 0 is the compilation directory.
bool LineTable::read_old_files(Unit& unit) {
  Cursor& h = unit.header;
  unit.directories.emplace_back();
  for (std::string_view name = h.string(); !name.empty(); name = h.string()) {
    unit.directories.push_back(name);
  }
  unit.files.emplace_back();
  for (std::string_view name = h.string(); !name.empty(); name = h.string()) {
    const u64 directory = h.uleb();
    h.uleb();  // time
    h.uleb();  // size
    unit.files.push_back(
        {unit.base,
         directory < unit.directories.size() ? unit.directories[directory] : std::string_view{},
         name});
  }
  return h.good();
}

// Version 5: both tables say what their entries consist of; entry 0 is the compilation's.
bool LineTable::read_new_files(Unit& unit) {
  constexpr u64 kPath = 1;
  constexpr u64 kDirectory = 2;
  Cursor& h = unit.header;
  for (const bool directories : {true, false}) {
    std::vector<std::pair<u64, u64>> format(h.fixed(1));
    for (auto& [content, form] : format) {
      content = h.uleb();
      form = h.uleb();
    }
    const u64 count = h.uleb();
    for (u64 i = 0; i < count; ++i) {
      const u64 before = h.at();
      std::string_view name;
      u64 directory = 0;
      for (const auto& [content, form] : format) {
        const Value v = read_form(h, form, unit.offset_bytes, unit.address_bytes, unit.sections);
        if (content == kPath) name = v.text;
        if (content == kDirectory) directory = v.number;
      }
      if (!h.good() || h.at() == before) return false;  // entries of no bytes could go on for ever
      if (directories) {
        unit.directories.push_back(name);
        continue;
      }
      const std::string_view base =
          unit.directories.empty() ? std::string_view{} : unit.directories[0];
      unit.files.push_back(
          {base, directory < unit.directories.size() ? unit.directories[directory] : base, name});
    }
  }
  return h.good();
}

// The line number program. Each row takes a byte of it at least.
void LineTable::run(Unit& unit) {
  struct Vgpr {
    u64 address = 0;
    u64 file = 1;
    u32 line = 1;
  };
  const u64 first_path = paths_.size();
  paths_.insert(paths_.end(), unit.files.begin(), unit.files.end());
  Vgpr row;
  Vgpr last;
  bool open = false;
  const auto emit = [&] {
    if (open && row.address > last.address && last.file < unit.files.size()) {
      ranges_.push_back(
          {last.address, row.address, static_cast<u32>(first_path + last.file), last.line});
    }
    last = row;
    open = true;
  };
  const auto advance = [&](u64 operations) { row.address += operations * unit.least_instruction; };
  Cursor& p = unit.program;
  while (!p.done()) {
    const u64 op = p.fixed(1);
    if (op >= unit.opcode_base) {
      const u64 special = op - unit.opcode_base;
      advance(special / unit.line_range);
      row.line += static_cast<u32>(unit.line_base + static_cast<i64>(special % unit.line_range));
      emit();
      continue;
    }
    switch (op) {
      case 0: {
        Cursor extended = p.part(p.uleb());
        const u64 size = extended.left();
        switch (extended.fixed(1)) {
          case 1:  // end of a sequence
            emit();
            open = false;
            row = {};
            break;
          case 2:
            row.address = extended.fixed(std::min<u64>(size - 1, 8));
            break;
          default:
            break;
        }
        break;
      }
      case 1:
        emit();
        break;
      case 2:
        advance(p.uleb());
        break;
      case 3:
        row.line += static_cast<u32>(p.sleb());
        break;
      case 4:
        row.file = p.uleb();
        break;
      case 8:
        advance((255 - unit.opcode_base) / unit.line_range);
        break;
      case 9:
        row.address += p.fixed(2);
        break;
      default:  // columns, flags and unknown opcodes
        for (u8 i = 0; i < unit.operands[op]; ++i) p.uleb();
        break;
    }
  }
}

// DW_AT_comp_dir of the unit whose DW_AT_stmt_list is `table`. Only first DIEs are read: they are
// the units' own.
std::string_view LineTable::compilation_directory(u64 table) const {
  constexpr u64 kStatements = 0x10;
  constexpr u64 kDirectory = 0x1b;
  Cursor all(sections_.info);
  while (!all.done()) {
    u64 size = all.fixed(4);
    const u64 offset_bytes = size == 0xffffffff ? 8 : 4;
    if (offset_bytes == 8) size = all.fixed(8);
    Cursor unit = all.part(std::min(size, all.left()));
    if (size == 0) continue;
    const u64 version = unit.fixed(2);
    if (version < 2 || version > 4) continue;
    Cursor abbreviations(sections_.abbrev, unit.fixed(offset_bytes));
    const u64 address_bytes = unit.fixed(1);
    const u64 code = unit.uleb();
    // Linkers keep a unit's abbreviations together, its own entry first.
    if (abbreviations.uleb() != code || code == 0) continue;
    abbreviations.uleb();   // tag
    abbreviations.skip(1);  // children
    std::string_view directory;
    u64 statements = ~0ull;
    while (abbreviations.good() && unit.good()) {
      const u64 name = abbreviations.uleb();
      const u64 form = abbreviations.uleb();
      if (name == 0 && form == 0) break;
      const Value v = read_form(unit, form, offset_bytes, address_bytes, sections_);
      if (name == kStatements) statements = v.number;
      if (name == kDirectory) directory = v.text;
    }
    if (statements == table) return directory;
  }
  return {};
}

std::optional<SourceLine> LineTable::find(u64 address) const {
  auto it = std::ranges::upper_bound(ranges_, address, {}, &Range::begin);
  if (it == ranges_.begin()) return std::nullopt;
  --it;
  if (address >= it->end || it->line == 0) return std::nullopt;
  const Path& path = paths_[it->path];
  std::string file;
  for (const std::string_view part : {path.base, path.directory, path.name}) {
    if (part.empty() || part == file) continue;
    if (part.starts_with('/')) file.clear();
    if (!file.empty()) file += '/';
    file += printable(part);
  }
  if (file.empty()) return std::nullopt;
  return SourceLine{file, it->line};
}

}  // namespace rocflash::sim
