// `rocflash bench --op decode`: one new query per sequence over a cache, against merely reading the
// cache.
#pragma once

#include <rocflash/rocflash.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "output.hpp"

namespace rocflash::cli {

struct DecodeOptions {
  std::string device, dtype, json;
  std::int64_t batch, heads, kv_heads;
  int head_dim;
  std::vector<std::int64_t> seqlens;
  std::vector<std::int64_t> pages;  // rows of a page; without any, whole caches only
  int threads, repeat;
  bool cold;  // the cache comes from memory, not from the CPU's caches
};

int bench_decode(const DecodeOptions& options);
// The same on a GPU.
int bench_decode_gpu(const DecodeOptions& options);

// One row of the table: a cache of each sequence, as one tensor or in pages of any order.
struct DecodeCase {
  DecodeCase(const DecodeOptions& options, std::int64_t seqlen, std::int64_t page);

  std::int64_t seqlen, page;  // page 0: one piece per sequence
  DType dtype;
  Dims queries, cache, one_piece, table_shape;  // one_piece: the same memory without pages
  std::vector<std::int32_t> table, used;

  double bytes() const;  // of k and v
};

// What a device found of one case. Rates are bytes of k and v by the seconds of a call.
struct DecodeTimes {
  double seconds;
  double one_tensor_seconds = 0;        // without pages; of pages only
  double bound_seconds;                 // what a call cannot beat by much, of the same bytes
  std::vector<std::string> cells = {};  // of further columns
  Json more = Json::object();           // entries of the result beside those
};

// What the bound is: as a column, and as an entry of the file.
struct DecodeBound {
  std::string title, entry;
};

// Measures all cases, prints one table and writes one file. `columns` are those of `cells`; `head` has entries of the file
// beside those that every device has.
int bench_decode_cases(const DecodeOptions& options, const DecodeBound& bound,
                       const std::vector<std::string>& columns, const Json& head,
                       const std::function<DecodeTimes(const DecodeCase&)>& measure);

}  // namespace rocflash::cli
