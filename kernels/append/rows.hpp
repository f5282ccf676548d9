// Appends new K and V to the KV cache, with RoPE, and applies RoPE to Q. Each wave handles one row
// of one head at a time; its lanes split the columns.
//
// Sequence lengths are in device memory, so the kernel computes the destination of each row: it
// follows the used keys of its sequence. Rows past the end of the cache are not written. Positions
// past the sine and cosine tables are clamped to the last row.
#pragma once

#include "arch/arch.hpp"
#include "attention/elements.hpp"
#include "attention/quantized.hpp"
#include "table/append.hpp"

namespace rocflash::kernel {

class Appender {
 public:
  explicit Appender(const AppendArguments& a) : a_(a), p_(a.problem), new_(a.append) {}

  std::int64_t key_rows() const {
    return !new_.k ? 0 : new_.cu ? new_.rows : new_.rows * p_.batch();
  }
  std::int64_t query_rows() const {
    return !a_.q ? 0 : p_.lengths.packed_q() ? p_.lengths.rows_q : p_.batch() * p_.lengths.rows_q;
  }

  // The used keys of a sequence after the append.
  std::int32_t used(std::int64_t b) const {
    const std::int64_t begin = new_.cu ? clamp(arch::load(new_.cu + b), 0, new_.rows) : 0;
    const std::int64_t end =
        new_.cu ? clamp(arch::load(new_.cu + b + 1), begin, new_.rows) : new_.rows;
    return static_cast<std::int32_t>(clamp(keys_before(b) + end - begin, 0, p_.lengths.rows_k));
  }

  // One head of row n of the new K and V.
  void append_key(std::int64_t n, std::int64_t head) const {
    const std::int64_t b = new_.cu ? sequence_of_row(new_.cu, p_.batch(), n) : n / new_.rows;
    if (b < 0) return;  // a packed row outside all sequences
    const std::int64_t row = new_.cu ? n : n % new_.rows,
                       index = row - (new_.cu ? arch::load(new_.cu + b) : 0),
                       cache_row = keys_before(b) + index;
    if (cache_row < 0 || cache_row >= p_.lengths.rows_k) return;
    copy(row_address(new_.v, 1, b, row, head), new_.v.dtype,
         target(p_.v, p_.v_descale, b, cache_row, head), 0, p_.value_dim);
    rotate(first_position(b) + index, row_address(new_.k, 1, b, row, head), new_.k.dtype,
           target(p_.k, p_.k_descale, b, cache_row, head));
  }

  // One head of row n of Q.
  void rotate_query(std::int64_t n, std::int64_t head) const {
    const Lengths& l = p_.lengths;
    const std::int64_t b = l.packed_q() ? sequence_of_row(l.cu_q, p_.batch(), n) : n / l.rows_q;
    if (b < 0) return;
    const std::int64_t row = l.packed_q() ? n : n % l.rows_q,
                       index = row - (l.packed_q() ? arch::load(l.cu_q + b) : 0);
    rotate(first_position(b) + (p_.visibility.bounded() ? index : 0),
           row_address(p_.q, 1, b, row, head), p_.q.dtype,
           {row_address(a_.q, 1, b, row, head), p_.q.dtype});
  }

 private:
  // A row to write. One of 8 bits quantizes numbers with its scale.
  struct Target {
    std::byte* row;
    DType dtype;
    float descale = 1;

    void store(std::int64_t column, float x) const {
      if (is_8_bit(dtype)) {
        arch::store(reinterpret_cast<std::uint8_t*>(row) + column, encode(dtype, x / descale));
      } else {
        store_element(row, dtype, column, x);
      }
    }
  };
  Target target(const Rows& cache, const Descale& descale, std::int64_t b, std::int64_t row,
                std::int64_t head) const {
    return {row_address(cache, a_.caches, b, row, head), cache.dtype,
            scale_of(descale, cache, a_.caches, b, row, head)};
  }

  std::int64_t keys_before(std::int64_t b) const {
    const Lengths& l = p_.lengths;
    const std::int64_t keys =
        l.used_k ? arch::load(l.used_k + b)
        : l.cu_k ? std::int64_t{arch::load(l.cu_k + b + 1)} - arch::load(l.cu_k + b)
                 : l.rows_k;
    return clamp(keys, 0, l.rows_k);
  }
  std::int64_t first_position(std::int64_t b) const {
    const std::int32_t* first = new_.rotary.first;
    return first ? arch::load(first + b) : keys_before(b);
  }

  static void copy(const std::byte* from, DType dtype, const Target& to, int begin, int end) {
    for (int column = begin + arch::lane(); column < end; column += arch::wave_size) {
      if (dtype == to.dtype) {
        copy_element(from, to.row, dtype, column);
      } else {
        to.store(column, load_element(from, dtype, column));
      }
    }
  }
  // No FMA contraction: the products are rounded before the addition, as on the CPU.
  void rotate(std::int64_t position, const std::byte* from, DType dtype, const Target& to) const {
#pragma clang fp contract(off)
    const Rotary& r = new_.rotary;
    const int half = r.positions > 0 ? r.dim / 2 : 0, step = r.interleaved ? 2 : 1,
              partner = r.interleaved ? 1 : half;
    position = clamp(position, 0, r.positions - 1);
    for (int n = arch::lane(); n < half; n += arch::wave_size) {
      const float c = load_element(r.cos, r.dtype, position * r.cos_stride + n),
                  s = load_element(r.sin, r.dtype, position * r.sin_stride + n);
      const float x = load_element(from, dtype, n * step),
                  y = load_element(from, dtype, n * step + partner);
      to.store(n * step, x * c - y * s);
      to.store(n * step + partner, x * s + y * c);
    }
    copy(from, dtype, to, r.dim, p_.head_dim);
  }

  const AppendArguments& a_;
  const Problem& p_;
  const Append& new_;
};

template <KernelSpec spec>
void append(const AppendArguments& a) {
  constexpr int threads = append_tile.threads, waves = threads / arch::wave_size;
  const Problem& p = a.problem;
  const Appender appender(a);
  if (a.used) {
    for (std::int64_t b = arch::workgroup_id() * std::int64_t{threads} + arch::thread();
         b < p.batch(); b += std::int64_t{a.workgroups} * threads)
      arch::store(a.used + b, appender.used(b));
  }
  const std::int64_t keys = appender.key_rows() * p.kv_heads,
                     queries = appender.query_rows() * p.heads;
  // All lanes of a wave have the same row; not marked uniform, as in weights/rows.hpp.
  const std::int64_t first =
      arch::workgroup_id() * std::int64_t{waves} + arch::thread() / arch::wave_size;
  for (std::int64_t n = first; n < keys + queries; n += std::int64_t{a.workgroups} * waves) {
    if (n < keys) {
      appender.append_key(n / p.kv_heads, n % p.kv_heads);
    } else {
      appender.rotate_query((n - keys) / p.heads, (n - keys) % p.heads);
    }
  }
}

}  // namespace rocflash::kernel
