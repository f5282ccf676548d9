// Families of GPUs by name, as the C ABI and the command say them.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "table.hpp"

namespace rocflash::gpu {

inline constexpr std::array family_names = {"cdna2", "cdna3", "cdna4", "rdna2",
                                            "rdna3", "rdna4", "nvidia"};

constexpr const char* name_of(kernel::Family family) {
  return family_names[static_cast<std::size_t>(family)];
}
static_assert(name_of(kernel::Family::nvidia) == std::string_view("nvidia"));

constexpr std::optional<kernel::Family> family_of(std::string_view name) {
  for (std::size_t n = 0; n < family_names.size(); ++n) {
    if (name == family_names[n]) return static_cast<kernel::Family>(n);
  }
  return std::nullopt;
}

}  // namespace rocflash::gpu
