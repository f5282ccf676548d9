// Quantized K and V: the scales of rows, and the conversion of elements. The 8-bit dtype is an
// argument: kernels for quantized K and V are compiled once for all of them, and listed as i8.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/sequence.hpp"

namespace rocflash::kernel {

// How a kernel decodes elements of K and V: it supports no 8-bit dtype; by arithmetic; by a table.
enum class Codes : std::uint8_t { none, computed, table };

// The value of every code, in shared memory. Decoding by arithmetic would take a dozen instructions
// per element, and more SGPRs than the FP32 path has left.
inline constexpr int code_count = 256;
using CodeValues = const ROCFLASH_SHARED float*;

// By all threads of a workgroup; a barrier must follow.
inline void fill_code_values(ROCFLASH_SHARED float* values, DType dtype, int threads) {
  for (int code = arch::thread(); code < code_count; code += threads)
    values[code] = decode(dtype, static_cast<std::uint8_t>(code));
}
// Four codes in a word.
inline Float4 decode_quad(CodeValues values, std::uint32_t codes) {
  return {values[codes & 0xffu], values[codes >> 8 & 0xffu], values[codes >> 16 & 0xffu],
          values[codes >> 24]};
}

inline float load_code(const std::byte* row, DType t, std::int64_t index) {
  return decode(t, arch::load(reinterpret_cast<const std::uint8_t*>(row) + index));
}

// The scale of a row, which may be in a page of the KV cache.
inline float scale_of(const Descale& descale, const Rows& rows, std::int32_t caches,
                      std::int64_t batch, std::int64_t row, std::int64_t head) {
  if (!descale.data) return 1;
  if (!descale.per_sequence) find_page(rows, caches, batch, row);
  return arch::load(descale.data + batch * descale.batch_stride + row * descale.row_stride +
                    head * descale.head_stride);
}

}  // namespace rocflash::kernel
