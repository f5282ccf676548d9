// `rocflash-sim validate`.
#pragma once

#include <string>

namespace rocflash::sim::tool {

// Prints model and measurement of each microkernel. 0, or 1 where an error exceeds the recorded
// tolerance. `arch` empty: all targets.
int validate_model(const std::string& clang, const std::string& arch);

}  // namespace rocflash::sim::tool
