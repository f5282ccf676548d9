// The tensors of a call in GPU memory. Inputs are allocated without slack, so that memory checkers
// (the simulator, compute-sanitizer) detect out-of-bounds reads. Outputs include their poisoned
// guard zones, which are checked after the copy back.
#pragma once

#include <list>
#include <string>

#include "verify/buffer.hpp"
#include "verify/gpu.hpp"

namespace rocflash::verify {

class DeviceTensors {
 public:
  explicit DeviceTensors(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  // Copies a tensor to the GPU. The result is valid during the lifetime of this object.
  Tensor input(const Tensor& host);
  Tensor output(Buffer& buffer);
  // The same for `host`, which may be a view of the first columns of `whole`, whose copy is `copy`.
  Tensor view_or_input(const Tensor& host, const Tensor& whole, const Tensor& copy);
  // Copies all tensors of a problem.
  Problem input(const Problem& host);

  // Copies outputs back to their buffers. Returns an error if an input was changed.
  std::string copy_back();

 private:
  struct Input {
    GpuMemory memory;
    const std::byte* host;
    std::size_t offset, bytes;
  };
  struct Output {
    GpuMemory memory;
    Buffer* buffer;
  };

  std::shared_ptr<Gpu> gpu_;
  std::list<Input> inputs_;
  std::list<Output> outputs_;
};

}  // namespace rocflash::verify
