// `rocflash bench --op decode`: one new query per sequence over a KV cache, compared with the read
// bandwidth of the same bytes.
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
  std::vector<std::int64_t> pages;  // page sizes in addition to contiguous caches
  int threads, repeat;
  bool cold;   // evict the KV cache from the CPU caches before each call
  bool quiet;  // no progress
};

int bench_decode(const DecodeOptions& options);
// The same on a GPU.
int bench_decode_gpu(const DecodeOptions& options);

// One row of the table: a KV cache, contiguous or in shuffled pages.
struct DecodeCase {
  DecodeCase(const DecodeOptions& options, std::int64_t seqlen, std::int64_t page);

  std::int64_t seqlen, page;  // page 0: contiguous
  DType dtype;
  Dims queries, cache, contiguous, table_shape;  // contiguous: the same memory without pages
  std::vector<std::int32_t> table, used;

  double bytes() const;  // of k and v
};

// Measurements of one case. Rates are bytes of k and v per second.
struct DecodeTimes {
  double seconds;
  double one_tensor_seconds = 0;        // of the contiguous cache, for paged caches
  double bound_seconds;                 // lower bound: reading the same bytes
  std::vector<std::string> cells = {};  // additional columns
  Json more = Json::object();           // additional JSON entries
};

// The name of the bound as a column title and as a JSON entry.
struct DecodeBound {
  std::string title, entry;
};

// Measures all cases, prints the table and writes the JSON file. `columns` are the titles of
// `cells`;
// `head` has the device-specific entries of the file.
int bench_decode_cases(const DecodeOptions& options, const DecodeBound& bound,
                       const std::vector<std::string>& columns, const Json& head,
                       const std::function<DecodeTimes(const DecodeCase&)>& measure);

}  // namespace rocflash::cli
