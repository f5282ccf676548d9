#include "core/append.hpp"

#include <cstring>

#include "core/packed.hpp"

namespace rocflash::core {
namespace {

constexpr std::int64_t alignment = 64;

bool changes_lengths(const Append& a) { return static_cast<bool>(a.k); }
bool rotates(const Append& a) { return a.rotary.dim > 0; }

Size length_bytes(const Problem& p, const Append& a) {
  return changes_lengths(a) ? (Size(p.batch()) * sizeof(std::int32_t)).rounded_up(alignment) : 0;
}

Size query_bytes(const Problem& p, const Append& a) {
  if (!rotates(a)) return 0;
  return (Size(query_rows(p)) * p.heads * p.head_dim *
          static_cast<std::int64_t>(size_of(p.q.dtype)))
      .rounded_up(alignment);
}

// A row to write. An 8-bit row of a tensor of another dtype is quantized with its scale.
struct Target {
  std::byte* data;
  DType dtype;
  float descale = 1;

  void store(std::int64_t column, float x) const {
    if (is_8_bit(dtype)) {
      reinterpret_cast<std::uint8_t*>(data)[column] = encode(dtype, x / descale);
    } else {
      store_double(data, dtype, column, static_cast<double>(x));
    }
  }
};

void rotate_row(const Rotary& r, std::int64_t position, const std::byte* from, DType from_type,
                const Target& to, int columns) {
  const int half = r.dim / 2, step = r.interleaved ? 2 : 1, partner = r.interleaved ? 1 : half;
  for (int n = 0; n < half; ++n) {
    const auto c = static_cast<float>(load_as_double(r.cos, r.dtype, position * r.cos_stride + n));
    const auto s = static_cast<float>(load_as_double(r.sin, r.dtype, position * r.sin_stride + n));
    const auto x = static_cast<float>(load_as_double(from, from_type, n * step));
    const auto y = static_cast<float>(load_as_double(from, from_type, n * step + partner));
    to.store(n * step, x * c - y * s);
    to.store(n * step + partner, x * s + y * c);
  }
  for (int n = r.dim; n < columns; ++n)
    to.store(n, static_cast<float>(load_as_double(from, from_type, n)));
}

void copy_row(const std::byte* from, DType from_type, const Target& to, int columns) {
  if (from_type == to.dtype) {
    std::memcpy(to.data, from, static_cast<std::size_t>(columns) * size_of(to.dtype));
    return;
  }
  for (int n = 0; n < columns; ++n)
    to.store(n, static_cast<float>(load_as_double(from, from_type, n)));
}

Target target_of(const Rows& cache, const Descale& descale, std::int64_t b, std::int64_t row,
                 std::int64_t h) {
  return {cache.row(b, row, h), cache.dtype, descale.at(cache, b, row, h)};
}

std::int64_t first_position(const Problem& p, const Rotary& r, std::int64_t b) {
  return r.first ? r.first[b] : keys_before(p, b);
}

void append_key(const Problem& p, const Append& a, std::int64_t n) {
  const std::int64_t b = a.cu ? sequence_of(a.cu, p.batch(), n) : n / a.rows;
  if (b < 0) return;  // a packed row outside all sequences
  const std::int64_t row = a.cu ? n : n % a.rows, index = row - a.begin(b);
  const std::int64_t cached =
      (p.lengths.packed_k() ? p.lengths.cu_k[b] : 0) + keys_before(p, b) + index;
  for (std::int64_t h = 0; h < p.kv_heads; ++h) {
    copy_row(a.v.row(b, row, h), a.v.dtype, target_of(p.v, p.v_descale, b, cached, h), p.value_dim);
    const Target key = target_of(p.k, p.k_descale, b, cached, h);
    if (rotates(a)) {
      rotate_row(a.rotary, first_position(p, a.rotary, b) + index, a.k.row(b, row, h), a.k.dtype,
                 key, p.head_dim);
    } else {
      copy_row(a.k.row(b, row, h), a.k.dtype, key, p.head_dim);
    }
  }
}

std::int64_t key_rows(const Problem& p, const Append& a) {
  return !a.k ? 0 : a.cu ? a.rows : a.rows * p.batch();
}

}  // namespace

// At most the number of elements of q, so it fits in 64 bits.
std::int64_t query_rows(const Problem& p) {
  return p.lengths.packed_q() ? p.lengths.rows_q : p.batch() * p.lengths.rows_q;
}

void rotate_query(const Problem& p, const Rotary& rotary, const Rows& to, std::int64_t n) {
  const std::int64_t b =
      p.lengths.packed_q() ? sequence_of(p.lengths.cu_q, p.batch(), n) : n / p.lengths.rows_q;
  if (b < 0) return;
  const std::int64_t row = p.lengths.packed_q() ? n : n % p.lengths.rows_q;
  const std::int64_t i = row - p.lengths.sequence(b).q_row;
  const std::int64_t position = first_position(p, rotary, b) + (p.visibility.bounded() ? i : 0);
  for (std::int64_t h = 0; h < p.heads; ++h)
    rotate_row(rotary, position, p.q.row(b, row, h), p.q.dtype, {to.row(b, row, h), to.dtype},
               p.head_dim);
}

Size AppendedProblem::bytes(const Problem& p, const Append& a) {
  return length_bytes(p, a) + query_bytes(p, a);
}

AppendedProblem::AppendedProblem(const Problem& before, const Append& a, std::byte* memory)
    : problem(before) {
  if (changes_lengths(a)) {
    auto* used = reinterpret_cast<std::int32_t*>(memory);
    for (std::int64_t b = 0; b < before.batch(); ++b)
      used[b] = static_cast<std::int32_t>(keys_before(before, b) + a.count(b));
    problem.lengths.used_k = used;
    memory += length_bytes(before, a).value();
  }
  if (rotates(a)) {
    Rows& q = problem.q;
    q = {.data = memory, .dtype = before.q.dtype, .columns = before.head_dim};
    q.head_stride = before.head_dim;
    q.row_stride = q.head_stride * before.heads;
    q.batch_stride = before.lengths.packed_q() ? 0 : q.row_stride * before.lengths.rows_q;
  }
}

std::int64_t append_rows(const Problem& p, const Append& a) {
  return key_rows(p, a) + (rotates(a) ? query_rows(p) : 0);
}

void append_row(const Problem& p, const Append& a, const AppendedProblem& after, std::int64_t row) {
  const std::int64_t keys = key_rows(p, a);
  row < keys ? append_key(p, a, row) : rotate_query(p, a.rotary, after.problem.q, row - keys);
}

}  // namespace rocflash::core
