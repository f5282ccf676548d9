// A random call of rocflash_decode, valid by construction: a dense, indexed or paged KV cache, the
// appended rows, rotary embedding, and the options of decode.
#pragma once

#include <rocflash/rocflash.h>

#include "fuzz/bytes.hpp"
#include "fuzz/corrupt.hpp"
#include "fuzz/problem.hpp"
#include "fuzz/tensor.hpp"

namespace rocflash::fuzz {

class CacheCall {
 public:
  // As in Problem: `exact` memory, or oversized memory whose DLTensors may be corrupted.
  CacheCall(Bytes& bytes, bool exact);
  CacheCall(const CacheCall&) = delete;

  // Makes the call invalid, or leaves it within its memory.
  void corrupt(Bytes& bytes);
  // The allowed difference of two correct results of out and lse. The caches must be equal.
  double out_bound(double largest) const;
  double lse_bound() const;
  void print() const;

  Tensor q, k, v, out, lse;
  Oversized<rocflash_problem> problem{};
  Oversized<rocflash_append> append{};
  Oversized<rocflash_forward_outputs> outputs{};
  Oversized<rocflash_execution> execution{};

 private:
  enum class Kind { dense, indexed, paged };

  void draw_cache(Bytes& bytes, Bytes* strides);
  void draw_new(Bytes& bytes, Bytes* strides);
  void draw_rotary(Bytes& bytes);
  void draw_options(Bytes& bytes);
  void fill(Bytes& bytes);
  ScoreErrors errors() const;

  int b, h, hk, sq, d, dv, page = 1;
  int capacity;  // rows of each sequence's cache
  Kind kind;
  DType dtype, cache;
  std::vector<int> queries, used, appended;  // per sequence: queries, cached keys, appended keys
  Tensor k_new, v_new, cu_new, cos, sin, rotary_start;
  Tensor cu_q, used_k, leftpad, table, index, alibi, sinks;
  std::int64_t window[2];
};

}  // namespace rocflash::fuzz
