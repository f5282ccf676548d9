// The tensors of a plan: all that their addresses must satisfy in a run.
#pragma once

#include <rocflash/rocflash.h>

#include <cstdint>
#include <vector>

#include "api/call_tensors.hpp"
#include "core/arguments.hpp"

namespace rocflash {

class PlanTensors {
 public:
  explicit PlanTensors(const TensorRecord& record);

  // Values with the same alignment, and the same equality of k and v, as those of every run.
  const ArgumentValues& like() const { return like_; }
  // The addresses of a run. Throws unless exactly the plan's tensors are given, each as aligned as
  // the plan assumes, and no output overlaps another tensor.
  ArgumentValues read(const rocflash_plan_arguments& in) const;

 private:
  struct PlanTensor {
    Argument argument;
    std::uint64_t alignment;  // bytes, a power of two
    Extent extent;            // of a tensor at address 0
  };
  // Tensors that must not share memory, as indices.
  struct Pair {
    std::uint8_t one, other;
  };

  [[noreturn]] void refuse_presence(const ArgumentValues& values) const;
  void check_overlap(Pair pair, const ArgumentValues& values) const;

  std::vector<PlanTensor> tensors_;
  std::vector<Pair> separate_;
  std::uint64_t present_ = 0, required_ = 0;  // bit masks over Argument
  bool same_caches_ = false, same_new_ = false;
  bool same_scales_ = false;  // MLA: append quantizes the latent KV cache
  ArgumentValues like_;
};

}  // namespace rocflash
