// The rule that holds every device to the oracle: its error may be at most twice (forward) or three
// times (gradients) the error of plain attention in the same dtype, or of one rounding if plain
// attention is luckier than that.
#pragma once

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
  double bound = 0;        // what the error may be
  std::string defect;      // a fact that has to hold exactly and does not; empty: none

  double ratio() const { return error <= bound ? (bound > 0 ? error / bound : 0) : error / bound; }
  bool good() const { return defect.empty() && error <= bound; }
};

struct Trio {
  std::vector<double> reference, plain, device;
};

// `rounding` is the dtype whose single rounding is always allowed.
Finding judge(std::string tensor, const Trio& values, DType rounding, bool gradient);

}  // namespace rocflash::verify
