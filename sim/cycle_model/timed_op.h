// An instruction for the cycle model: its functional unit and occupancy, the registers that
// it reads and writes, its wait counters. Computed once per instruction of a program.
#pragma once

#include <array>
#include <vector>

#include "core/op.h"
#include "core/target.h"
#include "cycle_model/parameters.h"

namespace rocflash::sim {

enum class Unit : u8 {
  Valu,
  Transcendental,
  Matrix,
  Salu,
  Smem,
  Vmem,
  Lds,
  Branch,
  Wait,
  Barrier,
  BarrierSignal,  // gfx12's two halves
  BarrierWait,
  Nop,
  Priority,
  Sleep,
  End,
};

// Vector rows as the simulator numbers them (AGPRs after 256), then scalar registers.
inline constexpr int kScalarBase = 512;
inline constexpr int kTimedRegisters = kScalarBase + sreg::kCount;

struct RegisterRange {
  u16 first = 0;
  u16 count = 0;
};

inline constexpr u8 kNoWait = 255;

struct TimedOp {
  Unit unit = Unit::Salu;
  bool packed = false;  // packed f32
  bool store = false;   // memory: nothing comes back
  bool to_lds = false;  // memory: what comes back goes to LDS
  bool atomic = false;
  bool write = false;          // LDS
  bool flat = false;           // counts as an LDS access too
  bool writes_scalar = false;  // a vector instruction with a scalar result
  u16 port = 0;                // clocks of the vector port
  u16 matrix = 0;              // clocks of the matrix unit
  u16 latency = 0;             // until another instruction may read the result
  u16 pause = 0;               // clocks until the wave's next instruction, beyond an issue period
  u8 priority = 0;
  // What may be left in flight: vector loads, LDS, scalar loads, stores; `joint` is lgkmcnt.
  u8 wait_load = kNoWait, wait_lds = kNoWait, wait_scalar = kNoWait, wait_store = kNoWait;
  u8 wait_joint = kNoWait;
  std::array<RegisterRange, 6> reads{};
  std::array<RegisterRange, 2> writes{};
  RegisterRange accumulator;  // a matrix instruction's C where it is also its result
};

std::vector<TimedOp> time_ops(const Program& program, const Target& target,
                              const CycleModelParameters& parameters);

}  // namespace rocflash::sim
