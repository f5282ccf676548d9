// `rocflash bench --op decode`: one new query per sequence over a cache, against merely reading the
// cache.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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

// What one row of the table says of a cache, behind its length and its page.
struct DecodeCells {
  double seconds = 0;
  std::optional<double> one_tensor;        // seconds, where the cache has pages
  std::vector<std::string> before, after;  // of the column that compares the two
  Json json;                               // besides what all rows have
};
// Prints the table, a row for each length and each kind of page, and writes the JSON; `facts` go into that beside the options.
int report_decode(
    const DecodeOptions& options, std::FILE* to, const std::vector<std::string>& titles,
    const Json& facts,
    const std::function<DecodeCells(std::int64_t seqlen, std::int64_t page)>& measure);

int bench_decode(const DecodeOptions& options);
// The same on a GPU.
int bench_decode_gpu(const DecodeOptions& options);

}  // namespace rocflash::cli
