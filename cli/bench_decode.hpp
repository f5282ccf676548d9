// `rocflash bench --op decode`: one new query per sequence over a cache, against merely reading the
// cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace rocflash::cli
