// GPU families by the names that the C ABI and the command print.
#pragma once

#include <optional>
#include <string_view>

#include "table/families.hpp"

namespace rocflash::gpu {

using kernel::name_of;

constexpr std::optional<kernel::Family> family_of(std::string_view name) {
  for (int n = 0; n < kernel::family_count; ++n) {
    if (name == kernel::family_facts[n].name) return static_cast<kernel::Family>(n);
  }
  return std::nullopt;
}

}  // namespace rocflash::gpu
