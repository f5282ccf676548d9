#include "verify/compare.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "verify/scalar.hpp"

namespace rocflash::verify {
namespace {

// Why x contradicts the reference value r where either is not finite, or null. Finite differences
// are subject to the error bound instead.
const char* nonfinite_mismatch(double r, double x) {
  if (std::isnan(r)) return std::isnan(x) ? nullptr : "the reference is NaN";
  if (std::isnan(x)) return "the reference is a number";
  if (std::isinf(r)) return x == r ? nullptr : "the reference is infinite";
  if (std::isinf(x)) return "the reference is finite";
  return nullptr;
}

std::string defect_text(std::size_t n, double reference, double device, const char* why) {
  std::ostringstream text;
  text << "element " << n << " is " << device << " instead of " << reference << ": " << why;
  return text.str();
}

}  // namespace

Comparison compare(std::string tensor, const ComparedTensor& values, const Tolerance& tolerance) {
  Comparison f;
  f.tensor = std::move(tensor);
  f.gradient = tolerance.gradient;
  double largest = 0;
  for (std::size_t n = 0; n < values.reference.size(); ++n) {
    const double r = values.reference[n], x = values.device[n], y = values.naive[n];
    const char* why = nonfinite_mismatch(r, x);
    if (!why && !tolerance.exact_zero.empty() && tolerance.exact_zero[n] && x != 0)
      why = "it must be exactly 0";
    // The sign of a NaN has no meaning.
    const bool signs = tolerance.same_signs && r != 0 && x != 0 && !std::isnan(r);
    if (!why && signs && std::signbit(r) != std::signbit(x))
      why = "dropout must drop the same weights";
    if (why && f.defect.empty()) f.defect = defect_text(n, r, x, why);
    if (why || !std::isfinite(r)) continue;
    largest = std::max(largest, std::abs(r));
    f.error = std::max(f.error, std::abs(x - r));
    if (std::isfinite(y)) f.naive_error = std::max(f.naive_error, std::abs(y - r));
  }
  f.rounding = unit_roundoff(tolerance.rounding) * largest;
  return f;
}

}  // namespace rocflash::verify
