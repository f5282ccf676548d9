// Float comparisons, which SALU and VALU share. Names must outlive the
// registry, so each is a literal: `compare(name, type, expression of a and b)` registers one.
#pragma once

#define ROCFLASH_SIM_FLOAT_COMPARISONS(compare, suffix, type) \
  compare("lt_" suffix, type, a < b);                         \
  compare("eq_" suffix, type, a == b);                        \
  compare("le_" suffix, type, a <= b);                        \
  compare("gt_" suffix, type, a > b);                         \
  compare("lg_" suffix, type, (a < b || a > b));              \
  compare("ge_" suffix, type, a >= b);                        \
  compare("o_" suffix, type, (a == a && b == b));             \
  compare("u_" suffix, type, (a != a || b != b));             \
  compare("nge_" suffix, type, !(a >= b));                    \
  compare("nlg_" suffix, type, !(a < b || a > b));            \
  compare("ngt_" suffix, type, !(a > b));                     \
  compare("nle_" suffix, type, !(a <= b));                    \
  compare("neq_" suffix, type, !(a == b));                    \
  compare("nlt_" suffix, type, !(a < b))
