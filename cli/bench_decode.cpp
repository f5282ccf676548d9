#include "bench_decode.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "array.hpp"
#include "output.hpp"
#include "times.hpp"

namespace rocflash::cli {
namespace {

// Threads that only read memory: the bandwidth bound of decode, which reads the cache once.
class Reader {
 public:
  Reader(std::vector<const Array*> arrays, int threads)
      : arrays_(std::move(arrays)), threads_(threads) {}

  // Seconds from the moment when all threads are ready until the last one is done.
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
    std::uint64_t sums[8] = {};  // independent accumulators for latency hiding
    for (const Array* array : arrays_) {
      const auto words = static_cast<std::int64_t>(array->bytes() / sizeof(std::uint64_t));
      const auto* data = static_cast<const std::uint64_t*>(array->tensor().data());
      const std::int64_t end = words * (t + 1) / threads_;
      for (std::int64_t n = words * t / threads_; n + 8 <= end; n += 8)
        for (int lane = 0; lane < 8; ++lane) sums[lane] ^= data[n + lane];
    }
    volatile std::uint64_t keep = std::accumulate(sums, sums + 8, std::uint64_t{0});
    static_cast<void>(keep);
  }

  std::vector<const Array*> arrays_;
  int threads_;
};

// A call with its workspace, ready to be repeated.
class Repeated {
 public:
  Repeated(const Problem& problem, const Append& append, const ForwardOutputs& outputs, int threads)
      : problem_(problem), append_(append), outputs_(outputs) {
    execution_.num_threads = threads;
    workspace_.reserve(workspace_size(problem_, append_, outputs_, execution_));
    execution_.workspace = workspace_.data();
    execution_.workspace_size = workspace_.size();
  }
  // Seconds of one call.
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

DecodeTimes measure(const DecodeOptions& o, const DecodeCase& c, int threads) {
  const DType t = c.dtype;
  Array q(t, c.queries), out(t, c.queries), k(t, c.cache), v(t, c.cache);
  std::uint64_t seed = 1;
  for (Array* a : {&q, &k, &v}) a->fill(seed++);
  std::vector<std::int32_t> table = c.table, used = c.used;

  Problem problem;
  problem.q = q.tensor();
  problem.k = Tensor(k.tensor().data(), t, c.contiguous);
  problem.v = Tensor(v.tensor().data(), t, c.contiguous);
  problem.seqused_k = Tensor(used.data(), DType::i32, {o.batch});
  const ForwardOutputs outputs{out.tensor(), std::nullopt, std::nullopt};
  Repeated one_tensor(problem, {}, outputs, o.threads);
  if (c.page > 0) {
    problem.k = k.tensor();
    problem.v = v.tensor();
    problem.block_table = Tensor(table.data(), DType::i32, c.table_shape);
  }
  Repeated decoding(problem, {}, outputs, o.threads);

  // One new token per sequence, the only one that its query attends to: the cost of append.
  Array k_new(t, {o.batch, 1, o.kv_heads, o.head_dim}),
      v_new(t, {o.batch, 1, o.kv_heads, o.head_dim});
  for (Array* a : {&k_new, &v_new}) a->fill(seed++);
  std::vector<std::int32_t> before(static_cast<std::size_t>(o.batch),
                                   static_cast<std::int32_t>(c.seqlen - 1));
  problem.seqused_k = Tensor(before.data(), DType::i32, {o.batch});
  problem.causal = true;
  problem.window = Window{0, 0};
  Repeated appending(problem, {.k_new = k_new.tensor(), .v_new = v_new.tensor()}, outputs,
                     o.threads);

  // Memory read to evict the KV cache from the CPU caches, as a model's weights do.
  const Array others(DType::f32, {o.cold ? 64 << 20 : 1});
  Reader reader({&k, &v}, threads), other_reader({&others}, threads);
  Times decodes, readings, appends, of_one_tensor;
  // A preceding short call wakes the library's threads, as the reader's threads are awake.
  Array few_keys(t, {1, 1024, o.kv_heads, o.head_dim});
  Problem short_problem;
  short_problem.q = Tensor(q.tensor().data(), t, {1, 1, o.heads, o.head_dim});
  short_problem.k = short_problem.v = few_keys.tensor();
  Array short_out(t, {1, 1, o.heads, o.head_dim});
  Repeated waking(short_problem, {}, {short_out.tensor(), std::nullopt, std::nullopt}, o.threads);
  const auto time = [&](Repeated& call, Times& times) {
    if (o.cold) other_reader.time();
    waking.time();
    times.add(call.time());
  };
  decoding.time();
  for (const auto start = Clock::now();
       decodes.count() < std::max(o.repeat, 5) || (o.repeat == 0 && seconds_since(start) < 1);) {
    time(decoding, decodes);
    if (c.page > 0) time(one_tensor, of_one_tensor);
    time(appending, appends);
    if (o.cold) other_reader.time();
    readings.add(reader.time());
  }
  const double best = decodes.best(), best_reading = readings.best();
  return {.seconds = decodes.median(),
          .one_tensor_seconds = c.page > 0 ? of_one_tensor.median() : 0,
          .bound_seconds = readings.median(),
          .cells = {fmt::format("{:.1f}", c.bytes() / best * 1e-9),
                    fmt::format("{:.1f}", c.bytes() / best_reading * 1e-9),
                    fmt::format("{:.0f}", 100 * best_reading / best),
                    fmt::format("{:.1f}", appends.median() * 1e6)},
          .more = {{"best_seconds", best},
                   {"best_read_seconds", best_reading},
                   {"append_seconds", appends.median()}}};
}

}  // namespace

int bench_decode(const DecodeOptions& o) {
  const int threads = o.threads > 0 ? o.threads : limits().default_threads;
  std::FILE* to = text_stream(o.json);
  fmt::print(
      to,
      "{}, {}: decode, {}, batch {}, heads {} on {}, head dimension {}, one query per sequence\n",
      device_line(o.device), threads_text(threads), o.dtype, o.batch, o.heads, o.kv_heads,
      o.head_dim);
  fmt::print(
      to,
      "Medians, and the best of all rounds. Reading is a parallel read of the same keys "
      "and values with as many threads,\nalternating with decode{}; paged caches are compared with "
      "the "
      "same memory as one tensor. Append is a call that adds one token to\neach sequence and "
      "attends only to it.\n\n",
      o.cold ? ", each after 256 MiB of other memory have been read" : "");
  std::fflush(to);

  return bench_decode_cases(o, {"reading", "read_seconds"},
                            {"best GB/s", "reading, best [GB/s]", "share [%]", "append [us]"},
                            {{"threads", threads}, {"cold", o.cold}},
                            [&](const DecodeCase& c) { return measure(o, c, threads); });
}

}  // namespace rocflash::cli
