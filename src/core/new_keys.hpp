// Keys and values to append to the KV cache, and their rotary embedding. Shared by host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/names.hpp"
#include "core/problem.hpp"

namespace rocflash::core {

// Rotates pairs of the first `dim` columns by an angle proportional to the position.
struct Rotary {
  const std::byte *cos = nullptr, *sin = nullptr;  // [position][pair]
  DType dtype = DType::f32;
  std::int64_t cos_stride = 0, sin_stride = 0;
  std::int64_t positions = 0;  // rows of both tables
  int dim = 0;                 // 0: no rotation
  bool interleaved = false;
  const std::int32_t* first =
      nullptr;  // position of each sequence's first new key; null: its position in the cache
};

struct Append {
  Rows k, v;  // null data: nothing is appended
  const std::int32_t* cu = nullptr;
  std::int64_t rows = 0;  // of k and v: per sequence, or total if packed
  Rotary rotary;

  std::int64_t count(std::int64_t b) const { return !k ? 0 : cu ? cu[b + 1] - cu[b] : rows; }
  std::int64_t begin(std::int64_t b) const { return cu ? cu[b] : 0; }
};

}  // namespace rocflash::core
