// The rule that holds every device to the oracle: its error may be at most twice (forward) or three
// times (gradients) the error of plain attention in the same dtype, or of one rounding if plain
// attention is luckier than that. Errors are the largest over all elements of a tensor; of a small
// problem, whose few elements say little, several draws are taken, for both sides alike.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "verify/case.hpp"

namespace rocflash::verify {

inline constexpr double forward_factor = 2, gradient_factor = 3;

// How one output tensor of one case came out.
struct Finding {
  std::string tensor;  // "out", "lse", "s_dmask", "dq", "dk", "dv", "dsinks"
  bool gradient = false;
  double error = 0;        // largest difference from the reference
  double plain_error = 0;  // that of plain attention
  double rounding = 0;     // one rounding of the largest value
  std::string defect;      // a fact that has to hold exactly and does not; empty: none

  // What the error may be.
  double bound() const {
    return (gradient ? gradient_factor : forward_factor) * std::max(plain_error, rounding);
  }
  // Up to 1 is good.
  double ratio() const { return error > 0 ? error / bound() : 0; }
  bool good() const { return defect.empty() && error <= bound(); }

  // Takes in the same tensor of another draw.
  void pool(const Finding& other) {
    error = std::max(error, other.error);
    plain_error = std::max(plain_error, other.plain_error);
    rounding = std::max(rounding, other.rounding);
    if (defect.empty()) defect = other.defect;
  }
};

// One tensor as each of the three computed it.
struct Trio {
  std::vector<double> reference, plain, device;
};

struct Rule {
  DType rounding = DType::f32;  // whose single rounding is always allowed
  bool gradient = false;
  bool same_signs = false;         // s_dmask: the sign tells what dropout did
  std::vector<bool> exact_zero{};  // elements that must be 0 and not merely near it; empty: none
};

Finding judge(std::string tensor, const Trio& values, const Rule& rule);

}  // namespace rocflash::verify
