// VOPC: comparisons into a lane mask, and into exec.
#include <cmath>

#include "isa/comparisons.h"
#include "isa/elementwise.h"
#include "isa/lane_math.h"

namespace rocflash::sim {
namespace {

// v_cmp_class: one bit of the second operand for each kind of number.
template <typename T>
bool number_class(T x, u32 wanted) {
  using B = typename FloatLayout<T>::Bits;
  const B bits = bits_of(x);
  const B sign = B(B(1) << (sizeof(B) * 8 - 1));
  const B magnitude = B(bits & B(~sign));
  const bool negative = (bits & sign) != 0;
  const B infinity = B(B(~sign) >> FloatLayout<T>::kMantissa << FloatLayout<T>::kMantissa);
  u32 bit;
  if (magnitude > infinity) {
    bit = is_signaling(x) ? 0 : 1;
  } else if (magnitude == infinity) {
    bit = negative ? 2 : 9;
  } else if (magnitude == 0) {
    bit = negative ? 5 : 6;
  } else if (magnitude >> FloatLayout<T>::kMantissa == 0) {
    bit = negative ? 4 : 7;
  } else {
    bit = negative ? 3 : 8;
  }
  return (wanted >> bit & 1) != 0;
}

// Every comparison exists as v_cmp (into a mask) and v_cmpx (into exec).
template <auto F>
void both(Registry& r, std::string_view into_mask, std::string_view into_exec) {
  r.add(into_mask, vop<F>());
  r.add(into_exec, vop<F>(Propagation::Any, flag::kCompareExec));
}

// Names must outlive the registry, so each is spelled out as a literal.
#define ROCFLASH_SIM_COMPARE(name, type, expression) \
  both<[](type a, type b) -> bool { return expression; }>(r, "v_cmp_" name, "v_cmpx_" name)

#define ROCFLASH_SIM_INTEGER(suffix, type)                            \
  ROCFLASH_SIM_COMPARE("f_" suffix, type, ((void)a, (void)b, false)); \
  ROCFLASH_SIM_COMPARE("lt_" suffix, type, a < b);                    \
  ROCFLASH_SIM_COMPARE("eq_" suffix, type, a == b);                   \
  ROCFLASH_SIM_COMPARE("le_" suffix, type, a <= b);                   \
  ROCFLASH_SIM_COMPARE("gt_" suffix, type, a > b);                    \
  ROCFLASH_SIM_COMPARE("ne_" suffix, type, a != b);                   \
  ROCFLASH_SIM_COMPARE("ge_" suffix, type, a >= b);                   \
  ROCFLASH_SIM_COMPARE("t_" suffix, type, ((void)a, (void)b, true))

#define ROCFLASH_SIM_FLOAT(suffix, type)                               \
  ROCFLASH_SIM_COMPARE("f_" suffix, type, ((void)a, (void)b, false));  \
  ROCFLASH_SIM_FLOAT_COMPARISONS(ROCFLASH_SIM_COMPARE, suffix, type);  \
  ROCFLASH_SIM_COMPARE("tru_" suffix, type, ((void)a, (void)b, true)); \
  ROCFLASH_SIM_COMPARE("t_" suffix, type, ((void)a, (void)b, true))

void add_integer(Registry& r) {
  ROCFLASH_SIM_INTEGER("i32", i32);
  ROCFLASH_SIM_INTEGER("u32", u32);
  ROCFLASH_SIM_INTEGER("i64", i64);
  ROCFLASH_SIM_INTEGER("u64", u64);
  ROCFLASH_SIM_INTEGER("i16", i16);
  ROCFLASH_SIM_INTEGER("u16", u16);
}

void add_float(Registry& r) {
  ROCFLASH_SIM_FLOAT("f32", float);
  ROCFLASH_SIM_FLOAT("f64", double);
  ROCFLASH_SIM_FLOAT("f16", f16);
}

}  // namespace

void add_vopc(Registry& r) {
  add_integer(r);
  add_float(r);
  both<[](float x, u32 m) -> bool { return number_class(x, m); }>(r, "v_cmp_class_f32",
                                                                  "v_cmpx_class_f32");
  both<[](double x, u32 m) -> bool { return number_class(x, m); }>(r, "v_cmp_class_f64",
                                                                   "v_cmpx_class_f64");
  both<[](f16 x, u16 m) -> bool { return number_class(x, m); }>(r, "v_cmp_class_f16",
                                                                "v_cmpx_class_f16");
}

}  // namespace rocflash::sim
