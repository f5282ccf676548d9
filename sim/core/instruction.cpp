// Reading LLVM's AMDGPU assembly syntax.
#include "core/instruction.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <stdexcept>

namespace rocflash::sim {
namespace {

std::string_view trim(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

// Splits at `separator` outside brackets, bars and quotes.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  bool quoted = false;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '[' || c == '(') ++depth;
    if (c == ']' || c == ')') --depth;
    if (c == separator && depth == 0) {
      if (auto part = trim(text.substr(start, i - start)); !part.empty()) parts.push_back(part);
      start = i + 1;
    }
  }
  if (auto part = trim(text.substr(start)); !part.empty()) parts.push_back(part);
  return parts;
}

struct NamedRegister {
  std::string_view name;
  File file;
  u16 index;
  u8 dwords;
};

constexpr u16 special(Special s) { return static_cast<u16>(s); }

// One register of an Sgpr pair has the pair's name with _lo or _hi.
constexpr std::array kNamed = {
    NamedRegister{"vcc", File::Sgpr, sreg::kVcc, 2},
    NamedRegister{"exec", File::Sgpr, sreg::kExec, 2},
    NamedRegister{"m0", File::Sgpr, sreg::kM0, 1},
    NamedRegister{"null", File::Sgpr, sreg::kNull, 1},
    NamedRegister{"flat_scratch", File::Sgpr, sreg::kFlatScratch, 2},
    NamedRegister{"xnack_mask", File::Sgpr, sreg::kXnackMask, 2},
    NamedRegister{"src_shared_base", File::Special, special(Special::SharedBase), 2},
    NamedRegister{"src_shared_limit", File::Special, special(Special::SharedLimit), 2},
    NamedRegister{"src_private_base", File::Special, special(Special::PrivateBase), 2},
    NamedRegister{"src_private_limit", File::Special, special(Special::PrivateLimit), 2},
    NamedRegister{"src_vccz", File::Special, special(Special::Vccz), 1},
    NamedRegister{"src_execz", File::Special, special(Special::Execz), 1},
    NamedRegister{"src_scc", File::Special, special(Special::Scc), 1},
    NamedRegister{"src_pops_exiting_wave_id", File::Special, special(Special::PopsExitingWaveId),
                  1},
    NamedRegister{"off", File::Off, 0, 1},
};

std::optional<NamedRegister> named_register(std::string_view s) {
  const bool low = s.ends_with("_lo");
  const bool one = low || s.ends_with("_hi");
  if (one) s.remove_suffix(3);
  const auto* found = std::ranges::find(kNamed, s, &NamedRegister::name);
  if (found == kNamed.end()) return std::nullopt;
  NamedRegister named = *found;
  if (one) {
    if (named.file != File::Sgpr || named.dwords != 2) return std::nullopt;
    named.index = static_cast<u16>(named.index + (low ? 0 : 1));
    named.dwords = 1;
  }
  return named;
}

std::optional<i64> parse_integer(std::string_view s) {
  const bool negative = !s.empty() && s.front() == '-';
  if (negative) s.remove_prefix(1);
  int base = 10;
  if (s.starts_with("0x")) {
    base = 16;
    s.remove_prefix(2);
  }
  u64 value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value, base);
  if (error != std::errc{} || end != s.data() + s.size() || s.empty()) return std::nullopt;
  return negative ? -static_cast<i64>(value) : static_cast<i64>(value);
}

// v7, v[4:5], a3, s[0:3], ttmp9
bool parse_register(std::string_view s, Operand& op) {
  File file = File::None;
  u16 base = 0;
  if (s.starts_with("ttmp")) {
    file = File::Sgpr;
    base = sreg::kTtmp0;
    s.remove_prefix(4);
  } else if (s.front() == 'v' || s.front() == 'a' || s.front() == 's') {
    file = s.front() == 'v' ? File::Vgpr : s.front() == 'a' ? File::Agpr : File::Sgpr;
    s.remove_prefix(1);
  } else {
    return false;
  }
  if (s.ends_with(".l") || s.ends_with(".h")) {
    op.half_named = true;
    op.high = s.back() == 'h';
    s.remove_suffix(2);
  }
  if (s.starts_with("[") && s.ends_with("]")) {
    s = s.substr(1, s.size() - 2);
    const auto colon = s.find(':');
    const auto lo = parse_integer(s.substr(0, colon));
    const auto hi = colon == s.npos ? lo : parse_integer(s.substr(colon + 1));
    if (!lo || !hi || *hi < *lo) return false;
    op.index = static_cast<u16>(*lo);
    op.dwords = static_cast<u8>(*hi - *lo + 1);
  } else {
    const auto index = parse_integer(s);
    if (!index) return false;
    op.index = static_cast<u16>(*index);
    op.dwords = 1;
  }
  op.file = file;
  op.index = static_cast<u16>(op.index + base);
  return true;
}

Operand parse_operand(std::string_view s) {
  Operand op;
  // Encodings of 7 register bits name the high half of v - 128 by a 16-bit register above v127.
  bool invalid_class = false;
  if (const auto comment = s.find("/*"); comment != s.npos) {
    invalid_class = true;
    s = trim(s.substr(0, comment));
  }
  const auto unwrap = [&s](std::string_view open, std::string_view close) {
    if (!s.starts_with(open) || !s.ends_with(close) || s.size() <= open.size()) return false;
    s = s.substr(open.size(), s.size() - open.size() - close.size());
    return true;
  };
  if (unwrap("sext(", ")")) op.sext = true;
  if (unwrap("neg(", ")")) {
    op.neg = true;
  } else if (s.size() > 1 && s.front() == '-' && !std::isdigit(static_cast<unsigned char>(s[1]))) {
    op.neg = true;
    s.remove_prefix(1);
  }
  if (unwrap("|", "|") || unwrap("abs(", ")")) op.abs = true;
  if (unwrap("lit(", ")") || unwrap("lit64(", ")")) {
    op.constant = Constant::Hex;
  }
  if (s.empty()) throw std::runtime_error("empty operand");
  if (const auto named = named_register(s)) {
    op.file = named->file;
    op.index = named->index;
    op.dwords = named->dwords;
    return op;
  }
  if (parse_register(s, op)) {
    if (invalid_class && op.index >= 128) {
      op.index = static_cast<u16>(op.index - 128);
      op.half_named = op.high = true;
    }
    return op;
  }
  if (const auto value = parse_integer(s)) {
    op.file = File::Literal;
    op.bits = static_cast<u64>(*value);
    if (op.constant == Constant::None) {
      op.constant = s.find("0x") != s.npos ? Constant::Hex : Constant::Integer;
    }
    return op;
  }
  const std::string copy(s);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  if (end == copy.c_str() + copy.size()) {
    op.file = File::Literal;
    op.constant = Constant::Float;
    op.number = number;
    return op;
  }
  // Symbols such as hwreg(...), sendmsg(...) or a swizzle macro; their users read the encoding.
  op.file = File::None;
  return op;
}

bool takes_no_operands(std::string_view mnemonic) {
  return mnemonic.starts_with("s_wait") || mnemonic == "s_delay_alu" || mnemonic == "s_clause" ||
         mnemonic == "s_nop" || mnemonic == "s_sendmsg" || mnemonic == "s_sendmsghalt";
}

}  // namespace

bool Instruction::has(std::string_view name) const {
  return std::ranges::any_of(modifiers, [&](const auto& m) { return m.first == name; });
}

std::string_view Instruction::value(std::string_view name) const {
  for (const auto& [key, text_value] : modifiers) {
    if (key == name) return text_value;
  }
  return {};
}

i64 Instruction::number(std::string_view name, i64 otherwise) const {
  for (const auto& [key, text_value] : modifiers) {
    if (key == name) return parse_integer(text_value).value_or(otherwise);
  }
  return otherwise;
}

u32 Instruction::bit_list(std::string_view name, u32 otherwise) const {
  for (const auto& [key, text_value] : modifiers) {
    if (key != name) continue;
    u32 bits = 0;
    int position = 0;
    for (const char c : text_value) {
      if (c == '0' || c == '1') bits |= u32(c == '1') << position++;
    }
    return bits;
  }
  return otherwise;
}

std::string_view strip_encoding(std::string_view mnemonic) {
  bool again = true;
  while (again) {
    again = false;
    for (const std::string_view suffix : {"_e32", "_e64", "_dpp", "_sdwa"}) {
      if (mnemonic.ends_with(suffix)) {
        mnemonic.remove_suffix(suffix.size());
        again = true;
      }
    }
  }
  return mnemonic;
}

std::pair<std::string, std::string> split_dual(const std::string& text) {
  const auto at = text.find(" :: ");
  if (at == std::string::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 4)};
}

void parse_instruction(Instruction& instruction) {
  std::string_view rest = trim(instruction.text);
  const auto space = rest.find_first_of(" \t");
  const std::string_view full = rest.substr(0, space);
  instruction.e64 = full.find("_e64") != full.npos;
  instruction.sdwa = full.ends_with("_sdwa");
  instruction.dpp = full.ends_with("_dpp");
  instruction.mnemonic = strip_encoding(full);
  if (space == rest.npos || takes_no_operands(instruction.mnemonic)) return;
  rest = trim(rest.substr(space));

  const auto pieces = split(rest, ',');
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto words = split(pieces[i], ' ');
    for (std::size_t w = 0; w < words.size(); ++w) {
      const std::string_view word = words[w];
      const bool is_comment = word.starts_with("/*");
      // Only the last piece carries modifiers, and a first word is an operand unless it reads as
      // "name:value" (an instruction whose only words are modifiers).
      const auto colon = word.find(':');
      const bool keyed = colon != word.npos && word.find('[') > colon && word.find('(') > colon;
      if (w == 0 && !keyed) {
        instruction.operands.push_back(
            parse_operand(pieces[i].find("/*") != word.npos ? pieces[i] : word));
        if (pieces[i].find("/*") != word.npos) break;
      } else if (!is_comment) {
        instruction.modifiers.emplace_back(
            std::string(word.substr(0, colon)),
            colon == word.npos ? std::string() : std::string(word.substr(colon + 1)));
      }
    }
  }
}

}  // namespace rocflash::sim
