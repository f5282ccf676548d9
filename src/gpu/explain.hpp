// What kernel selection decides for a call, as text for people and tools: the launches in order,
// the workspace, and the rejected candidates with the reason of each. Runs without a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/dispatch/chip.hpp"

namespace rocflash::core {
struct ForwardCall;
struct DecodeCall;
struct BackwardCall;
struct CombineCall;
struct RotateCall;
}  // namespace rocflash::core

namespace rocflash::gpu {

struct ExplainedKernel {
  std::string name, operation, schedule;
};

struct ExplainedLaunch {
  ExplainedKernel kernel;
  std::string family;
  std::uint32_t grid[3] = {1, 1, 1}, threads = 0;
  std::uint32_t dynamic_shared = 0;  // bytes passed at launch, besides what the kernel declares
  std::uint32_t cluster = 1;
  bool pdl = false;
};

struct ExplainedRejection {
  ExplainedKernel kernel;
  std::string reason;
};

struct Explanation {
  std::string refusal;  // why no kernel supports the call; empty if one does
  std::vector<std::string> features;
  std::vector<ExplainedLaunch> launches;
  std::int64_t workspace = 0;  // bytes
  std::int32_t splits = 1;     // workgroups that divide the keys of a row block
  std::vector<ExplainedRejection> rejected;
};

Explanation explain(const core::ForwardCall& call, Chip chip);
Explanation explain(const core::DecodeCall& call, Chip chip);
Explanation explain(const core::BackwardCall& call, Chip chip);
Explanation explain(const core::CombineCall& call, Chip chip);
Explanation explain(const core::RotateCall& call, Chip chip);

// The reference card of an architecture ("gfx942", "sm_90") in table/devices.inc, with `units`
// compute units or multiprocessors; 0: those of the card. None for other architectures. CUDA
// devices run the kernels of the newest architecture that is not newer.
std::optional<Chip> chip_of(std::string_view arch, int units = 0);
// The architectures that have a reference card, space-separated.
std::string known_archs();

}  // namespace rocflash::gpu
