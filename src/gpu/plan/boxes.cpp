#include "gpu/plan/boxes.hpp"

#include <limits>
#include <numeric>

#include "gpu/plan/sequences.hpp"

namespace rocflash::gpu {

// A dimension of one element has any stride, so the door's 0 is replaced; one that repeats elements has
// no map.
std::optional<TensorBox> box_of(const Rows& rows, std::int64_t count, std::int64_t heads,
                                std::int64_t batches) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max(), unit = 16,
                         farthest = std::int64_t{1} << 40;
  TensorBox box{.data = rows.data, .dtype = rows.dtype};
  const auto bytes = static_cast<std::int64_t>(size_of(rows.dtype));
  const std::int64_t sizes[] = {rows.columns, count, heads, batches};
  const std::int64_t strides[] = {rows.row_stride, rows.head_stride, rows.batch_stride};
  for (int n = 0; n < TensorBox::dimensions; ++n) {
    if (sizes[n] < 1 || sizes[n] > most) return std::nullopt;
    box.sizes[n] = static_cast<std::uint64_t>(sizes[n]);
    if (n == 0) continue;
    const std::int64_t stride = sizes[n] == 1 ? unit : strides[n - 1] * bytes;
    if (stride <= 0 || stride % unit != 0 || stride >= farthest) return std::nullopt;
    box.strides[n - 1] = static_cast<std::uint64_t>(stride);
  }
  if (reinterpret_cast<std::uintptr_t>(rows.data) % unit != 0) return std::nullopt;
  return box;
}

std::optional<TensorBox> box_of_keys(const Rows& rows, const Problem& p) {
  const Lengths& l = p.lengths;
  return rows.blocks ? box_of(rows, rows.block_rows, p.kv_heads, caches_of(p))
                     : box_of(rows, l.rows_k, p.kv_heads, l.packed_k() ? 1 : p.batch());
}

std::int32_t copied_rows(const Problem& p, int keys) {
  constexpr std::int64_t pattern_rows = 8;
  if (!p.k.blocks || p.k.block_rows >= p.lengths.rows_k) return keys;
  const std::int64_t rows = std::gcd(std::int64_t{keys}, p.k.block_rows);
  return rows < pattern_rows ? 0 : static_cast<std::int32_t>(rows);
}

TensorBox panel_of(TensorBox box, int bucket, int rows, kernel::TensorMap& to) {
  box.columns = static_cast<std::uint32_t>(bucket % 64 == 0 ? 64 : 32);  // Panels::width
  box.rows = static_cast<std::uint32_t>(rows);
  box.map = &to;
  return box;
}

}  // namespace rocflash::gpu
