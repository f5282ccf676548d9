// `rocflash bench --op decode` on a GPU: one new query per sequence over a KV cache, timed with
// events and compared with the read bandwidth of the same bytes and the driver's copy.
#include <algorithm>

#include "api/measure.hpp"
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

// A kernel that only reads the cache, with several grid sizes; the fastest is the bandwidth bound.
class ReaderOnGpu {
 public:
  ReaderOnGpu(const std::shared_ptr<Gpu>& gpu, const void* data, std::size_t bytes,
              Gpu::Stream stream)
      : device_(gpu->dlpack()), data_(data), bytes_(bytes), stream_(stream), found_(gpu, 4) {
    constexpr std::size_t workgroup_bytes = 256 * 128;  // read by a workgroup per iteration
    const auto most =
        static_cast<int>(std::clamp<std::size_t>(bytes / workgroup_bytes, 1, 1 << 20));
    for (const int per_unit : {1, 2, 4, 8, 16}) {
      sizes_.push_back(std::min(per_unit * gpu->about().units, most));
      if (sizes_.back() == most) break;
    }
    times_.resize(sizes_.size());
  }
  // Adds a measurement of each grid size with `time`.
  template <class Time>
  void add(Time time) {
    for (std::size_t n = 0; n < sizes_.size(); ++n) time(times_[n], [&, n] { read(sizes_[n]); });
  }
  // Reads once without measuring.
  void read_once() const { read(sizes_.back()); }
  double seconds() const { return times_[fastest()].median(); }
  int workgroups() const { return sizes_[fastest()]; }

 private:
  void read(int workgroups) const {
    check(rocflash_measure_read(device_, data_, bytes_, workgroups, found_.data(), stream_));
  }
  std::size_t fastest() const {
    const auto slower = [](const Times& a, const Times& b) { return a.median() < b.median(); };
    return static_cast<std::size_t>(std::min_element(times_.begin(), times_.end(), slower) -
                                    times_.begin());
  }

  DLDevice device_;
  const void* data_;
  std::size_t bytes_;
  Gpu::Stream stream_;
  GpuMemory found_;
  std::vector<int> sizes_;
  std::vector<Times> times_;
};

DecodeTimes measure(const std::shared_ptr<Gpu>& gpu, const DecodeOptions& o, const DecodeCase& c) {
  const DType t = c.dtype;
  // k and v are one allocation, which one launch can read.
  const Dims& rows = c.cache;
  const GpuArray q(gpu, t, c.queries, 1), out(gpu, t, c.queries, 0),
      both(gpu, t, {2 * rows[0], rows[1], rows[2], rows[3]}, 2);
  auto* const k = static_cast<std::byte*>(both.tensor().data());
  const std::size_t bytes = both.bytes() / 2;
  const auto cache = [&](void* data, const Dims& shape) {
    return Tensor(data, t, shape, {}, gpu->dlpack());
  };
  const GpuInts block_table(gpu, c.table, c.table_shape), used(gpu, c.used, {o.batch});

  Problem problem{.q = q.tensor()};
  problem.k = cache(k, c.contiguous);
  problem.v = cache(k + bytes, c.contiguous);
  problem.seqused_k = used.tensor();
  const ForwardOutputs outputs{out.tensor(), std::nullopt, std::nullopt};
  const Gpu::Stream stream = gpu->make_stream();
  const RepeatedOnGpu one_tensor(gpu, problem, outputs, stream);
  if (c.page > 0) {
    problem.k = cache(k, c.cache);
    problem.v = cache(k + bytes, c.cache);
    problem.block_table = block_table.tensor();
  }
  const RepeatedOnGpu decoding(gpu, problem, outputs, stream);

  const auto copy = [&] { gpu->copy(k + bytes, k, bytes, stream); };
  ReaderOnGpu reader(gpu, k, both.bytes(), stream);
  decoding();  // loads the kernels
  gpu->wait(stream);
  Stopwatch watch(*gpu);
  const double once = watch.seconds(stream, [&] { decoding(); });
  const int launches = o.repeat > 0 ? 1 : std::clamp(static_cast<int>(2e-3 / once), 1, 200);
  const auto time = [&](Times& times, const auto& call) {
    times.add(watch.seconds(stream, [&] {
      for (int n = 0; n < launches; ++n) call();
    }) / launches);
  };
  Times decodes, copies, of_one_tensor;
  for (const auto start = Clock::now(); !enough(o.repeat, decodes.count(), start);) {
    time(decodes, decoding);
    if (c.page > 0) time(of_one_tensor, one_tensor);
    reader.add(time);
    time(copies, copy);
    reader.read_once();  // evicts what the copy wrote before the next measurement
  }
  gpu->destroy_stream(stream);
  return {.seconds = decodes.median(),
          .one_tensor_seconds = c.page > 0 ? of_one_tensor.median() : 0,
          .bound_seconds = reader.seconds(),
          .cells = {fmt::format("{:.1f}", c.bytes() / copies.median() * 1e-9),
                    std::to_string(reader.workgroups())},
          .more = {{"copy_seconds", copies.median()}, {"read_workgroups", reader.workgroups()}}};
}

}  // namespace

int bench_decode_gpu(const DecodeOptions& o) {
  const auto gpu = Gpu::open(verify::DeviceName(o.device));
  std::FILE* to = text_stream(o.json);
  fmt::print(
      to, "{}: decode, {}, batch {}, heads {} on {}, head dimension {}, one query per sequence\n",
      device_line(o.device), o.dtype, o.batch, o.heads, o.kv_heads, o.head_dim);
  fmt::print(
      to,
      "Medians of event times. Reading is a kernel that only reads the same bytes, with the number "
      "of workgroups that\nis fastest. Copy is the driver's copy of k to v: it reads and writes as "
      "many bytes as decode reads.\n\n");
  std::fflush(to);
  return bench_decode_cases(o, {"reading", "read_seconds"}, {"copy [GB/s]", "reading's workgroups"},
                            Json::object(),
                            [&](const DecodeCase& c) { return measure(gpu, o, c); });
}

}  // namespace rocflash::cli
