// One disassembled instruction, parsed from assembly text: mnemonic, operands, modifiers.
// The assembler's syntax is the only stable interface of LLVM's AMDGPU decoder (its operand
// tables are private), so the simulator reads that and never LLVM's internal numbering.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/types.h"

namespace rocflash::sim {

enum class File : u8 { None, Vgpr, Agpr, Sgpr, Literal, Special, Off };

// Scalar registers in one numbering for all generations; the encodings differ, the names do not.
namespace sreg {
inline constexpr u16 kVcc = 106;
inline constexpr u16 kTtmp0 = 108;
inline constexpr u16 kM0 = 124;
inline constexpr u16 kNull = 125;
inline constexpr u16 kExec = 126;
inline constexpr u16 kFlatScratch = 128;
inline constexpr u16 kXnackMask = 130;
inline constexpr u16 kCount = 132;
}  // namespace sreg

enum class Special : u16 {
  SharedBase,
  SharedLimit,
  PrivateBase,
  PrivateLimit,
  Vccz,
  Execz,
  Scc,
  PopsExitingWaveId
};

// How a constant was written: an inline float means different bits to each operand type.
enum class Constant : u8 { None, Integer, Hex, Float };

// What an operand names, and how its value is changed on the way.
struct Reference {
  File file = File::None;
  u8 dwords = 1;
  u16 index = 0;
  bool neg = false;
  bool abs = false;
  bool sext = false;
  bool high = false;  // 16-bit operand in the high half
};

struct Operand : Reference {
  bool half_named = false;  // written v1.l or v1.h
  Constant constant = Constant::None;
  double number = 0;  // of a Float constant
  u64 bits = 0;       // of an Integer or Hex constant
};

struct Instruction {
  u64 address = 0;
  u32 size = 0;
  u32 words[3] = {};  // the encoding's first dwords
  std::string text;
  std::string mnemonic;  // without encoding suffix
  bool e64 = false;
  bool dpp = false;
  bool sdwa = false;
  std::vector<Operand> operands;
  std::vector<std::pair<std::string, std::string>> modifiers;  // "offset" -> "16", "glc" -> ""
  bool valid = true;                                           // false: LLVM could not decode it

  [[nodiscard]] u16 simm16() const { return static_cast<u16>(words[0]); }
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] i64 number(std::string_view name, i64 otherwise) const;
  // "op_sel:[0,1,0]" as bits; `otherwise` where it is not written.
  [[nodiscard]] u32 bit_list(std::string_view name, u32 otherwise) const;
  [[nodiscard]] std::string_view value(std::string_view name) const;
};

// Fills mnemonic, operands and modifiers from `text`. A VOPD pair must be split by the caller.
void parse_instruction(Instruction& instruction);

// The two halves of "x :: y"; second is empty for all but VOPD.
std::pair<std::string, std::string> split_dual(const std::string& text);

// Removes _e32, _e64, _dpp, _sdwa.
std::string_view strip_encoding(std::string_view mnemonic);

}  // namespace rocflash::sim
