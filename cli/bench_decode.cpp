#include "bench_decode.hpp"

#include <algorithm>
#include <atomic>
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
// cannot beat by much. Pieces are read in the order given, as a cache of scattered pages is.
class Reader {
 public:
  Reader(const Array& k, const Array& v, std::vector<std::int32_t> order, int threads)
      : arrays_{&k, &v}, order_(std::move(order)), threads_(threads) {}

  // Seconds from the moment when all threads are ready until the last is done.
  double time() {
    std::atomic<int> missing{threads_};
    std::vector<Clock::time_point> end(static_cast<std::size_t>(threads_));
    const auto work = [&](int t) {
      for (--missing; missing > 0;) std::this_thread::yield();
      const auto begin = Clock::now();
      read(t);
      end[static_cast<std::size_t>(t)] = Clock::now();
      return begin;
    };
    std::vector<std::thread> team;
    for (int t = 1; t < threads_; ++t) team.emplace_back(work, t);
    const auto begin = work(0);
    for (std::thread& member : team) member.join();
    return std::chrono::duration<double>(*std::max_element(end.begin(), end.end()) - begin).count();
  }

 private:
  void read(int t) {
    std::uint64_t sums[8] = {};  // several sums, so that no load waits for another
    for (const Array* array : arrays_) {
      const auto words = static_cast<std::int64_t>(array->bytes() / sizeof(std::uint64_t)),
                 piece = words / static_cast<std::int64_t>(order_.size());
      const auto* data = static_cast<const std::uint64_t*>(array->tensor().data());
      const std::int64_t begin = words * t / threads_, end = words * (t + 1) / threads_;
      for (std::int64_t n = begin; n < end;) {
        const std::int64_t from = n % piece, count = std::min(piece - from, end - n);
        const auto* at = data + order_[static_cast<std::size_t>(n / piece)] * piece + from;
        for (std::int64_t i = 0; i + 8 <= count; i += 8)
          for (int lane = 0; lane < 8; ++lane) sums[lane] ^= at[i + lane];
        n += count;
      }
    }
    volatile std::uint64_t keep = std::accumulate(sums, sums + 8, std::uint64_t{0});
    static_cast<void>(keep);
  }

  const Array* arrays_[2];
  std::vector<std::int32_t> order_;
  int threads_;
};

struct Row {
  std::int64_t seqlen, page;                     // page 0: one piece per sequence
  double seconds, read_seconds, append_seconds;  // medians
  double page_read_seconds;                      // reading in the order of the pages
  double best_seconds, best_read_seconds;
  double gigabytes;
};

// A call with its workspace, ready to be repeated.
class Repeated {
 public:
  Repeated(Problem problem, Append append, ForwardOutputs outputs, int threads)
      : problem_(std::move(problem)), append_(std::move(append)), outputs_(std::move(outputs)) {
    execution_.num_threads = threads;
    workspace_.reserve(workspace_size(problem_, append_, outputs_, execution_));
    execution_.workspace = workspace_.data();
    execution_.workspace_size = workspace_.size();
  }
  // Seconds that one call takes.
  double time() {
    const auto begin = Clock::now();
    decode(problem_, append_, outputs_, execution_);
    return seconds_since(begin);
  }

 private:
  Problem problem_;
  Append append_;
  ForwardOutputs outputs_;
  Execution execution_{.backend = Backend::cpu};
  Workspace workspace_;
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
  Repeated whole(problem, {}, outputs, o.threads);

  // One token more for each sequence, which its query alone looks at: what appending costs.
  Array k_new(t, {o.batch, 1, o.kv_heads, o.head_dim}),
      v_new(t, {o.batch, 1, o.kv_heads, o.head_dim});
  for (Array* a : {&k_new, &v_new}) a->fill(seed++);
  std::vector<std::int32_t> before(static_cast<std::size_t>(o.batch),
                                   static_cast<std::int32_t>(seqlen - 1));
  problem.seqused_k = Tensor(before.data(), DType::i32, {o.batch});
  problem.causal = true;
  problem.window = Window{0, 0};
  Repeated appending(problem, {.k_new = k_new.tensor(), .v_new = v_new.tensor()}, outputs,
                     o.threads);

  Reader reader(k, v, {0}, threads), page_reader(k, v, table, threads);
  std::vector<double> ours, reading, page_reading, appended;
  whole.time();
  reader.time();
  for (const auto start = Clock::now(); static_cast<int>(ours.size()) < std::max(o.repeat, 5) ||
                                        (o.repeat == 0 && seconds_since(start) < 1);) {
    ours.push_back(whole.time());
    reading.push_back(reader.time());
    if (page > 0) page_reading.push_back(page_reader.time());
    appended.push_back(appending.time());
  }
  const auto best = [](const std::vector<double>& v) {
    return *std::min_element(v.begin(), v.end());
  };
  return {.seqlen = seqlen,
          .page = page,
          .seconds = median(ours),
          .read_seconds = median(reading),
          .append_seconds = median(appended),
          .page_read_seconds = median(page > 0 ? page_reading : reading),
          .best_seconds = best(ours),
          .best_read_seconds = best(reading),
          .gigabytes = static_cast<double>(k.bytes() + v.bytes()) * 1e-9};
}

}  // namespace

int bench_decode(const DecodeOptions& o) {
  const int threads = o.threads > 0 ? o.threads : limits().default_threads;
  std::FILE* to = text_stream(o.json);
  fmt::print(to,
             "{}, {}: decode, {}, batch {}, heads {} on {}, head size {}, one query a sequence\n",
             device_line(o.device), threads_text(threads), o.dtype, o.batch, o.heads, o.kv_heads,
             o.head_dim);
  fmt::print(
      to,
      "Medians, and the best of all runs. Reading is a plain parallel read of the same keys and "
      "values by as many threads,\nin turn with decode; pages are also read in the order of the "
      "table. Append is a call that adds one token to "
      "each sequence and looks at it "
      "alone.\n\n");
  std::fflush(to);

  Table table(
      {"cache", "page", "time [ms]", "GB/s", "reading [GB/s]", "share of reading [%]", "best GB/s",
       "reading, best [GB/s]", "share [%]", "reading pages [GB/s]", "share [%]", "append [us]"},
      0);
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
                 fmt::format("{:.0f}", 100 * r.read_seconds / r.seconds),
                 fmt::format("{:.1f}", r.gigabytes / r.best_seconds),
                 fmt::format("{:.1f}", r.gigabytes / r.best_read_seconds),
                 fmt::format("{:.0f}", 100 * r.best_read_seconds / r.best_seconds),
                 fmt::format("{:.1f}", r.gigabytes / r.page_read_seconds),
                 fmt::format("{:.0f}", 100 * r.page_read_seconds / r.seconds),
                 fmt::format("{:.1f}", r.append_seconds * 1e6)});
      results.push_back({{"seqlen_k", seqlen},
                         {"page_size", page},
                         {"seconds", r.seconds},
                         {"read_seconds", r.read_seconds},
                         {"page_read_seconds", r.page_read_seconds},
                         {"best_seconds", r.best_seconds},
                         {"best_read_seconds", r.best_read_seconds},
                         {"append_seconds", r.append_seconds},
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
