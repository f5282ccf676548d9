// A random problem with all its tensors, valid by construction, and the bounds of its rounding
// errors.
#pragma once

#include <rocflash/rocflash.h>

#include <vector>

#include "fuzz/bytes.hpp"
#include "fuzz/tensor.hpp"

namespace rocflash::fuzz {

struct Outputs {
  Tensor out, lse, s_dmask, dq, dk, dv, dsinks, dbias, dalibi, delta;
  Tensor* all[10] = {&out, &lse, &s_dmask, &dq, &dk, &dv, &dsinks, &dbias, &dalibi, &delta};
};
inline constexpr const char* output_names[] = {
    "out", "lse", "s_dmask", "dq", "dk", "dv", "dsinks", "dbias", "dalibi_slopes", "delta"};

constexpr double unit(DType t) {
  return t == DType::f32 ? 0x1p-24 : t == DType::f16 ? 0x1p-11 : 0x1p-8;
}

// First-order bounds of f32 rounding errors in scores and weights.
struct ScoreSizes {
  int d, sk;
  double dot;    // magnitude of a score
  double cap;    // softcap, or 0
  double added;  // magnitude of bias, ALiBi and sinks
};
struct ScoreErrors {
  double raw;     // error of a score before softcap
  double total;   // magnitude of a score with everything added
  double score;   // error of that score
  double weight;  // relative error of a weight
};
ScoreErrors score_errors(const ScoreSizes& sizes);
// The resulting error of a weighted sum of values of this magnitude, before it is stored.
double out_error(const ScoreErrors& errors, int sk, double values, DType dtype);

// Draws a window of up to `most` keys per side, or unbounded.
void draw_window(Bytes& bytes, int most, std::int64_t (&window)[2], rocflash_problem& c);

class Problem {
 public:
  // `exact` memory for sanitizers, or oversized memory whose DLTensors may be corrupted.
  Problem(Bytes& bytes, bool exact);
  Problem(const Problem&) = delete;

  void want_no_option_gradients() {
    wants_dbias = wants_dalibi = false;
    wants[0] |= !wants[1] && !wants[2] && !wants_dsinks;
  }
  // The requested outputs; `for_reference` makes them f64 where the reference supports it.
  void make_outputs(Outputs& o, bool for_reference, Bytes* strides) const;
  void set_pointers(const Outputs& o, rocflash_forward_outputs& f,
                    rocflash_backward_tensors& b) const;

  // Whether results can be compared: finite numbers and moderate options.
  bool comparable() const;
  // For each output, the allowed difference of two correct results.
  std::vector<double> bounds(const Outputs& reference) const;

  std::vector<Tensor*> inputs();
  void print() const;  // to stderr, without default values

  int b, h, hk, sq, sk, d, dv;
  int total_q, total_k;  // rows of varlen tensors
  bool varlen;
  DType dtype;
  bool wants_lse, wants_s_dmask, wants[3], wants_dsinks, wants_dbias, wants_dalibi, wants_delta;
  Tensor q, k, v, dout, cu_q, cu_k, used_q, used_k, leftpad, mask, alibi, bias, sinks, dlse;
  std::int64_t window[2];
  float scale;
  rocflash_problem c{};

 private:
  void draw_lengths(Bytes& bytes);
  void draw_options(Bytes& bytes, Bytes* strides);
  void fill(Bytes& bytes);
};

}  // namespace rocflash::fuzz
