#include "gpu/ptx.hpp"

#include <algorithm>

namespace rocflash::gpu {

// Relies on clang's layout of PTX: an entry's header starts a line, and a line with only a closing
// brace ends the entry.
std::string extract_kernel(std::string_view module, std::string_view kernel) {
  constexpr std::string_view entry = ".visible .entry ";
  std::string extracted;
  bool inside_other = false, found = false;
  while (!module.empty()) {
    const std::string_view line =
        module.substr(0, std::min(module.find('\n'), module.size() - 1) + 1);
    module.remove_prefix(line.size());
    if (line.starts_with(entry)) {
      const std::string_view header = line.substr(entry.size());
      inside_other = header.substr(0, header.find_first_of("( \t\n")) != kernel;
      found |= !inside_other;
    }
    if (!inside_other) extracted += line;
    if (line == "}\n" || line == "}") inside_other = false;
  }
  return found ? extracted : std::string();
}

}  // namespace rocflash::gpu
