// The tensors of a call in a GPU's memory. Inputs are allocated as tight as their elements lie, so
// that whatever watches over accesses (the simulator, compute-sanitizer) sees a step beyond;
// outputs bring their poisoned guard zones along and are looked at when they are back.
#pragma once

#include <list>
#include <string>

#include "verify/buffer.hpp"
#include "verify/gpu.hpp"

namespace rocflash::verify {

class Mirror {
 public:
  explicit Mirror(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  // The same tensor on the GPU. Valid as long as this mirror is.
  Tensor input(const Tensor& host);
  Tensor output(Buffer& buffer);
  // The same, of a tensor that may be the first columns of another one, whose copy is there already.
  Tensor within(const Tensor& host, const Tensor& whole, const Tensor& copy);
  // Every tensor of a problem.
  Problem input(const Problem& host);

  // Copies outputs back into their buffers. Returns what happened to the inputs, if anything.
  std::string fetch();

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
