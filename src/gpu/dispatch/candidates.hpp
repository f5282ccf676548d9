// Candidates of kernel selection: the kernels that were considered and why each was rejected.
// Selections are made for every call, so a rejection is a few numbers; text is made on demand.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "gpu/dispatch/features.hpp"
#include "table/kernels.hpp"

namespace rocflash::gpu {

enum class Reason : std::uint8_t {
  features,     // the kernel does not support features of the call
  no_kernel,    // the device's family does not have the kernel for the dtype and head dimension
  no_sm90,      // the device is not an sm_90
  tensor_map,   // TMA does not support the strides of a tensor
  small_pages,  // the rows of a TMA box divide the page: fewer than eight
  workgroup_shared,  // the tile does not fit in the shared memory of a workgroup
  grid,              // more workgroups than a launch can have
  f32_precision,     // f32 matrix kernels would lose the last bit, or recompute every row
  no_queries,        // there is nothing to compute
  many_queries,      // decode is for few queries
  few_keys,          // splitting the keys costs more than it gains
  many_row_blocks,   // larger query tiles read K and V less often
  long_kv,           // clusters have less bandwidth than split-KV
  num_splits,        // the requested number of splits is not a cluster size
  full_last_wave,    // wave quantization: nothing to gain
  gradients,         // the kernel saves nothing for the requested gradients
  deterministic,     // atomic accumulation is not deterministic
  separate_keys,     // MLA: the values are not the first columns of the keys
  preferred,         // an earlier candidate was selected
};

// Text for messages: "does not support softcap, dropout".
std::string text_of(Reason reason, Features features = {});

struct Rejection {
  kernel::KernelSpec kernel;  // bucket 0: none for the head dimension
  Reason reason = Reason::features;
  Features features = {};
};

class Rejections {
 public:
  void add(const kernel::KernelSpec& kernel, Reason reason, Features features = {}) {
    if (count_ < list_.size()) list_[count_++] = {kernel, reason, features};
  }
  std::span<const Rejection> list() const { return {list_.data(), count_}; }

 private:
  std::array<Rejection, 8> list_;
  std::size_t count_ = 0;
};

}  // namespace rocflash::gpu
