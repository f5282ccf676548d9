// Split-KV partial results, to be combined into attention over all keys. Host and device code share
// this layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "core/names.hpp"

namespace rocflash::core {

// An lse of +infinity or -infinity marks a split without visible keys.
struct Partials {
  std::int64_t splits = 0, batch = 0, queries = 0, heads = 0, columns = 0;
  const float* out_partial = nullptr;       // [split][batch][query][head][column]
  std::int64_t out_partial_stride[5] = {};  // in elements, here and below
  const float* lse_partial = nullptr;       // [split][batch][head][query]
  std::int64_t lse_partial_stride[4] = {};
  std::byte* out = nullptr;  // [batch][query][head][column]
  DType out_dtype = DType::f32;
  std::int64_t out_stride[4] = {};
  float* lse = nullptr;  // [batch][head][query]; null: not written
  std::int64_t lse_stride[3] = {};
};

}  // namespace rocflash::core
