// The device-independent part of `rocflash bench --op decode`: cases, table and JSON file.
#include <algorithm>
#include <numeric>
#include <random>

#include "array.hpp"
#include "bench_decode.hpp"
#include "exit_status.hpp"
#include "table.hpp"

namespace rocflash::cli {

DecodeCase::DecodeCase(const DecodeOptions& o, std::int64_t length, std::int64_t page_rows)
    : seqlen(length), page(page_rows), dtype(parse_dtype(o.dtype)) {
  const std::int64_t pages = page > 0 ? (seqlen + page - 1) / page : 1,
                     rows = page > 0 ? page : seqlen;
  queries = {o.batch, 1, o.heads, o.head_dim};
  cache = {o.batch * pages, rows, o.kv_heads, o.head_dim};
  contiguous = {o.batch, pages * rows, o.kv_heads, o.head_dim};
  table_shape = {o.batch, pages};
  table.resize(static_cast<std::size_t>(o.batch * pages));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  used.assign(static_cast<std::size_t>(o.batch), static_cast<std::int32_t>(seqlen));
}

double DecodeCase::bytes() const {
  double bytes = 2.0 * static_cast<double>(size_of(dtype));
  for (const std::int64_t n : cache) bytes *= static_cast<double>(n);
  return bytes;
}

int bench_decode_cases(const DecodeOptions& o, const DecodeBound& bound,
                       const std::vector<std::string>& columns, const Json& head,
                       const std::function<DecodeTimes(const DecodeCase&)>& measure) {
  std::FILE* to = text_stream(o.json);
  std::vector<std::string> titles{"cache",
                                  "page",
                                  "time [us]",
                                  "GB/s",
                                  bound.title + " [GB/s]",
                                  "share of " + bound.title + " [%]",
                                  "time to one tensor's"};
  titles.insert(titles.end(), columns.begin(), columns.end());
  Table table(titles, 0);
  Json results = Json::array();
  Progress progress(o.quiet);
  std::vector<std::int64_t> pages{0};
  pages.insert(pages.end(), o.pages.begin(), o.pages.end());
  std::size_t done = 0;
  for (const std::int64_t seqlen : o.seqlens) {
    for (const std::int64_t page : pages) {
      progress.show(fmt::format("cache {}, page {}", seqlen, page), done++,
                    o.seqlens.size() * pages.size());
      const DecodeCase c(o, seqlen, page);
      const DecodeTimes t = measure(c);
      Json result{{"seqlen_k", seqlen},
                  {"page_size", page},
                  {"seconds", t.seconds},
                  {bound.entry, t.bound_seconds},
                  {"bytes", c.bytes()}};
      if (page > 0) result["one_tensor_seconds"] = t.one_tensor_seconds;
      result.update(t.more);
      results.push_back(std::move(result));
      std::vector<std::string> cells{
          std::to_string(seqlen),
          page > 0 ? std::to_string(page) : "none",
          fmt::format("{:.1f}", t.seconds * 1e6),
          fmt::format("{:.1f}", c.bytes() / t.seconds * 1e-9),
          fmt::format("{:.1f}", c.bytes() / t.bound_seconds * 1e-9),
          fmt::format("{:.0f}", 100 * t.bound_seconds / t.seconds),
          page > 0 ? fmt::format("{:.2f}", t.seconds / t.one_tensor_seconds) : ""};
      cells.insert(cells.end(), t.cells.begin(), t.cells.end());
      table.add(cells);
    }
  }
  progress.clear();
  table.print(to);
  Json all{{"version", version()},   {"device", o.device},    {"op", "decode"},
           {"dtype", o.dtype},       {"batch", o.batch},      {"heads", o.heads},
           {"kv_heads", o.kv_heads}, {"head_dim", o.head_dim}};
  all.update(head);
  all["results"] = std::move(results);
  write_json(o.json, all);
  return exit_good;
}

}  // namespace rocflash::cli
