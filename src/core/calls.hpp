// The calls that backends are given, whole: what to compute, what to write, and with what.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/append.hpp"
#include "core/names.hpp"
#include "core/problem.hpp"

namespace rocflash::core {

// Threads or a stream, and the caller's scratch memory. Whether that is enough is checked by the
// backend, which knows how much it needs.
struct Resources : Execution {
  std::size_t workspace_size = 0;
};

struct ForwardCall {
  Problem problem;
  ForwardOutputs outputs;
  Resources resources;
};

// Forward over a cache, into which new keys and values are written first.
struct DecodeCall : ForwardCall {
  Append append;
};

struct BackwardCall {
  Problem problem;
  BackwardTensors tensors;
  Resources resources;
};

// Attention over parts of the keys, to be merged into attention over all of them.
struct CombineCall {
  std::int64_t parts = 0, batch = 0, queries = 0, heads = 0, columns = 0;
  const float* out_partial = nullptr;       // [part][batch][query][head][column]
  std::int64_t out_partial_stride[5] = {};  // in elements, here and below
  const float* lse_partial = nullptr;       // [part][batch][head][query]
  std::int64_t lse_partial_stride[4] = {};
  std::byte* out = nullptr;  // [batch][query][head][column]
  DType out_dtype = DType::f32;
  std::int64_t out_stride[4] = {};
  float* lse = nullptr;  // [batch][head][query]; null: not wanted
  std::int64_t lse_stride[3] = {};
  Resources resources;
};

}  // namespace rocflash::core
