// What a caller's scratch memory is held to.
#pragma once

#include <cstddef>

#include "core/calls.hpp"
#include "core/names.hpp"
#include "core/sizes.hpp"

namespace rocflash::core {

inline constexpr std::int64_t workspace_alignment = 64;

// The bytes that a call needs; refuses a call that needs more than there can be.
std::size_t workspace_bytes(Size needed, const Problem& problem);

// Refuses a workspace that is too small, missing or not aligned. Nothing needed, nothing checked.
void check_workspace(const Resources& resources, Size needed, const Problem& problem);

}  // namespace rocflash::core
