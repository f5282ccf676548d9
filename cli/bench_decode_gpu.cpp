// `rocflash bench --op decode` on a GPU: one new query per sequence over a cache, by the device's own events,
// beside the driver's copy that moves as many bytes.
#include <algorithm>
#include <numeric>
#include <random>

#include "bench_decode.hpp"
#include "commands.hpp"
#include "gpu_array.hpp"
#include "output.hpp"
#include "times.hpp"

namespace rocflash::cli {
namespace {

// An int tensor on the GPU.
class GpuInts {
 public:
  GpuInts(const std::shared_ptr<Gpu>& gpu, const std::vector<std::int32_t>& values, Dims shape)
      : gpu_(gpu), shape_(shape), memory_(gpu, values.size() * sizeof(std::int32_t)) {
    gpu->upload(memory_.data(), values.data(), memory_.size());
  }
  Tensor tensor() const { return {memory_.data(), DType::i32, shape_, {}, gpu_->dlpack()}; }

 private:
  std::shared_ptr<Gpu> gpu_;
  Dims shape_;
  GpuMemory memory_;
};

// A call with its workspace, ready to be repeated.
class RepeatedOnGpu {
 public:
  RepeatedOnGpu(const std::shared_ptr<Gpu>& gpu, const Problem& problem,
                const ForwardOutputs& outputs, Gpu::Stream stream)
      : problem_(problem),
        outputs_(outputs),
        execution_{.stream = stream},
        workspace_(gpu, workspace_size(problem, Append{}, outputs, execution_)) {
    execution_.workspace = workspace_.data();
    execution_.workspace_size = workspace_.size();
  }
  void operator()() const { decode(problem_, Append{}, outputs_, execution_); }

 private:
  Problem problem_;
  ForwardOutputs outputs_;
  Execution execution_;
  GpuMemory workspace_;
};

struct GpuDecodeRow {
  double bytes = 0;
  Times decode, copy, one_tensor;  // one_tensor: the same memory without pages; of pages only
};

GpuDecodeRow measure(const std::shared_ptr<Gpu>& gpu, const DecodeOptions& o, std::int64_t seqlen,
                     std::int64_t page) {
  const DType t = parse_dtype(o.dtype);
  const std::int64_t pages = page > 0 ? (seqlen + page - 1) / page : 1,
                     rows = page > 0 ? page : seqlen;
  const GpuArray q(gpu, t, {o.batch, 1, o.heads, o.head_dim}, 1),
      out(gpu, t, {o.batch, 1, o.heads, o.head_dim}, 0);
  const Dims cache{o.batch * pages, rows, o.kv_heads, o.head_dim},
      one_piece{o.batch, pages * rows, o.kv_heads, o.head_dim};
  const GpuArray k(gpu, t, cache, 2), v(gpu, t, cache, 3);
  std::vector<std::int32_t> table(static_cast<std::size_t>(o.batch * pages));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(1));
  const GpuInts block_table(gpu, table, {o.batch, pages}),
      used(gpu,
           std::vector<std::int32_t>(static_cast<std::size_t>(o.batch),
                                     static_cast<std::int32_t>(seqlen)),
           {o.batch});

  Problem problem{.q = q.tensor()};
  problem.k = Tensor(k.tensor().data(), t, one_piece, {}, gpu->dlpack());
  problem.v = Tensor(v.tensor().data(), t, one_piece, {}, gpu->dlpack());
  problem.seqused_k = used.tensor();
  const ForwardOutputs outputs{out.tensor(), std::nullopt, std::nullopt};
  const Gpu::Stream stream = gpu->make_stream();
  const RepeatedOnGpu one_tensor(gpu, problem, outputs, stream);
  if (page > 0) {
    problem.k = k.tensor();
    problem.v = v.tensor();
    problem.block_table = block_table.tensor();
  }
  const RepeatedOnGpu whole(gpu, problem, outputs, stream);

  GpuDecodeRow row;
  const auto half =
      static_cast<std::size_t>(o.batch * pages * rows * o.kv_heads * o.head_dim) * size_of(t);
  row.bytes = 2.0 * static_cast<double>(half);
  const auto copy = [&] { gpu->copy(v.tensor().data(), k.tensor().data(), half, stream); };
  whole();  // loads the kernels
  gpu->wait(stream);
  Stopwatch watch(*gpu);
  const double once = watch.seconds(stream, [&] { whole(); });
  const int together = o.repeat > 0 ? 1 : std::clamp(static_cast<int>(2e-3 / once), 1, 200);
  const auto time = [&](Times& times, const auto& call) {
    times.add(watch.seconds(stream, [&] {
      for (int n = 0; n < together; ++n) call();
    }) / together);
  };
  for (const auto start = Clock::now(); !enough(o.repeat, row.decode.count(), start);) {
    time(row.decode, whole);
    if (page > 0) time(row.one_tensor, one_tensor);
    time(row.copy, copy);
  }
  gpu->drop_stream(stream);
  return row;
}

}  // namespace

int bench_decode_gpu(const DecodeOptions& o) {
  const auto gpu = Gpu::open(verify::DeviceName(o.device));
  std::FILE* to = text_stream(o.json);
  fmt::print(to, "{}: decode, {}, batch {}, heads {} on {}, head size {}, one query per sequence\n",
             device_line(o.device), o.dtype, o.batch, o.heads, o.kv_heads, o.head_dim);
  fmt::print(
      to,
      "Medians by events. Copy is the driver's, of k over v: it reads and writes as many bytes "
      "as decode reads.\n\n");
  std::fflush(to);

  return report_decode(
      o, to, {"time [us]", "GB/s", "copy [GB/s]", "share of copy [%]", "time to one tensor's"},
      Json::object(), [&](std::int64_t seqlen, std::int64_t page) {
        const GpuDecodeRow r = measure(gpu, o, seqlen, page);
        const double seconds = r.decode.median(), copy = r.copy.median();
        DecodeCells row;
        row.seconds = seconds;
        if (page > 0) row.one_tensor = r.one_tensor.median();
        row.before = {fmt::format("{:.1f}", seconds * 1e6),
                      fmt::format("{:.0f}", r.bytes / seconds * 1e-9),
                      fmt::format("{:.0f}", r.bytes / copy * 1e-9),
                      fmt::format("{:.0f}", 100 * copy / seconds)};
        row.json = {{"copy_seconds", copy}, {"bytes", r.bytes}};
        return row;
      });
}

}  // namespace rocflash::cli
