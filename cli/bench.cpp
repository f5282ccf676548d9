// `rocflash bench`: times a device and naive attention on the same inputs.
#include <algorithm>

#include "array.hpp"
#include "bench_decode.hpp"
#include "bench_gpu.hpp"
#include "commands.hpp"
#include "cost.hpp"
#include "output.hpp"
#include "table.hpp"
#include "times.hpp"
#include "verify/gpu.hpp"

namespace rocflash::cli {
namespace {

struct BenchOptions {
  std::string device, op = "forward", dtype, json;
  std::int64_t batch = 2, heads = 8, kv_heads = 0, seqlen_k = 0;
  std::vector<std::int64_t> seqlens{128, 256, 512, 1024, 2048, 4096};
  int head_dim = 64;
  bool causal = true, compare = true;
  std::vector<std::int64_t> window;
  int threads = 0, repeat = 0;
  std::vector<std::int64_t> pages;  // of a cache, in rows; decode only
  bool cold = false;                // decode only
  bool compare_model = false;       // AMD GPUs only
  bool quiet = false;

  bool backward() const { return op == "backward"; }
};

struct Shape {
  std::int64_t b, h, hk, sq, sk, d;
};

CostShape cost_shape(const Shape& s, const BenchOptions& o) {
  CostShape c{s.b, s.h, s.hk, s.sq, s.sk, s.d, o.causal};
  if (!o.window.empty()) c.left = o.window[0], c.right = o.window[1];
  return c;
}

double flops(const Shape& s, const BenchOptions& o) {
  return (o.backward() ? 2.5 : 1.0) * forward_flops(cost_shape(s, o));
}

struct Inputs {
  Inputs(const Shape& s, DType t)
      : q(t, {s.b, s.sq, s.h, s.d}),
        k(t, {s.b, s.sk, s.hk, s.d}),
        v(t, {s.b, s.sk, s.hk, s.d}),
        dout(t, {s.b, s.sq, s.h, s.d}) {
    std::uint64_t seed = 1;
    for (Array* a : {&q, &k, &v, &dout}) a->fill(seed++);
  }
  Array q, k, v, dout;
};

// One side of the comparison: its outputs, its workspace and its times.
class Side {
 public:
  Side(Backend backend, const Shape& s, const Inputs& in, const BenchOptions& o)
      : out_(parse_dtype(o.dtype), {s.b, s.sq, s.h, s.d}),
        lse_(DType::f32, {s.b, s.h, s.sq}),
        dq_(parse_dtype(o.dtype), {s.b, s.sq, s.h, s.d}),
        dk_(parse_dtype(o.dtype), {s.b, s.sk, s.hk, s.d}),
        dv_(parse_dtype(o.dtype), {s.b, s.sk, s.hk, s.d}),
        backward_op_(o.backward()) {
    problem_.q = in.q.tensor();
    problem_.k = in.k.tensor();
    problem_.v = in.v.tensor();
    problem_.causal = o.causal;
    if (!o.window.empty()) problem_.window = Window{o.window[0], o.window[1]};
    outputs_ = {out_.tensor(), lse_.tensor(), std::nullopt};
    tensors_ = {in.dout.tensor(), out_.tensor(), lse_.tensor(), dq_.tensor(),
                dk_.tensor(),     dv_.tensor(),  std::nullopt};
    execution_ = {.backend = backend, .num_threads = o.threads};
    const std::size_t forward_bytes = rocflash::workspace_size(problem_, outputs_, execution_);
    bytes_ =
        backward_op_ ? rocflash::workspace_size(problem_, tensors_, execution_) : forward_bytes;
    workspace_.reserve(std::max(bytes_, forward_bytes));
    execution_.workspace = workspace_.data();
    execution_.workspace_size = workspace_.size();
    forward(problem_, outputs_, execution_);  // warm-up, and the input of backward
    if (backward_op_) run();
  }

  void measure() {
    const auto start = Clock::now();
    run();
    times_.add(seconds_since(start));
  }
  double median() const { return times_.median(); }
  std::size_t bytes() const { return bytes_; }
  double difference(const Side& other) const {
    if (!backward_op_) return out_.difference(other.out_);
    return std::max(
        {dq_.difference(other.dq_), dk_.difference(other.dk_), dv_.difference(other.dv_)});
  }

 private:
  void run() {
    if (backward_op_) {
      backward(problem_, tensors_, execution_);
    } else {
      forward(problem_, outputs_, execution_);
    }
  }

  Array out_, lse_, dq_, dk_, dv_;
  bool backward_op_;
  Problem problem_;
  ForwardOutputs outputs_;
  BackwardTensors tensors_;
  Execution execution_;
  Workspace workspace_;
  std::size_t bytes_ = 0;
  Times times_;
};

struct BenchRow {
  Shape shape;
  int repeats = 0;
  double seconds = 0, gflops = 0;
  std::size_t bytes = 0;
  double naive_seconds = 0, difference = 0;
  std::size_t naive_bytes = 0;
};

BenchRow measure(const Shape& s, const BenchOptions& o) {
  const Inputs in(s, parse_dtype(o.dtype));
  Side ours(Backend::cpu, s, in, o);
  std::optional<Side> naive;
  if (o.compare) naive.emplace(Backend::standard, s, in, o);

  BenchRow row;
  row.shape = s;
  // Alternating rounds, so that interference affects both equally.
  for (const auto start = Clock::now(); !enough(o.repeat, row.repeats, start); ++row.repeats) {
    ours.measure();
    if (naive) naive->measure();
  }
  row.seconds = ours.median();
  row.gflops = flops(s, o) / row.seconds * 1e-9;
  row.bytes = ours.bytes();
  if (naive) {
    row.naive_seconds = naive->median();
    row.naive_bytes = naive->bytes();
    row.difference = ours.difference(*naive);
  }
  return row;
}

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void print_table(const std::vector<BenchRow>& rows, const BenchOptions& o, std::FILE* to) {
  std::vector<std::string> titles{"seqlen", "time [ms]", "GFLOP/s", "memory [MiB]"};
  if (o.compare) {
    titles.insert(titles.end(), {"standard [ms]", "speed-up [x]", "standard [MiB]",
                                 "memory reduction [x]", "max difference"});
  }
  Table table(titles, 0);
  for (const BenchRow& r : rows) {
    std::vector<std::string> cells{
        r.shape.sq == r.shape.sk ? std::to_string(r.shape.sq)
                                 : fmt::format("{}x{}", r.shape.sq, r.shape.sk),
        fmt::format("{:.3f}", r.seconds * 1e3), fmt::format("{:.1f}", r.gflops),
        fmt::format("{:.2f}", mebibytes(r.bytes))};
    if (o.compare) {
      cells.insert(cells.end(), {fmt::format("{:.3f}", r.naive_seconds * 1e3),
                                 fmt::format("{:.2f}", ratio(r.naive_seconds, r.seconds)),
                                 fmt::format("{:.2f}", mebibytes(r.naive_bytes)),
                                 fmt::format("{:.1f}", ratio(static_cast<double>(r.naive_bytes),
                                                             static_cast<double>(r.bytes))),
                                 fmt::format("{:.1e}", r.difference)});
    }
    table.add(cells);
  }
  table.print(to);
}

Json to_json(const std::vector<BenchRow>& rows, const BenchOptions& o, int threads) {
  Json json{{"version", version()},   {"device", o.device},     {"op", o.op},
            {"dtype", o.dtype},       {"batch", o.batch},       {"heads", o.heads},
            {"kv_heads", o.kv_heads}, {"head_dim", o.head_dim}, {"causal", o.causal},
            {"threads", threads}};
  if (!o.window.empty()) json["window"] = o.window;
  json["results"] = Json::array();
  for (const BenchRow& r : rows) {
    Json entry{{"seqlen_q", r.shape.sq}, {"seqlen_k", r.shape.sk}, {"repeats", r.repeats},
               {"seconds", r.seconds},   {"gflops", r.gflops},     {"workspace_bytes", r.bytes}};
    if (o.compare) {
      entry["standard_seconds"] = r.naive_seconds;
      entry["standard_workspace_bytes"] = r.naive_bytes;
      entry["speed_up"] = ratio(r.naive_seconds, r.seconds);
      entry["memory_reduction"] =
          ratio(static_cast<double>(r.naive_bytes), static_cast<double>(r.bytes));
      entry["max_difference"] = r.difference;
    }
    json["results"].push_back(entry);
  }
  return json;
}

int bench_on_gpu(const BenchOptions& o) {
  GpuBenchOptions g{o.device,     o.dtype,   o.json,          {},     o.repeat,
                    o.backward(), o.compare, o.compare_model, o.quiet};
  for (const std::int64_t sq : o.seqlens)
    g.shapes.push_back(cost_shape(
        {o.batch, o.heads, o.kv_heads, sq, o.seqlen_k > 0 ? o.seqlen_k : sq, o.head_dim}, o));
  return bench_gpu(g);
}

// The first option that the operation does not support, or empty.
std::string unsupported_option(const BenchOptions& o) {
  if (o.op == "decode") {
    if (!o.window.empty()) return "--window";
    if (o.seqlen_k > 0) return "--seqlen-k";
  } else {
    if (!o.pages.empty()) return "--page-size";
    if (o.cold) return "--cold";
  }
  return {};
}

int bench(BenchOptions o) {
  if (const std::string option = unsupported_option(o); !option.empty()) {
    fmt::print(stderr, "rocflash bench: {} is not supported with --op {}; {}\n", option, o.op,
               o.op == "decode"
                   ? "--seqlen is the length of the KV cache, and the query attends to all of it"
                   : "it is for --op decode");
    return exit_usage;
  }
  const bool gpu = verify::DeviceName(o.device).gpu();
  if (o.compare_model && (o.op == "decode" || verify::DeviceName(o.device).driver != "hip")) {
    fmt::print(
        stderr,
        "rocflash bench: --compare-model is for --op forward and backward on an AMD GPU, such as "
        "--device hip:0, not for --op {} on {}\n",
        o.op, o.device);
    return exit_usage;
  }
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.dtype.empty()) o.dtype = gpu ? "bf16" : "f32";
  if (o.op == "decode") {
    const DecodeOptions decode{o.device,   o.dtype,    o.json,    o.batch, o.heads,
                               o.kv_heads, o.head_dim, o.seqlens, o.pages, o.threads,
                               o.repeat,   o.cold,     o.quiet};
    return gpu ? bench_decode_gpu(decode) : bench_decode(decode);
  }
  if (gpu) return bench_on_gpu(o);
  const int threads = o.threads > 0 ? o.threads : limits().default_threads;
  std::FILE* to = text_stream(o.json);
  std::string mask = o.causal ? "causal" : "not causal";
  if (!o.window.empty()) mask += fmt::format(", window {},{}", o.window[0], o.window[1]);
  fmt::print(to, "{}, {}: {}, {}, batch {}, heads {}{}, head dimension {}, {}\n",
             device_line(o.device), threads_text(threads), o.op, o.dtype, o.batch, o.heads,
             o.kv_heads == o.heads ? "" : fmt::format(" on {}", o.kv_heads), o.head_dim, mask);
  fmt::print(to, "Medians. Memory is what a call needs beyond inputs and outputs.{}\n\n",
             o.compare ? " Naive attention materializes the scores." : "");
  std::fflush(to);

  std::vector<BenchRow> rows;
  Progress progress(o.quiet);
  for (const std::int64_t sq : o.seqlens) {
    progress.show(fmt::format("{} of {}: seqlen {}", rows.size() + 1, o.seqlens.size(), sq),
                  rows.size(), o.seqlens.size());
    rows.push_back(measure(
        {o.batch, o.heads, o.kv_heads, sq, o.seqlen_k > 0 ? o.seqlen_k : sq, o.head_dim}, o));
  }
  progress.clear();
  print_table(rows, o, to);
  write_json(o.json, to_json(rows, o, threads));
  return exit_good;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto* command = app.add_subcommand("bench", "Time a device against naive attention");
  const auto o = std::make_shared<BenchOptions>();
  add_device_option(*command, o->device);
  const auto size = [&](const char* name, auto& value, const char* text) {
    return command->add_option(name, value, text)->check(positive());
  };
  command->add_option("--op", o->op, "What to time")
      ->check(CLI::IsMember({"forward", "backward", "decode"}))
      ->capture_default_str();
  size("--batch", o->batch, "Sequences")->capture_default_str();
  size("--heads", o->heads, "Heads of q")->capture_default_str();
  size("--kv-heads", o->kv_heads, "Heads of k and v; default: as many as q has");
  size("--seqlen", o->seqlens, "Lengths of q, or of the cache for decode; one row each")
      ->delimiter(',')
      ->type_name("LIST")
      ->capture_default_str();
  size("--seqlen-k", o->seqlen_k, "Length of k and v; default: that of q");
  size("--head-dim", o->head_dim, "Head dimension")->capture_default_str();
  command->add_option("--dtype", o->dtype, "Of all tensors; default: f32, on a GPU bf16")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  command->add_flag("--causal,!--no-causal", o->causal,
                    "Causal mask (default), or attend to all keys");
  command->add_option("--window", o->window, "Sliding window: keys before and after; -1: unlimited")
      ->delimiter(',')
      ->expected(2)
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 40))
      ->type_name("LEFT,RIGHT");
  command->add_option("--threads", o->threads, "CPU threads; 0: automatic")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  size("--repeat", o->repeat, "Rounds to take the median of; default: about a second's worth");
  command->add_flag("!--no-standard", o->compare,
                    "Do not run naive attention, which needs memory for all scores");
  size("--page-size", o->pages,
       "Decode: also paged KV caches with pages of this many rows, shuffled")
      ->delimiter(',')
      ->type_name("LIST");
  command->add_flag("--cold", o->cold,
                    "Decode: read other memory before each call, as a model's weights are read");
  command->add_flag("--compare-model", o->compare_model,
                    "AMD GPUs: also report the time that the simulator predicts");
  command->add_flag("--quiet", o->quiet, "Print the results without the progress");
  add_json_option(*command, o->json);
  return [o] {
    o->device = resolve_device(o->device);
    return bench(*o);
  };
}

}  // namespace rocflash::cli
