// Microkernels with published measurements, which validate the cycle model.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/types.h"

namespace rocflash::sim {

struct ValidationPoint {
  std::string target;
  std::string group;  // "issue", "lds", "memory", "chip"
  std::string name;
  std::string unit;  // "clk", "B/clk", "TB/s"
  double measured = 0;
  std::string source;
  double tolerance = 0.03;   // of the test; 0: reported only, the model does not meet it
  bool independent = false;  // no parameter was taken from it
  // The kernel: `prologue`, then `pattern` over and over.
  std::string prologue;
  std::string pattern;
  std::string other;      // what waves of the second half do instead
  int waves = 1;          // of the workgroup
  bool one_simd = false;  // only the first and every fourth wave works
  int repeats[2] = {64, 192};
  int instructions = 1;  // that one pattern counts for
  double subtract = 0;   // clocks of what belongs to the loop and not to what is measured
  double bytes = 0;      // of a pattern and wave: the value is a rate
  u64 buffer_bytes = 1 << 20;
  int groups_per_unit = 0;  // on each unit of the chip; 0: a single workgroup
};

std::vector<ValidationPoint> validation_points();

// Assembles a file for a target; throws std::runtime_error with the assembler's message.
using Assemble = std::function<std::vector<u8>(const std::string& text, const std::string& target)>;

struct Validated {
  ValidationPoint point;
  double model = 0;
  [[nodiscard]] double error() const { return model / point.measured - 1; }
  [[nodiscard]] bool holds() const;
};

std::vector<Validated> validate(std::span<const ValidationPoint> points, const Assemble& assemble);
std::string validation_table(std::span<const Validated> results);

}  // namespace rocflash::sim
