// `rocflash bench --op decode` on a GPU: one new query per sequence over a cache, by the device's own events,
// beside the driver's copy that moves as many bytes.
#include <algorithm>

#include "bench_decode.hpp"
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

DecodeTimes measure(const std::shared_ptr<Gpu>& gpu, const DecodeOptions& o, const DecodeCase& c) {
  const DType t = c.dtype;
  const GpuArray q(gpu, t, c.queries, 1), out(gpu, t, c.queries, 0), k(gpu, t, c.cache, 2),
      v(gpu, t, c.cache, 3);
  const GpuInts block_table(gpu, c.table, c.table_shape), used(gpu, c.used, {o.batch});

  Problem problem{.q = q.tensor()};
  problem.k = Tensor(k.tensor().data(), t, c.one_piece, {}, gpu->dlpack());
  problem.v = Tensor(v.tensor().data(), t, c.one_piece, {}, gpu->dlpack());
  problem.seqused_k = used.tensor();
  const ForwardOutputs outputs{out.tensor(), std::nullopt, std::nullopt};
  const Gpu::Stream stream = gpu->make_stream();
  const RepeatedOnGpu one_tensor(gpu, problem, outputs, stream);
  if (c.page > 0) {
    problem.k = k.tensor();
    problem.v = v.tensor();
    problem.block_table = block_table.tensor();
  }
  const RepeatedOnGpu whole(gpu, problem, outputs, stream);

  const auto copy = [&] { gpu->copy(v.tensor().data(), k.tensor().data(), k.bytes(), stream); };
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
  Times decodes, copies, of_one_tensor;
  for (const auto start = Clock::now(); !enough(o.repeat, decodes.count(), start);) {
    time(decodes, whole);
    if (c.page > 0) time(of_one_tensor, one_tensor);
    time(copies, copy);
  }
  gpu->drop_stream(stream);
  return {.seconds = decodes.median(),
          .one_tensor_seconds = c.page > 0 ? of_one_tensor.median() : 0,
          .bound_seconds = copies.median()};
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
  return bench_decode_cases(o, {"copy", "copy_seconds"}, {}, Json::object(),
                            [&](const DecodeCase& c) { return measure(gpu, o, c); });
}

}  // namespace rocflash::cli
