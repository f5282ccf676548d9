#include "core/unused.hpp"

#include <cstring>
#include <limits>

namespace rocflash::core {
namespace {

// Calls body(batch, row) for each row outside all sequences.
template <class RangeOf, class Body>
void for_each_unused_row(const Lengths& lengths, std::int64_t rows, bool packed, RangeOf range_of,
                         Body body) {
  std::int64_t next = 0;  // packed: first row not yet visited
  for (std::int64_t b = 0; b < lengths.batch; ++b) {
    const Range used = range_of(lengths.sequence(b));
    for (std::int64_t r = next; r < used.begin; ++r) body(b, r);
    if (packed) {
      next = used.end;
    } else {
      for (std::int64_t r = used.end; r < rows; ++r) body(b, r);
    }
  }
  if (packed) {
    for (std::int64_t r = next; r < rows; ++r) body(0, r);
  }
}

Range used_queries(const Sequence& s) { return {s.q_row, s.q_row + s.sq}; }
Range used_keys(const Sequence& s) { return {s.k_row, s.k_row + s.sk}; }

void clear_row(const Rows& rows, std::int64_t heads, std::int64_t b, std::int64_t r) {
  if (!rows) return;
  for (std::int64_t h = 0; h < heads; ++h)
    std::memset(rows.row(b, r, h), 0, static_cast<std::size_t>(rows.columns) * size_of(rows.dtype));
}

}  // namespace

void clear_unused(const Problem& p, const ForwardOutputs& o) {
  for_each_unused_row(p.lengths, p.lengths.rows_q, p.lengths.packed_q(), used_queries,
                      [&](std::int64_t b, std::int64_t r) {
                        clear_row(o.out, p.heads, b, r);
                        for (std::int64_t h = 0; h < p.heads && o.lse; ++h)
                          o.lse.at(b, h, r) = std::numeric_limits<float>::infinity();
                      });
  for (std::int64_t b = 0; b < p.batch() && o.s_dmask; ++b) {
    const Sequence s = p.lengths.sequence(b);
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.max_q; ++i)
        for (std::int64_t j = i < s.sq ? s.sk : 0; j < p.max_k; ++j)
          store_double(o.s_dmask.row(b, h, i), o.s_dmask.dtype, j * o.s_dmask.key_stride, 0.0);
  }
}

void clear_unused(const Problem& p, const BackwardTensors& t, const RowStatistic& delta) {
  for_each_unused_row(p.lengths, p.lengths.rows_q, p.lengths.packed_q(), used_queries,
                      [&](std::int64_t b, std::int64_t r) {
                        clear_row(t.dq, p.heads, b, r);
                        for (std::int64_t h = 0; h < p.heads && delta; ++h) delta.at(b, h, r) = 0;
                      });
  for_each_unused_row(p.lengths, p.lengths.rows_k, p.lengths.packed_k(), used_keys,
                      [&](std::int64_t b, std::int64_t r) {
                        clear_row(t.dk, p.kv_heads, b, r);
                        clear_row(t.dv, p.kv_heads, b, r);
                      });
}

}  // namespace rocflash::core
