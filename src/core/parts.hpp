// Attention over parts of the keys, to be merged into attention over all of them: data that hosts and
// GPUs read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "core/names.hpp"

namespace rocflash::core {

// A part whose lse is +infinity or -infinity is empty.
struct Parts {
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
};

}  // namespace rocflash::core
