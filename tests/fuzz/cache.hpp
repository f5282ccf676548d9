// One drawn call of rocflash_decode, valid by construction: a cache, dense, chosen by index or
// paged, what is appended to it, rotary embedding, and the options of decoding.
#pragma once

#include <rocflash/rocflash.h>

#include "fuzz/bytes.hpp"
#include "fuzz/damage.hpp"
#include "fuzz/problem.hpp"
#include "fuzz/tensor.hpp"

namespace rocflash::fuzz {

class CacheCall {
 public:
  // As in Problem: `exact` memory, or roomy memory whose DLTensors may be damaged.
  CacheCall(Bytes& bytes, bool exact);
  CacheCall(const CacheCall&) = delete;

  // Leaves it invalid or, if it is accepted, within the memory that is there.
  void damage(Bytes& bytes);
  // How far two right answers of out and lse may be apart. The caches must be equal.
  double out_bound(double largest) const;
  double lse_bound() const;
  void print() const;

  Tensor q, k, v, out, lse;
  Roomy<rocflash_problem> problem{};
  Roomy<rocflash_append> append{};
  Roomy<rocflash_forward_outputs> outputs{};
  Roomy<rocflash_execution> execution{};

 private:
  enum class Kind { dense, chosen, paged };

  void draw_cache(Bytes& bytes, Bytes* strides);
  void draw_new(Bytes& bytes, Bytes* strides);
  void draw_rotary(Bytes& bytes);
  void draw_options(Bytes& bytes);
  void fill(Bytes& bytes);
  ScoreErrors errors() const;

  int b, h, hk, sq, d, dv, page = 1;
  int room;  // rows that each sequence's cache has
  Kind kind;
  DType dtype, cache;
  std::vector<int> queries, used, fresh;  // of each sequence: queries, keys so far, new keys
  Tensor k_new, v_new, cu_new, cos, sin, begins;
  Tensor cu_q, used_k, leftpad, table, index, alibi, sinks;
  std::int64_t window[2];
};

}  // namespace rocflash::fuzz
