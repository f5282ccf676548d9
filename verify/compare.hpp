// The rule that holds every device to the oracle: its error may be at most twice (forward) or three
// times (gradients) the error of plain attention in the same dtype, or of one rounding if plain
// attention is luckier than that. An error is the largest over all elements, so one draw of a small
// problem can be lucky for either side: a case over the bound gets more draws, always as many, and
// then both sides' errors are root mean squares over all of them. One unlucky element then does not
// decide, and one lucky draw does not help what is over the bound on the whole.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "verify/case.hpp"

namespace rocflash::verify {

inline constexpr double forward_factor = 2, gradient_factor = 3;

// How one output tensor of one case came out.
struct Finding {
  std::string tensor;  // "out", "lse", "s_dmask", "dq", "dk", "dv", "dsinks", "dbias", ...
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

  // Takes in the same tensor of the n-th draw: errors become root mean squares over all draws.
  void pool(const Finding& other, int n) {
    const auto mean = [&](double& so_far, double more) {
      so_far = std::hypot(so_far * std::sqrt(n - 1.0), more) / std::sqrt(n);
    };
    mean(error, other.error);
    mean(plain_error, other.plain_error);
    mean(rounding, other.rounding);
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
