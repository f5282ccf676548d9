// The kernel ABI: the kernarg segment with its hidden arguments, the
// dispatch packet, and the initial register state of a wave.
#pragma once

#include <memory>
#include <vector>

#include "core/code_object.h"
#include "core/wave.h"

namespace rocflash::sim {

struct LaunchRequest;

class KernelAbi {
 public:
  explicit KernelAbi(const LaunchRequest& request);
  ~KernelAbi();
  KernelAbi(const KernelAbi&) = delete;
  KernelAbi& operator=(const KernelAbi&) = delete;

  // Scratch bytes per lane.
  [[nodiscard]] u64 scratch_bytes(const KernelInfo& kernel) const;
  // Registers, exec and program counter of a wave that is about to start.
  void initialize(Wave& w, const KernelInfo& kernel, const u32 block[3]) const;

 private:
  void release();
  u8* kernarg_ = nullptr;
  u64 kernarg_bytes_ = 0;
  u8* packet_ = nullptr;
};

}  // namespace rocflash::sim
