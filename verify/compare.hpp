// The error bound. The error of a device against the reference implementation may be at most twice
// (gradients: three times) the error of naive attention in the same dtype, or that factor times one
// rounding if naive attention is more accurate than that.
//
// An error is the maximum over all elements, so the result of one draw of a small problem is noisy.
// A case that exceeds the bound is repeated with a fixed number of further draws, and the bound is
// then applied to root mean squares over all draws. Neither one unlucky element nor one lucky draw
// decides the outcome.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "verify/case.hpp"

namespace rocflash::verify {

inline constexpr double forward_factor = 2, gradient_factor = 3;

// The comparison of one output tensor of one case with the reference.
struct Comparison {
  std::string tensor;  // "out", "lse", "s_dmask", "dq", "dk", "dv", "dsinks", "dbias", ...
  bool gradient = false;
  double error = 0;        // largest difference from the reference
  double naive_error = 0;  // that of naive attention
  double rounding = 0;     // one rounding of the largest value
  std::string defect;      // an exact requirement that is violated; empty: none

  // The largest allowed error.
  double bound() const {
    return (gradient ? gradient_factor : forward_factor) * std::max(naive_error, rounding);
  }
  // Error as a share of the bound; at most 1 if the comparison is good.
  double ratio() const { return error > 0 ? error / bound() : 0; }
  bool good() const { return defect.empty() && error <= bound(); }

  // Adds the same tensor of the n-th draw: errors become root mean squares over all draws.
  void pool(const Comparison& other, int n) {
    const auto add = [&](double& rms, double next) {
      rms = std::hypot(rms * std::sqrt(n - 1.0), next) / std::sqrt(n);
    };
    add(error, other.error);
    add(naive_error, other.naive_error);
    add(rounding, other.rounding);
    if (defect.empty()) defect = other.defect;
  }
};

// The values of one tensor from the reference, naive attention and the device under test.
struct ComparedTensor {
  std::vector<double> reference, naive, device;
};

struct Tolerance {
  DType rounding = DType::f32;  // one rounding to this dtype is always allowed
  bool gradient = false;
  bool same_signs = false;         // s_dmask: the sign says whether dropout dropped the weight
  std::vector<bool> exact_zero{};  // elements that must be exactly 0; empty: none
};

Comparison compare(std::string tensor, const ComparedTensor& values, const Tolerance& tolerance);

}  // namespace rocflash::verify
