#include "bench_gpu.hpp"

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <optional>

#include "exit_status.hpp"
#include "gpu_array.hpp"
#include "model.hpp"
#include "output.hpp"
#include "table.hpp"
#include "times.hpp"

namespace rocflash::cli {
namespace {

struct GpuRow {
  CostShape shape;
  int repeats = 0;
  double seconds = 0, tflops = 0;
  Traffic traffic;
  bool counted = false;  // traffic.requested was counted by the simulator
  std::optional<Prediction> predicted;
  std::size_t bytes = 0;  // of the workspace
  // Naive attention, if requested; the difference if the host can hold the score matrix.
  double standard_seconds = 0;  // 0: out of device memory
  std::size_t standard_bytes = 0;
  std::optional<double> difference;
};

// The host computes naive attention once per row as the baseline; larger score matrices are
// skipped.
constexpr std::size_t largest_score_matrix = std::size_t{1} << 30;

std::string family_of(const rocflash_device& device) {
  for (const rocflash_target& t : targets()) {
    if (std::string(t.arch) == device.arch) return t.family;
  }
  return {};
}

// The maximum difference of `out`, or of the gradients, from naive attention on the host.
double difference_from_naive(const Problem& problem, const GpuArray& q, const GpuArray& k,
                             const GpuArray& v, const GpuArray& out,
                             const std::list<GpuArray>& gradients) {
  const auto like = [](const GpuArray& a) { return Array(a.tensor().dtype(), a.tensor().shape()); };
  const Array host_q = q.on_host(), host_k = k.on_host(), host_v = v.on_host();
  Problem host_problem = problem;
  host_problem.q = host_q.tensor();
  host_problem.k = host_k.tensor();
  host_problem.v = host_v.tensor();
  const Dims shape = out.tensor().shape();
  const Array naive = like(out), lse(DType::f32, {shape[0], shape[2], shape[1]});
  Execution execution{.backend = Backend::standard};
  Workspace workspace;
  const auto reserve = [&](std::size_t bytes) {
    workspace.reserve(bytes);
    execution.workspace = workspace.data();
    execution.workspace_size = workspace.size();
  };
  const ForwardOutputs outputs{naive.tensor(), lse.tensor(), std::nullopt};
  reserve(workspace_size(host_problem, outputs, execution));
  forward(host_problem, outputs, execution);
  if (gradients.empty()) return out.on_host().difference(naive);

  auto given = gradients.begin();  // dout, dq, dk, dv
  const Array dout = given->on_host(), dq = like(*++given), dk = like(*++given),
              dv = like(*++given);
  const BackwardTensors tensors{.dout = dout.tensor(),
                                .out = naive.tensor(),
                                .lse = lse.tensor(),
                                .dq = dq.tensor(),
                                .dk = dk.tensor(),
                                .dv = dv.tensor()};
  reserve(workspace_size(host_problem, tensors, execution));
  backward(host_problem, tensors, execution);
  double largest = 0;
  given = gradients.begin();
  for (const Array* baseline : {&dq, &dk, &dv}) {
    const double d = (++given)->on_host().difference(*baseline);
    if (!(d <= largest)) largest = d;  // NaN propagates
  }
  return largest;
}

GpuRow measure(const std::shared_ptr<Gpu>& gpu, const CostShape& s, const GpuBenchOptions& o) {
  const DType t = parse_dtype(o.dtype);
  const GpuArray q(gpu, t, {s.b, s.sq, s.h, s.d}, 1), k(gpu, t, {s.b, s.sk, s.hk, s.d}, 2),
      v(gpu, t, {s.b, s.sk, s.hk, s.d}, 3), out(gpu, t, {s.b, s.sq, s.h, s.d}, 0),
      lse(gpu, DType::f32, {s.b, s.h, s.sq}, 0);
  Problem problem{.q = q.tensor(), .k = k.tensor(), .v = v.tensor(), .causal = s.causal};
  if (s.left >= 0 || s.right >= 0) problem.window = Window{s.left, s.right};
  const ForwardOutputs outputs{out.tensor(), lse.tensor(), std::nullopt};
  Execution execution{.stream = gpu->make_stream()};
  const auto workspace_of = [&](std::size_t bytes) {
    auto memory = std::make_unique<GpuMemory>(gpu, bytes);
    execution.workspace = memory->data();
    execution.workspace_size = memory->size();
    return memory;
  };
  auto workspace = workspace_of(workspace_size(problem, outputs, execution));
  std::function<void()> launch = [&] { forward(problem, outputs, execution); };

  GpuRow row;
  row.shape = s;
  const std::string family = family_of(gpu->about());
  row.traffic = o.backward ? backward_traffic(s, family) : forward_traffic(s, family);
  gpu->count_launches(true);
  // If the simulator executes only a sample of the workgroups, forward leaves rows of lse
  // unwritten. Uninitialized values would give infinite weights, and backward would recompute every
  // such row as a non-finite row.
  if (o.backward) gpu->fill(lse.tensor().data(), 0, lse.bytes());
  if (!o.backward) gpu->predict(true);
  launch();  // loads the kernels
  gpu->wait(execution.stream);
  std::list<GpuArray> more;  // of backward
  BackwardTensors tensors;
  if (o.backward) {
    const auto array = [&](const GpuArray& like, std::uint64_t seed) {
      return more.emplace_back(gpu, t, like.tensor().shape(), seed).tensor();
    };
    tensors = {.dout = array(out, 4),
               .out = out.tensor(),
               .lse = lse.tensor(),
               .dq = array(q, 0),
               .dk = array(k, 0),
               .dv = array(v, 0)};
    workspace = workspace_of(workspace_size(problem, tensors, execution));
    launch = [&] { backward(problem, tensors, execution); };
    gpu->predict(true);
    launch();
    gpu->wait(execution.stream);
  } else if (const std::string counters = gpu->counters(); !counters.empty()) {
    const Json j = Json::parse(counters);
    row.counted = true;
    row.traffic.requested =
        j["global_load_bytes"].get<double>() + j["global_store_bytes"].get<double>();
  }
  gpu->count_launches(false);
  if (const std::string last = gpu->prediction(); !last.empty())
    row.predicted = parse_prediction(gpu->predicted_seconds(), last);
  gpu->predict(false);

  row.bytes = execution.workspace_size;
  Stopwatch watch(*gpu);
  const auto timed = [&] {
    // Several launches between two events if one is too short to measure.
    const double once = watch.seconds(execution.stream, launch);
    const int launches = o.repeat > 0 ? 1 : std::clamp(static_cast<int>(2e-3 / once), 1, 200);
    Times times;
    for (const auto start = Clock::now(); !enough(o.repeat, times.count(), start);) {
      times.add(watch.seconds(execution.stream, [&] {
        for (int n = 0; n < launches; ++n) launch();
      }) / launches);
    }
    row.repeats = times.count() * launches;
    return times.median();
  };
  row.seconds = timed();
  if (o.compare) {
    // The weight matrix of forward, which backward keeps, and the score gradients of backward.
    std::list<GpuArray> matrices;
    try {
      for (int n = 0; n < (o.backward ? 2 : 1); ++n)
        matrices.emplace_back(gpu, t, Dims{s.b, s.h, s.sq, s.sk}, 0);
    } catch (const Error&) {
      matrices.clear();  // out of memory: the columns stay empty
    }
    if (!matrices.empty()) {
      const GpuArray &first = matrices.front(), &last = matrices.back();
      if (first.bytes() <= largest_score_matrix)
        row.difference = difference_from_naive(problem, q, k, v, out, more);
      const ForwardOutputs all{out.tensor(), lse.tensor(), first.tensor()};
      Problem biased = problem;
      if (o.backward) {
        // A zero bias has no effect, and its gradients are those of the scores.
        gpu->fill(first.tensor().data(), 0, first.bytes());
        biased.bias = first.tensor();
        tensors.dbias = last.tensor();
        workspace = workspace_of(workspace_size(biased, tensors, execution));
        launch = [&] { backward(biased, tensors, execution); };
      } else {
        workspace = workspace_of(workspace_size(problem, all, execution));
        launch = [&] { forward(problem, all, execution); };
      }
      launch();
      gpu->wait(execution.stream);
      const int repeats = row.repeats;
      row.standard_seconds = timed();
      row.repeats = repeats;
      row.standard_bytes = matrices.size() * first.bytes() + execution.workspace_size;
    }
  }
  gpu->destroy_stream(execution.stream);
  row.tflops = (o.backward ? 2.5 : 1.0) * forward_flops(s) / row.seconds * 1e-12;
  return row;
}

double mebibytes(double bytes) { return bytes / (1 << 20); }

std::string length_text(const CostShape& s) {
  return s.sq == s.sk ? std::to_string(s.sq) : fmt::format("{}x{}", s.sq, s.sk);
}

}  // namespace

int bench_gpu(const GpuBenchOptions& o) {
  const auto gpu = Gpu::open(verify::DeviceName(o.device));
  const rocflash_device& about = gpu->about();
  const char* op = o.backward ? "backward" : "forward";
  const bool simulated = std::string(about.name).starts_with("Simulated");
  // `arch` may be an older compatible architecture; `features` starts with the device's own.
  const std::string features = about.features;
  const auto peak = peak_tflops(features.substr(0, features.find(' ')), about.units);
  std::FILE* to = text_stream(o.json);
  const CostShape& s = o.shapes.front();
  std::string mask = s.causal ? "causal" : "not causal";
  if (s.left >= 0 || s.right >= 0) mask += fmt::format(", window {},{}", s.left, s.right);
  fmt::print(to, "{}: {}, {}, batch {}, heads {}{}, head dimension {}, {}\n", device_line(o.device),
             op, o.dtype, s.b, s.h, s.hk == s.h ? "" : fmt::format(" on {}", s.hk), s.d, mask);
  fmt::print(
      to, "Medians of event times. Least: inputs read once, outputs written once. Requested: {}.\n",
      simulated && !o.backward ? "counted by the simulator"
                               : "by the kernels' tiles, without caches");
  const bool compare = o.compare;
  if (compare)
    fmt::print(
        to,
        "Standard: {} written to memory with this library's kernels; a framework also reads "
        "them\nback. Memory: beyond inputs and outputs{}. Difference: from naive attention on "
        "the host.\n",
        o.backward ? "the same gradients and those of all scores"
                   : "the same attention and all weights",
        o.backward ? "; naive attention also keeps forward's weights" : "");
  if (simulated)
    fmt::print(to,
               "The device is simulated: its times are not those of a GPU. Predicted: by its cycle "
               "model, summed over launches.\n");
  else if (peak)
    fmt::print(to, "Peak: {:.0f} TFLOP/s, {} units at the architecture's boost clock.\n", *peak,
               about.units);
  fmt::print(to, "\n");
  std::fflush(to);

  std::vector<std::string> titles{"seqlen", "time [ms]", "TFLOP/s"};
  const bool share = peak && !simulated;
  if (share) titles.emplace_back("of peak [%]");
  titles.insert(titles.end(), {"least [MiB]", "requested [MiB]", "ratio [x]"});
  const bool model = simulated || o.compare_model;
  if (model)
    titles.insert(titles.end(),
                  {"predicted [ms]", "predicted TFLOP/s", "clock [MHz]", "matrix [%]"});
  if (o.compare_model) titles.emplace_back("measured / predicted");
  if (compare)
    titles.insert(titles.end(), {"standard [ms]", "speed-up [x]", "memory [MiB]", "standard [MiB]",
                                 "max difference"});
  Table table(titles, 0);
  Json json{{"version", version()}, {"device", o.device}, {"name", about.name},
            {"arch", about.arch},   {"op", op},           {"dtype", o.dtype},
            {"batch", s.b},         {"heads", s.h},       {"kv_heads", s.hk},
            {"head_dim", s.d},      {"causal", s.causal}, {"simulated", simulated}};
  if (share) json["peak_tflops"] = *peak;
  json["results"] = Json::array();
  Progress progress(o.quiet);
  for (std::size_t done = 0; const CostShape& shape : o.shapes) {
    progress.show("seqlen " + length_text(shape), done++, o.shapes.size());
    GpuRow r = measure(gpu, shape, o);
    if (o.compare_model && !r.predicted)
      r.predicted = predict_on_simulator(about.arch, op, o.dtype, shape);
    std::vector<std::string> cells{length_text(shape), fmt::format("{:.3f}", r.seconds * 1e3),
                                   fmt::format("{:.1f}", r.tflops)};
    if (share) cells.push_back(fmt::format("{:.1f}", 100 * r.tflops / *peak));
    cells.insert(cells.end(), {fmt::format("{:.2f}", mebibytes(r.traffic.least)),
                               fmt::format("{:.2f}", mebibytes(r.traffic.requested)),
                               fmt::format("{:.1f}", r.traffic.requested / r.traffic.least)});
    if (model && r.predicted) {
      const double tflops = r.tflops * r.seconds / r.predicted->seconds;
      cells.insert(cells.end(),
                   {fmt::format("{:.4f}", r.predicted->seconds * 1e3),
                    fmt::format("{:.1f}", tflops), fmt::format("{:.0f}", r.predicted->clock_mhz),
                    fmt::format("{:.1f}", 100 * r.predicted->matrix_busy)});
      if (o.compare_model) cells.push_back(fmt::format("{:.2f}", r.seconds / r.predicted->seconds));
    }
    const auto text = [&](double value, int digits) {
      return r.standard_seconds > 0 ? fmt::format("{:.{}f}", value, digits) : std::string("-");
    };
    if (compare)
      cells.insert(cells.end(),
                   {text(r.standard_seconds * 1e3, 3), text(r.standard_seconds / r.seconds, 2),
                    fmt::format("{:.2f}", mebibytes(static_cast<double>(r.bytes))),
                    text(mebibytes(static_cast<double>(r.standard_bytes)), 2),
                    r.difference ? fmt::format("{:.1e}", *r.difference) : "-"});
    table.add(cells);
    Json entry{{"seqlen_q", shape.sq},
               {"seqlen_k", shape.sk},
               {"repeats", r.repeats},
               {"seconds", r.seconds},
               {"tflops", r.tflops},
               {"least_bytes", r.traffic.least},
               {"requested_bytes", r.traffic.requested},
               {"requested_is_counted", r.counted}};
    if (compare && r.standard_seconds > 0) {
      entry["workspace_bytes"] = r.bytes;
      entry["standard_seconds"] = r.standard_seconds;
      entry["standard_workspace_bytes"] = r.standard_bytes;
      entry["speed_up"] = r.standard_seconds / r.seconds;
      if (r.difference) entry["max_difference"] = *r.difference;
    }
    if (share) entry["share_of_peak"] = r.tflops / *peak;
    if (r.predicted) {
      entry["predicted_seconds"] = r.predicted->seconds;
      entry["predicted_tflops"] = r.tflops * r.seconds / r.predicted->seconds;
      entry["predicted_clock_mhz"] = r.predicted->clock_mhz;
      entry["predicted_matrix_busy"] = r.predicted->matrix_busy;
    }
    json["results"].push_back(entry);
  }
  progress.clear();
  table.print(to);
  write_json(o.json, json);
  return exit_good;
}

}  // namespace rocflash::cli
