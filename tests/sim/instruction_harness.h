// Tests of single instructions: a few lines of assembly between loads of v2..v9 (and s20..s27) and
// stores of v10..v13, on each listed target, against a lambda with the expected values of a lane.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <limits>
#include <random>

#include "asm_syntax.h"
#include "harness.h"

namespace rocflash::sim::test {

inline constexpr int kInputs = 8;   // v2..v9
inline constexpr int kOutputs = 4;  // v10..v13
inline constexpr u32 kPreset[kOutputs] = {0xaaaa1010, 0xbbbb1111, 0xcccc1212, 0xdddd1313};

struct Lane {
  std::array<u32, kInputs> v;  // v[0] is v2
  u32 index;
  const std::vector<std::array<u32, kInputs>>* all;  // of the wave
  const std::array<u32, 8>* s;                       // s20..s27
  [[nodiscard]] float f(int i) const { return std::bit_cast<float>(v[std::size_t(i)]); }
  [[nodiscard]] u32 of(int lane, int i) const { return (*all)[std::size_t(lane)][std::size_t(i)]; }
};

using Expect = std::function<void(const Lane& lane, u32* out)>;

struct InstructionCase {
  const char* name;
  std::vector<const char*> targets;
  std::string body;
  Expect expect;
  int wave = 0;         // 0: the target's own
  bool floats = false;  // inputs are edge values of f32
  bool halves = false;  // inputs are pairs of edge values of f16
  int lds = 0;
};

inline const std::vector<const char*> kAll = {"gfx906", "gfx908",  "gfx90a",  "gfx942",
                                              "gfx950", "gfx1030", "gfx1100", "gfx1201"};
inline const std::vector<const char*> kCdna = {"gfx90a", "gfx942", "gfx950"};
inline const std::vector<const char*> kGcn = {"gfx906", "gfx908", "gfx90a", "gfx942", "gfx950"};
inline const std::vector<const char*> kRdna = {"gfx1030", "gfx1100", "gfx1201"};

// Zeros, denormals, halfway cases, limits, infinities, quiet and signaling NaNs.
std::vector<u32> float_edges();
std::vector<u16> half_edges();
void run_case(const InstructionCase& c, const char* target);

// gtest names cannot hold lambdas or vectors; this flattens the table.
struct CaseOnTarget {
  const InstructionCase* c;
  const char* target;
};
std::vector<CaseOnTarget> flatten(const std::vector<InstructionCase>& cases);
std::string case_name(const testing::TestParamInfo<CaseOnTarget>& info);

}  // namespace rocflash::sim::test
