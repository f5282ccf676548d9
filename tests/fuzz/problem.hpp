// One drawn problem with all its tensors, valid by construction, and the error that rounding alone
// may cause in it.
#pragma once

#include <rocflash/rocflash.h>

#include <vector>

#include "fuzz/bytes.hpp"
#include "fuzz/tensor.hpp"

namespace rocflash::fuzz {

struct Outputs {
  Tensor out, lse, s_dmask, dq, dk, dv, dsinks, dbias, dalibi;
  Tensor* all[9] = {&out, &lse, &s_dmask, &dq, &dk, &dv, &dsinks, &dbias, &dalibi};
};
inline constexpr const char* output_names[] = {"out", "lse",    "s_dmask", "dq",           "dk",
                                               "dv",  "dsinks", "dbias",   "dalibi_slopes"};

constexpr double unit(DType t) {
  return t == DType::f32 ? 0x1p-24 : t == DType::f16 ? 0x1p-11 : 0x1p-8;
}

// A first-order account of what float arithmetic does to scores and weights.
struct ScoreSizes {
  int d, sk;
  double dot;    // the size of a score
  double cap;    // softcap, or 0
  double added;  // the size of what is added to it: bias, ALiBi, sinks
};
struct ScoreErrors {
  double raw;     // of a score before softcap
  double total;   // the size of a score with all that is added
  double score;   // its error
  double weight;  // relative error of a weight
};
ScoreErrors score_errors(const ScoreSizes& sizes);
// What they do to a sum of weighted values of this size, before it is stored.
double out_error(const ScoreErrors& errors, int sk, double values, DType dtype);

// A window of up to `most` keys to each side, or none there.
void draw_window(Bytes& bytes, int most, std::int64_t (&window)[2], rocflash_problem& c);

class Problem {
 public:
  // `exact` memory for sanitizers, or roomy memory whose DLTensors may be damaged.
  Problem(Bytes& bytes, bool exact);
  Problem(const Problem&) = delete;

  void want_no_option_gradients() {
    wants_dbias = wants_dalibi = false;
    wants[0] |= !wants[1] && !wants[2] && !wants_dsinks;
  }
  // Outputs as the caller asked for them; `judge` gives f64 where the reference may.
  void make_outputs(Outputs& o, bool judge, Bytes* strides) const;
  void plug(const Outputs& o, rocflash_forward_outputs& f, rocflash_backward_tensors& b) const;

  // Whether results can be compared: ordinary numbers and options within reason.
  bool comparable() const;
  // For each output, how far two right answers may be apart.
  std::vector<double> bounds(const Outputs& reference) const;

  std::vector<Tensor*> inputs();
  void print() const;  // to stderr, all that is not the default

  int b, h, hk, sq, sk, d, dv;
  int total_q, total_k;  // rows of packed tensors
  bool packed;
  DType dtype;
  bool wants_lse, wants_s_dmask, wants[3], wants_dsinks, wants_dbias, wants_dalibi;
  Tensor q, k, v, dout, cu_q, cu_k, used_q, used_k, leftpad, mask, alibi, bias, sinks;
  std::int64_t window[2];
  float scale;
  rocflash_problem c{};

 private:
  void draw_lengths(Bytes& bytes);
  void draw_options(Bytes& bytes, Bytes* strides);
  void fill(Bytes& bytes);
};

}  // namespace rocflash::fuzz
