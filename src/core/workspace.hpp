// Requirements on the caller's workspace.
#pragma once

#include <cstddef>

#include "core/calls.hpp"
#include "core/names.hpp"
#include "core/sizes.hpp"

namespace rocflash::core {

inline constexpr std::int64_t workspace_alignment = 64;

// The bytes that a call needs; throws if they exceed the address space.
std::size_t workspace_bytes(Size needed, const Problem& problem);

// Rejects a workspace that is too small, null or misaligned. A call that needs none accepts any.
void check_workspace(const Resources& resources, Size needed, const Problem& problem);

}  // namespace rocflash::core
