// Parameters of each family. None was measured by this project or fitted to its kernels.
//
//   D  AMD's documents: ISA manuals, CDNA white papers, rocprofiler-compute's documentation, LLVM's
//      scheduling models, the matrix instruction calculator
//   M  measured by others: thread traces of gfx950-gluon-tutorials (GLU), pyhip (PYH, MI308X),
//      gpu-benches (RRZE), Chips and Cheese (CC), tinygrad's sqtt notes (TGN, 7900 XTX), a MI300X
//      virtual function (VF), ROCm's "Measuring max-achievable FLOPs" (MAF)
//   X  derived from the others, or assumed
#include "cycle_model/parameters.h"

namespace rocflash::sim {
namespace {

CycleModelParameters cdna3() {
  CycleModelParameters p{};
  p.issue = {
      .issue_period = 4,             // D rocprofiler-compute: each clock one of the four SIMDs
      .vector = 4,                   // M PYH: 4.008 to 4.016
      .transcendental = 16,          // M PYH: 16.000
      .vector_latency = 4,           // D full forwarding
      .transcendental_latency = 16,  // D its wait state is the compiler's to keep
      .scalar_latency = 4,           // D GCN
      .scalar_to_vector = 4,
      .vector_to_scalar = 20,       // X GCN's interlock of 16 after the slot
      .branch_taken = 28,           // X PYH: loops of n matrix instructions take 16 n + 24
      .barrier = 20,                // X GLU: at most 20 to 30
      .nop = 4,                     // M PYH
      .multiply_32 = 4,             // D LLVM: full rate since gfx90a
      .memory_port_shared = false,  // D rocprofiler-compute: classes of their own
  };
  p.matrix = {.port = 4,          // D calculator; M PYH: three vector instructions fit 16 clocks
              .extra = 16,        // D ISA: 11 wait states after 32 clocks, 7 after 16
              .packed_drain = 8,  // M PYH
              .packed_excluded = true};
  p.lds = {.port_bytes = 64,      // D rocprofiler-compute; M PYH
           .latency = 48,         // M PYH: 52 for 4 bytes, 64 for 16 bytes, idle
           .write_factor = 1.35,  // M PYH: 27 clocks for 16 bytes
           .wave_gap = 10,        // M PYH: one wave 15, 18, 26 clocks for 4, 8, 16 bytes
           .queue = 8,            // M GLU (gfx950)
           .banks_shared = true};
  p.memory = {.l1_bytes = 32768,  // D white paper
              .l1_latency = 120,  // M RRZE
              .l1_rate = 64,      // M PYH, RRZE
              .line_clocks = 2,   // D GLU
              .least_clocks = 4,
              .two_dwords = 16,           // D GLU
              .queue = 16,                // M PYH
              .in_flight = 49152,         // M PYH
              .l2_latency = 213,          // M RRZE
              .l2_bytes = 4e6,            // D white paper
              .l2_rate = 64,              // M PYH: 64 bytes per clock with two waves on each SIMD
              .l2_xcd_rate = 2048 * 0.8,  // M RRZE: 27.6 of 34.4 TB/s
              .mall_bytes = 256e6,        // D white paper
              .mall_latency_ns = 220,     // M RRZE: 455 clocks at 2.1 GHz
              .mall_rate = 11.9e12,       // M CC
              .memory_latency_ns = 420,   // M RRZE: 880 clocks at 2.1 GHz
              .memory_rate = 4.2e12,      // M BabelStream
              .store_latency = 300,       // X
              .atomic_clocks = 8,         // X
              .scalar_latency = 120};     // X
  p.chip = {
      .replacement = 529,  // M PYH
      .launch_us = 5,      // M PYH
      // The clock that 750 W leave: the line of least squares through six published points, whose
      // distance from it is 8 %: 94 % busy 1.207 GHz in bf16, 1.115 in f16 (D MAF), 74 % 1.345,
      // 62 % 1.49 (M GLU gfx942, cool and hot), 82 % 1.16, 72 % 1.10 (X AITER's attention: its
      // published TFLOP/s by its matrix share).
      .busy_low = 25,  // X
      .busy_high = 62,
      .clock_busy = 1374,
      .clock_slope = -7.8};
  return p;
}

CycleModelParameters cdna4() {
  CycleModelParameters p = cdna3();
  p.issue.transcendental = 8;  // D white paper: twice the rate
  p.issue.transcendental_latency = 8;
  p.issue.memory_port_shared = true;  // M GLU
  p.matrix.port = 8;                  // M GLU: six vector instructions fit 32 clocks
  p.matrix.extra = 20;                // D ISA: 12 wait states after 32 clocks, 8 after 16
  p.lds.port_bytes = 128;             // M GLU
  p.lds.wave_gap = 0;                 // M GLU: eight accesses in a row at 4 clocks each
  p.memory.queue = 12;                // M GLU
  p.memory.in_flight = 45056;         // M GLU: 32 KB and 12 KB of queue
  p.memory.memory_rate = 6.5e12;      // M attainable part of 8.0
  // M GLU: 2714 − 12.42 · busy MHz over 68 to 95 %; the slowest XCD has 0.925 of it
  p.chip.busy_low = (2714 * 0.925 - 2400) / (12.42 * 0.925);
  p.chip.busy_high = 100;
  p.chip.clock_busy = 0.925 * (2714 - 1242);
  p.chip.clock_slope = 0;
  return p;
}

CycleModelParameters cdna2() {
  CycleModelParameters p = cdna3();
  p.memory.l1_bytes = 16384;         // D
  p.memory.l1_latency = 128;         // M
  p.memory.l2_latency = 250;         // M
  p.memory.l2_bytes = 8e6;           // D
  p.memory.l2_xcd_rate = 2048;       // D 32 channels of 64 bytes
  p.memory.mall_bytes = 0;           // none
  p.memory.memory_latency_ns = 380;  // M 586 to 690 clocks
  p.memory.memory_rate = 1.3e12;     // M
  p.lds.wave_gap = 10;               // X as MI308X
  p.chip.busy_high = 70;             // X
  p.chip.clock_busy = 1500;          // X
  p.chip.clock_slope = 0;
  return p;
}

CycleModelParameters cdna1() {
  CycleModelParameters p = cdna2();
  p.issue.multiply_32 = 16;       // D LLVM: a quarter of the rate before gfx90a
  p.matrix.extra = 12;            // D LLVM: 18 wait states after 64 clocks
  p.memory.memory_rate = 1.0e12;  // X attainable part of 1.23 TB/s (D data sheet)
  p.chip.clock_busy = 1502;       // X no curve is known
  return p;
}

CycleModelParameters gcn5() {
  CycleModelParameters p = cdna1();
  p.matrix.port = 0;               // none
  p.memory.l2_bytes = 4e6;         // D
  p.memory.l2_xcd_rate = 1024;     // D 16 channels of 64 bytes
  p.memory.memory_rate = 0.85e12;  // X attainable part of 1.02 TB/s (D data sheet)
  p.chip.clock_busy = 1725;        // X no curve is known
  return p;
}

CycleModelParameters rdna3() {
  CycleModelParameters p{};
  p.issue = {
      .issue_period = 1,
      .vector = 1,
      .transcendental = 4,           // M TGN
      .transcendental_unit = true,   // M TGN
      .vector_latency = 5,           // D ISA; M TGN
      .transcendental_latency = 27,  // M TGN
      .scalar_latency = 2,           // M TGN
      .scalar_to_vector = 4,         // M TGN
      .vector_to_scalar = 10,        // X
      .branch_taken = 32,            // D LLVM
      .barrier = 6,                  // M TGN
      .nop = 1,
      .multiply_32 = 4,  // D LLVM
      .memory_port_shared = false,
  };
  p.matrix = {
      .port = 0, .extra = 5, .packed_drain = 0, .packed_excluded = false};  // D WMMA is vector work
  p.lds = {.port_bytes = 128,  // D a CU's half of a WGP
           .latency = 30,      // M TGN: 31 to 36
           .write_factor = 1,
           .wave_gap = 5,  // M TGN: 6 clocks of service per access
           .queue = 8,     // X
           .banks_shared = false};
  p.memory = {.l1_bytes = 32768,
              .l1_latency = 73,  // M RRZE (RDNA2)
              .l1_rate = 64,
              .line_clocks = 2,    // X
              .least_clocks = 2,   // X
              .two_dwords = 4,     // X
              .queue = 16,         // X
              .in_flight = 32768,  // X
              .l2_latency = 200,   // X
              .l2_bytes = 6e6,     // D
              .l2_rate = 64,
              .l2_xcd_rate = 1300,       // M 3.25 TB/s at 2.5 GHz
              .mall_bytes = 96e6,        // D
              .mall_latency_ns = 150,    // M CC
              .mall_rate = 2.5e12,       // X
              .memory_latency_ns = 235,  // M
              .memory_rate = 0.8e12,
              .store_latency = 200,   // X
              .atomic_clocks = 8,     // X
              .scalar_latency = 60};  // X
  p.chip = {.replacement = 300,       // X
            .launch_us = 5,           // X
            .busy_low = 100,
            .busy_high = 100,
            .clock_slope = 0};
  return p;
}

CycleModelParameters rdna4() {
  CycleModelParameters p = rdna3();
  p.issue.transcendental_unit = false;  // D LLVM
  p.issue.transcendental_latency = 10;  // D LLVM
  p.memory.l2_bytes = 8e6;
  p.memory.mall_bytes = 64e6;
  p.memory.mall_latency_ns = 130;
  p.memory.memory_latency_ns = 226;
  p.memory.memory_rate = 0.64e12;
  return p;
}

CycleModelParameters rdna2() {
  CycleModelParameters p = rdna3();
  p.memory.l2_bytes = 4e6;
  p.memory.mall_bytes = 128e6;
  p.memory.memory_latency_ns = 226;
  p.memory.memory_rate = 0.5e12;
  return p;
}

CycleModelParameters family(const Target& target) {
  switch (target.generation) {
    case Generation::Gfx9:
      if (target.name == "gfx906") return gcn5();
      if (target.name == "gfx908") return cdna1();
      return target.name == "gfx950" ? cdna4() : target.name == "gfx90a" ? cdna2() : cdna3();
    case Generation::Gfx10:
      return rdna2();
    case Generation::Gfx11:
      return rdna3();
    default:
      return rdna4();
  }
}

}  // namespace

CycleModelParameters cycle_model_parameters(const Target& target) {
  CycleModelParameters p = family(target);
  p.card = target.card;
  p.chip.cus = target.is_cdna() ? target.compute_units : target.compute_units / 2;
  p.chip.xcds = target.xcds;
  p.chip.clock_highest = target.clock_khz / 1000.0;
  // X no curve is known for RDNA: the boost clock.
  if (!target.is_cdna()) p.chip.clock_busy = p.chip.clock_highest;
  return p;
}

}  // namespace rocflash::sim
