// The shapes of a case's tensors, and the indices of its sequences' rows in them.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "verify/buffer.hpp"
#include "verify/case.hpp"
#include "verify/random.hpp"

namespace rocflash::verify {

class Geometry {
 public:
  explicit Geometry(const Case& what) : c(what) {
    if (c.page == 0) return;
    // Pages in random order; two of them belong to no sequence.
    pages_.resize(static_cast<std::size_t>(c.sequences() * pages_per_sequence() + 2));
    for (std::size_t n = 0; n < pages_.size(); ++n) pages_[n] = static_cast<std::int64_t>(n);
    Random random(derive_seed(c.seed, "pages"));
    for (std::size_t n = pages_.size(); n > 1; --n)
      std::swap(
          pages_[n - 1],
          pages_[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(n) - 1))]);
  }

  Dims query_tensor(std::int64_t columns) const {
    return c.packed() ? Dims{rows(c.lengths_q), c.heads, columns}
                      : Dims{c.batch, c.sq, c.heads, columns};
  }
  Dims key_tensor(std::int64_t columns) const {
    if (c.page > 0) return {static_cast<std::int64_t>(pages_.size()), c.page, c.kv_heads, columns};
    if (c.packed_k()) return {rows(c.lengths_k), c.kv_heads, columns};
    return {c.sequences() + (c.batch_indexed_cache ? 1 : 0), c.sk, c.kv_heads, columns};
  }
  // The scales of quantized keys, and the index of a row's.
  Dims scale_tensor() const {
    const Dims k = key_tensor(1);
    const std::int64_t caches = c.packed_k() ? 1 : k[0], rows_of_cache = k[k.size() - 3];
    switch (c.scales) {
      case Scales::per_sequence:
        return {c.sequences(), c.kv_heads};
      case Scales::per_head:
        return {1, 1, c.kv_heads};
      case Scales::per_row:
        return {caches, rows_of_cache, c.kv_heads};
      case Scales::per_page:
        return {caches, 1, 1};
      default:
        return {1};
    }
  }
  Dims scale_index(std::size_t n, std::int64_t row, std::int64_t head) const {
    const Dims k = key_index(n, row, head, 0);
    const std::int64_t cache = c.packed_k() ? 0 : k[0];
    switch (c.scales) {
      case Scales::per_sequence:
        return {static_cast<std::int64_t>(n), head};
      case Scales::per_head:
        return {0, 0, head};
      case Scales::per_row:
        return {cache, k[k.size() - 3], head};
      case Scales::per_page:
        return {cache, 0, 0};
      default:
        return {0};
    }
  }
  // Shape of k_new and v_new.
  Dims new_tensor(std::int64_t columns) const {
    if (c.packed_new) return {rows(c.appended), c.kv_heads, columns};
    return {c.sequences(), c.appended[0], c.kv_heads, columns};
  }
  Dims lse() const {
    return c.packed() ? Dims{c.heads, rows(c.lengths_q)} : Dims{c.batch, c.heads, c.sq};
  }
  Dims per_score(Spans s) const {
    return {s.batch ? c.sequences() : 1, s.head ? c.heads : 1,
            s.query ? longest(c.lengths_q, c.sq) : 1, s.key ? longest(c.lengths_k, c.sk) : 1};
  }

  // max_seqlen_q and max_seqlen_k: at least 1, since 0 means that they are not given.
  std::int64_t longest_q() const { return longest(c.lengths_q, c.sq); }
  std::int64_t longest_k() const { return longest(c.lengths_k, c.sk); }

  Axes query_axes() const { return c.packed() ? Axes{0, 1, 1} : Axes{1, 2, 0}; }
  Axes key_axes() const { return c.packed_k() ? Axes{0, 1, 1} : Axes{1, 2, 2}; }
  Axes new_axes() const { return c.packed_new ? Axes{0, 1, 1} : Axes{1, 2, 2}; }
  Axes lse_axes() const { return c.packed() ? Axes{1, 0, 0} : Axes{2, 1, 0}; }
  static Axes score_axes() { return {2, 1, 0}; }

  // The used rows [first, second) of sequence n relative to its begin, and the index of a row.
  std::pair<std::int64_t, std::int64_t> used_queries(std::size_t n) const {
    return {0, c.seqused_q.empty() ? (c.packed() ? c.lengths_q[n] : c.sq) : c.seqused_q[n]};
  }
  std::pair<std::int64_t, std::int64_t> used_keys(std::size_t n) const {
    return {c.leftpad_k.empty() ? 0 : c.leftpad_k[n],
            c.seqused_k.empty() ? (c.lengths_k.empty() ? c.sk : c.lengths_k[n]) : c.seqused_k[n]};
  }
  std::pair<std::int64_t, std::int64_t> used_new(std::size_t n) const { return {0, c.appended[n]}; }
  Dims query_index(std::size_t n, std::int64_t row, std::int64_t head, std::int64_t column) const {
    if (c.packed()) return {cumulative(c.lengths_q)[n] + row, head, column};
    return {static_cast<std::int64_t>(n), row, head, column};
  }
  Dims lse_index(std::size_t n, std::int64_t row, std::int64_t head) const {
    if (c.packed()) return {head, cumulative(c.lengths_q)[n] + row};
    return {static_cast<std::int64_t>(n), head, row};
  }
  Dims key_index(std::size_t n, std::int64_t row, std::int64_t head, std::int64_t column) const {
    if (c.page > 0) return {page(n, row / c.page), row % c.page, head, column};
    if (c.packed_k()) return {cumulative(c.lengths_k)[n] + row, head, column};
    return {c.batch_indexed_cache ? cache(n) : static_cast<std::int64_t>(n), row, head, column};
  }
  Dims new_index(std::size_t n, std::int64_t row, std::int64_t head, std::int64_t column) const {
    if (c.packed_new) return {cumulative(c.appended)[n] + row, head, column};
    return {static_cast<std::int64_t>(n), row, head, column};
  }

  // cu_seqlens. Half of the spare rows precede the first sequence.
  std::vector<std::int64_t> cumulative(const std::vector<std::int64_t>& lengths) const {
    std::vector<std::int64_t> begins{c.spare / 2};
    for (const std::int64_t n : lengths) begins.push_back(begins.back() + n);
    return begins;
  }

  // Contents of block_table and cache_batch_idx.
  std::int64_t pages_per_sequence() const {
    return (longest(c.lengths_k, c.sk) + c.page - 1) / c.page;
  }
  std::int64_t page(std::size_t n, std::int64_t entry) const {
    return pages_[n * static_cast<std::size_t>(pages_per_sequence()) +
                  static_cast<std::size_t>(entry)];
  }
  std::int64_t cache(std::size_t n) const { return c.sequences() - static_cast<std::int64_t>(n); }

  // Rotary positions of the first new key and of query `index` of sequence n, and the number of
  // positions in the tables.
  std::int64_t first_position(std::size_t n) const {
    return c.rotary_seqlens.empty() ? used_keys(n).second : c.rotary_seqlens[n];
  }
  std::int64_t query_position(std::size_t n, std::int64_t index) const {
    return first_position(n) + (c.has_positional_mask() ? index : 0);
  }
  std::int64_t positions() const {
    std::int64_t count = 1;
    for (std::size_t n = 0; n < static_cast<std::size_t>(c.sequences()); ++n) {
      const std::int64_t queries = c.packed() ? c.lengths_q[n] : c.sq,
                         keys = c.appended.empty() ? 0 : c.appended[n];
      count = std::max(count, first_position(n) + std::max<std::int64_t>({keys, queries, 1}));
    }
    return count;
  }

 private:
  std::int64_t rows(const std::vector<std::int64_t>& lengths) const {
    std::int64_t total = c.spare;
    for (const std::int64_t n : lengths) total += n;
    return total;
  }
  std::int64_t longest(const std::vector<std::int64_t>& lengths, std::int64_t dense) const {
    return lengths.empty()
               ? dense
               : std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
  }

  const Case& c;
  std::vector<std::int64_t> pages_;
};

}  // namespace rocflash::verify
