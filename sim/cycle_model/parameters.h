// Parameters of the cycle model: one table per GPU family, each figure with its source
// (parameters.cpp). Clocks are shader clocks; memory beyond L2 has its own clock, so its latencies
// are in nanoseconds and its rates in bytes per second.
#pragma once

#include "core/target.h"
#include "core/types.h"

namespace rocflash::sim {

struct IssueParameters {
  int issue_period = 4;     // clocks between issue slots of a SIMD; a wave issues once per slot
  int vector = 4;           // clocks a VALU instruction of a native wave occupies the VALU
  int transcendental = 16;  // the same for transcendental ones
  bool transcendental_unit =
      false;               // a separate unit; they still occupy the VALU like other instructions
  int vector_latency = 4;  // from issue until another vector instruction may read the result
  int transcendental_latency = 8;
  int scalar_latency = 4;
  int scalar_to_vector = 4;
  int vector_to_scalar = 20;  // v_readlane, v_cmp: until a scalar instruction may read the result
  int branch_taken = 28;      // from its issue to that of the next instruction
  int barrier = 20;           // from the last arrival to the release
  int nop = 4;                // clocks per wait state of s_nop
  int multiply_32 = 4;        // v_mul_lo_u32 and other 32-bit multiplies
  bool memory_port_shared = false;  // LDS and VMEM share an issue port
};

struct MatrixParameters {
  int port = 4;                 // clocks the VALU is busy; 0: as long as the matrix core
  int extra = 16;               // from the end of the unit's work until other instructions may read
  int packed_drain = 8;         // packed f32 after a matrix instruction of the same wave
  bool packed_excluded = true;  // packed f32 never overlaps a matrix instruction
};

struct LdsParameters {
  int port_bytes = 64;         // per clock, one port for each pair of SIMDs
  int latency = 48;            // beyond the service
  double write_factor = 1.35;  // address and data of a write share the port
  int wave_gap = 10;           // between the end of an access's service and the wave's next access
  int queue = 8;               // accesses of a pair of SIMDs waiting for service
  bool banks_shared = true;    // by both pairs
};

struct MemoryParameters {
  int l1_bytes = 32768;
  int l1_latency = 120;
  int l1_rate = 64;       // bytes per clock to registers
  int line_clocks = 2;    // address unit, for each distinct line
  int least_clocks = 4;   // and for each instruction
  int two_dwords = 16;    // an 8-byte access of a whole wave
  int queue = 16;         // instructions waiting for the address unit
  int in_flight = 49152;  // bytes in flight per CU
  int l2_latency = 213;
  double l2_bytes = 4e6;      // of one XCD
  double l2_rate = 64;        // bytes per clock and compute unit
  double l2_xcd_rate = 1640;  // bytes per clock of an XCD
  double mall_bytes = 256e6;
  double mall_latency_ns = 220;
  double mall_rate = 11.9e12;  // bytes per second
  double memory_latency_ns = 420;
  double memory_rate = 4.2e12;
  int store_latency = 300;
  int atomic_clocks = 8;  // per line, in L2
  int scalar_latency = 120;
};

struct ChipParameters {
  int cus = 1;  // compute units, or WGPs on RDNA
  int xcds = 1;
  int replacement = 529;  // clocks from the end of a workgroup to the start of its successor
  double launch_us = 5;
  // Power-limited clock: from `busy_low` percent matrix core utilization (and below: the highest
  // clock) falling linearly to `busy_high`.
  double clock_highest = 0;  // MHz
  double busy_low = 25, busy_high = 70;
  double clock_busy = 1150;
  double clock_slope = 0;  // MHz per percent beyond busy_high
};

struct CycleModelParameters {
  std::string_view card;  // reference card of the target
  IssueParameters issue;
  MatrixParameters matrix;
  LdsParameters lds;
  MemoryParameters memory;
  ChipParameters chip;
};

// Members of a family share its figures; card, units, XCDs and highest clock are the target's own.
CycleModelParameters cycle_model_parameters(const Target& target);

}  // namespace rocflash::sim
