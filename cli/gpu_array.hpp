// Tensors in GPU memory and event timing: shared by the GPU benchmarks.
#pragma once

#include <algorithm>
#include <memory>

#include "array.hpp"
#include "verify/gpu.hpp"

namespace rocflash::cli {

using verify::Gpu;
using verify::GpuMemory;

// A tensor in GPU memory, filled with a repeated pattern of random numbers.
class GpuArray {
 public:
  GpuArray(const std::shared_ptr<Gpu>& gpu, DType dtype, const Dims& shape, std::uint64_t seed)
      : gpu_(gpu), dtype_(dtype), shape_(shape), memory_(gpu, bytes_of(dtype, shape)) {
    if (seed == 0) return;  // an output
    constexpr std::int64_t pattern_elements = 1 << 20;
    Array pattern(dtype, {pattern_elements});
    pattern.fill(seed);
    for (std::size_t at = 0; at < memory_.size(); at += pattern.bytes())
      gpu->upload(memory_.data() + at, pattern.tensor().data(),
                  std::min(pattern.bytes(), memory_.size() - at));
  }
  Tensor tensor() const { return {memory_.data(), dtype_, shape_, {}, gpu_->dlpack()}; }
  std::size_t bytes() const { return memory_.size(); }
  Array on_host() const {
    Array copy(dtype_, shape_);
    gpu_->download(copy.tensor().data(), memory_.data(), memory_.size());
    return copy;
  }

 private:
  std::shared_ptr<Gpu> gpu_;
  DType dtype_;
  Dims shape_;
  GpuMemory memory_;
};

// Two events around launches.
class Stopwatch {
 public:
  explicit Stopwatch(Gpu& gpu) : gpu_(gpu), begin_(gpu.make_event()), end_(gpu.make_event()) {}
  ~Stopwatch() {
    gpu_.destroy_event(begin_);
    gpu_.destroy_event(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  template <class Body>
  double seconds(Gpu::Stream stream, const Body& body) {
    gpu_.record(begin_, stream);
    body();
    gpu_.record(end_, stream);
    return gpu_.seconds(begin_, end_);
  }

 private:
  Gpu& gpu_;
  Gpu::Event begin_, end_;
};

}  // namespace rocflash::cli
