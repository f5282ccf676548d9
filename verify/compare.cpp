#include "verify/compare.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "verify/scalar.hpp"

namespace rocflash::verify {
namespace {

// Why x cannot stand for the exact value r, or null. Differences that have a size are the bound's
// business.
const char* contradiction(double r, double x) {
  if (std::isnan(r)) return std::isnan(x) ? nullptr : "the reference is NaN there";
  if (std::isnan(x)) return "the reference is a number there";
  if (std::isinf(r)) return x == r ? nullptr : "the reference is infinite there";
  if (std::isinf(x)) return "the reference is finite there";
  return nullptr;
}

std::string defect_text(std::size_t n, double reference, double device, const char* why) {
  std::ostringstream text;
  text << "element " << n << " is " << device << " instead of " << reference << ": " << why;
  return text.str();
}

}  // namespace

Finding judge(std::string tensor, const Trio& values, const Rule& rule) {
  Finding f;
  f.tensor = std::move(tensor);
  f.gradient = rule.gradient;
  double largest = 0;
  for (std::size_t n = 0; n < values.reference.size(); ++n) {
    const double r = values.reference[n], x = values.device[n], y = values.plain[n];
    const char* why = contradiction(r, x);
    if (!why && !rule.exact_zero.empty() && rule.exact_zero[n] && x != 0)
      why = "it must be exactly 0";
    // The sign of a NaN says nothing.
    const bool signs = rule.same_signs && r != 0 && x != 0 && !std::isnan(r);
    if (!why && signs && std::signbit(r) != std::signbit(x)) why = "dropout must decide alike";
    if (why && f.defect.empty()) f.defect = defect_text(n, r, x, why);
    if (why || !std::isfinite(r)) continue;
    largest = std::max(largest, std::abs(r));
    f.error = std::max(f.error, std::abs(x - r));
    if (std::isfinite(y)) f.plain_error = std::max(f.plain_error, std::abs(y - r));
  }
  f.rounding = unit_roundoff(rule.rounding) * largest;
  return f;
}

}  // namespace rocflash::verify
