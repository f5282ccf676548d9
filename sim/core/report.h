// Fault report of a launch: kernel, instruction, source line, workgroup, wave, lane, address.
#pragma once

#include <string>
#include <string_view>

#include "core/types.h"

namespace rocflash::sim {

enum class Fault : u8 {
  UnknownInstruction,
  OutOfBounds,
  FreedMemory,
  LdsOutOfBounds,
  Undefined,
  LdsRace,
  GlobalRace,
  MissingWait,
  DivergentBarrier,
  Misaligned,
  NoProgress,
  Trap,
  BadProgram,
};

std::string_view fault_name(Fault fault);

// Thrown by an instruction; the interpreter adds the location.
struct FaultError {
  Fault fault;
  std::string message;
  int lane = -1;
  bool has_address = false;
  u64 address = 0;
};

[[noreturn]] void raise(Fault fault, std::string message, int lane = -1);
[[noreturn]] void raise_at(Fault fault, std::string message, int lane, u64 address);

struct Report {
  Fault fault = Fault::BadProgram;
  std::string message;
  std::string kernel;
  std::string location;     // "kernel+0x40"
  std::string source;       // "file.cpp:12", empty without debug information
  std::string instruction;  // its assembly text
  u64 pc = 0;               // offset in the code object
  u32 group[3] = {};
  int wave = -1;
  int lane = -1;
  bool has_address = false;
  u64 address = 0;
  std::string allocation;  // description of the nearest allocation

  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string json() const;
};

}  // namespace rocflash::sim
