// Queries and keys with the rows that they attend to by position.
#pragma once

#include <cstdint>

#include "attention/sequence.hpp"

namespace rocflash::kernel {

// A query of a sequence and the key range that it attends to by position.
struct QueryView {
  std::int32_t index = 0;           // within its sequence
  std::int32_t begin = 0, end = 0;  // keys; empty for unused rows

  QueryView() = default;
  QueryView(const Visibility& v, const SequenceView& s, std::int32_t i) : index(i) {
    if (i >= s.sq) return;
    const Range keys = visible_keys(v, i, s.sq, s.sk);
    begin = static_cast<std::int32_t>(keys.begin);
    end = static_cast<std::int32_t>(larger(keys.begin, keys.end));
  }
  bool attends_to(std::int32_t key) const {
    return static_cast<std::uint32_t>(key - begin) < static_cast<std::uint32_t>(end - begin);
  }
};

// A key range in 32 bits: Range has 64, which cost two registers each.
struct Span {
  std::int32_t begin = 0, end = 0;
  Span() = default;
  Span(Range r)
      : begin(static_cast<std::int32_t>(r.begin)), end(static_cast<std::int32_t>(r.end)) {}
};

// Union and intersection of the visible key ranges of `count` queries from `first` on; unused rows
// do not count.
struct VisibleKeys {
  Range by_any, by_all;

  VisibleKeys(const Visibility& v, const SequenceView& s, std::int32_t first, std::int32_t count)
      : VisibleKeys(v, s, Range{first, smaller(first + count, s.sq)}) {}

 private:
  VisibleKeys(const Visibility& v, const SequenceView& s, Range queries)
      : by_any(queries.empty() ? Range{} : s.keys_of(v, queries)),
        by_all(queries.empty() ? Range{} : s.keys_of_all(v, queries)) {}
};

// One key and the interval of queries that attend to it by position.
struct KeyView {
  std::int32_t index = 0;           // in its sequence
  std::int32_t begin = 0, end = 0;  // queries; none for keys that are not in use

  KeyView() = default;
  KeyView(const Visibility& v, const SequenceView& s, std::int32_t j) : index(j) {
    if (j >= s.sk || s.sq == 0) return;
    const Range queries = attending_queries(v, {j, j + 1}, s.sq, s.sk);
    begin = static_cast<std::int32_t>(queries.begin);
    end = static_cast<std::int32_t>(larger(queries.begin, queries.end));
  }
  bool visible_to(std::int32_t query) const {
    return static_cast<std::uint32_t>(query - begin) < static_cast<std::uint32_t>(end - begin);
  }
};

// The queries that attend to any, and to all, of `count` keys from `first` on. Keys past the end of
// the sequence do not count.
struct AttendingQueries {
  Range any, all;

  AttendingQueries(const Visibility& v, const SequenceView& s, std::int32_t first,
                   std::int32_t count) {
    const Range keys{first, smaller(first + count, s.sk)};
    if (keys.empty() || s.sq == 0) return;
    const auto attending = [&](std::int64_t begin, std::int64_t end) {
      return attending_queries(v, {begin, end}, s.sq, s.sk);
    };
    any = attending(keys.begin, keys.end);
    all = {attending(keys.end - 1, keys.end).begin, attending(keys.begin, keys.begin + 1).end};
  }
};

}  // namespace rocflash::kernel
