// `rocflash-sim validate`.
#pragma once

#include <string>

namespace rocflash::sim::tool {

// Prints model beside measurement for each microkernel. 0, or 1 where the model is further off than
// it is known to be. `arch` empty: all targets.
int validate_model(const std::string& clang, const std::string& arch);

}  // namespace rocflash::sim::tool
