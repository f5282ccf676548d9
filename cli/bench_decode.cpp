#include "bench_decode.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "array.hpp"
#include "commands.hpp"
#include "output.hpp"
#include "table.hpp"

namespace rocflash::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Threads that read memory as fast as plain loads can: what decode, which must read the cache once,
// cannot beat.
class Reader {
 public:
  Reader(const Array& k, const Array& v, int threads) : arrays_{&k, &v}, threads_(threads) {}

  void run() {
    std::vector<std::thread> team;
    for (int t = 1; t < threads_; ++t) team.emplace_back([this, t] { read(t); });
    read(0);
    for (std::thread& member : team) member.join();
  }

 private:
  void read(int t) {
    std::uint64_t sums[8] = {};  // several sums, so that no load waits for another
    for (const Array* array : arrays_) {
      const auto words = static_cast<std::int64_t>(array->bytes() / sizeof(std::uint64_t));
      const auto* data = static_cast<const std::uint64_t*>(array->tensor().data());
      const std::int64_t begin = words * t / threads_, end = words * (t + 1) / threads_;
      for (std::int64_t n = begin; n + 8 <= end; n += 8)
        for (int lane = 0; lane < 8; ++lane) sums[lane] ^= data[n + lane];
    }
    volatile std::uint64_t keep = std::accumulate(sums, sums + 8, std::uint64_t{0});
    static_cast<void>(keep);
  }

  const Array* arrays_[2];
  int threads_;
};

struct Row {
  std::int64_t seqlen, page;  // page 0: one piece per sequence
  double seconds, read_seconds, gigabytes;
};

Row measure(const DecodeOptions& o, std::int64_t seqlen, std::int64_t page, int threads) {
  const DType t = parse_dtype(o.dtype);
  const std::int64_t pages = page > 0 ? (seqlen + page - 1) / page : 1,
                     rows = page > 0 ? page : seqlen;
  Array q(t, {o.batch, 1, o.heads, o.head_dim}), out(t, {o.batch, 1, o.heads, o.head_dim});
  Array k(t, {o.batch * pages, rows, o.kv_heads, o.head_dim}),
      v(t, {o.batch * pages, rows, o.kv_heads, o.head_dim});
  std::uint64_t seed = 1;
  for (Array* a : {&q, &k, &v}) a->fill(seed++);
  std::vector<std::int32_t> table(static_cast<std::size_t>(o.batch * pages));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  std::vector<std::int32_t> used(static_cast<std::size_t>(o.batch),
                                 static_cast<std::int32_t>(seqlen));

  Problem problem;
  problem.q = q.tensor();
  problem.k = k.tensor();
  problem.v = v.tensor();
  if (page > 0) {
    problem.block_table = Tensor(table.data(), DType::i32, {o.batch, pages});
    problem.seqused_k = Tensor(used.data(), DType::i32, {o.batch});
  }
  const ForwardOutputs outputs{out.tensor(), std::nullopt, std::nullopt};
  Execution execution{.backend = Backend::cpu, .num_threads = o.threads};
  Workspace workspace;
  workspace.reserve(workspace_size(problem, Append{}, outputs, execution));
  execution.workspace = workspace.data();
  execution.workspace_size = workspace.size();

  Reader reader(k, v, threads);
  std::vector<double> ours, reading;
  decode(problem, Append{}, outputs, execution);
  reader.run();
  for (const auto start = Clock::now(); static_cast<int>(ours.size()) < std::max(o.repeat, 5) ||
                                        (o.repeat == 0 && seconds_since(start) < 1);) {
    auto begin = Clock::now();
    decode(problem, Append{}, outputs, execution);
    ours.push_back(seconds_since(begin));
    begin = Clock::now();
    reader.run();
    reading.push_back(seconds_since(begin));
  }
  return {seqlen, page, median(ours), median(reading),
          static_cast<double>(k.bytes() + v.bytes()) * 1e-9};
}

}  // namespace

int bench_decode(const DecodeOptions& o) {
  const int threads = o.threads > 0 ? o.threads : limits().default_threads;
  std::FILE* to = text_stream(o.json);
  fmt::print(to,
             "{}, {}: decode, {}, batch {}, heads {} on {}, head size {}, one query a sequence\n",
             device_line(o.device), threads_text(threads), o.dtype, o.batch, o.heads, o.kv_heads,
             o.head_dim);
  fmt::print(to,
             "Medians. Reading is a plain parallel read of the same keys and values by as many "
             "threads.\n\n");
  std::fflush(to);

  Table table({"cache", "page", "time [ms]", "GB/s", "reading [GB/s]", "share of reading [%]"}, 0);
  Json results = Json::array();
  Progress progress;
  std::vector<std::int64_t> pages{0};
  pages.insert(pages.end(), o.pages.begin(), o.pages.end());
  for (const std::int64_t seqlen : o.seqlens) {
    for (const std::int64_t page : pages) {
      progress.show(fmt::format("cache {}, page {}", seqlen, page));
      const Row r = measure(o, seqlen, page, threads);
      table.add({std::to_string(seqlen), page > 0 ? std::to_string(page) : "none",
                 fmt::format("{:.3f}", r.seconds * 1e3),
                 fmt::format("{:.1f}", r.gigabytes / r.seconds),
                 fmt::format("{:.1f}", r.gigabytes / r.read_seconds),
                 fmt::format("{:.0f}", 100 * r.read_seconds / r.seconds)});
      results.push_back({{"seqlen_k", seqlen},
                         {"page_size", page},
                         {"seconds", r.seconds},
                         {"read_seconds", r.read_seconds},
                         {"gigabytes", r.gigabytes}});
    }
  }
  progress.clear();
  table.print(to);
  write_json(o.json, Json{{"version", version()},
                          {"device", o.device},
                          {"op", "decode"},
                          {"dtype", o.dtype},
                          {"batch", o.batch},
                          {"heads", o.heads},
                          {"kv_heads", o.kv_heads},
                          {"head_dim", o.head_dim},
                          {"threads", threads},
                          {"results", results}});
  return exit_good;
}

}  // namespace rocflash::cli
