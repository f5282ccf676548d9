// The plans of several hundred problems on every family, as text: one line per problem and device.
// Two versions of kernel selection are the same if their listings are.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/calls.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

enum class Call : std::uint8_t { forward, decode, backward };

// One call without a device: its tensors are never dereferenced.
struct ListedCall {
  std::string name;
  Call call = Call::forward;
  Problem problem;
  ForwardOutputs outputs;
  Append append;
  BackwardTensors tensors;
};

struct ListedChip {
  const char* name;
  Chip chip;
};

std::vector<ListedCall> listed_calls();
std::vector<ListedChip> listed_chips();

// The kernels in launch order with grid, workgroup and shared memory, and the workspace; or the
// message of the exception. `arguments` appends a hash of all arguments (clang only).
std::string plan_text(const ListedCall& call, Chip chip, bool arguments);

// The launches of a reusable plan with other addresses, and those of a plan for these addresses,
// each with its arguments as plan_text.
std::pair<std::string, std::string> reused_plan_texts(const ListedCall& call, Chip chip);

}  // namespace rocflash::gpu
