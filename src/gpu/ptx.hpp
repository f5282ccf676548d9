// Splits PTX text so that the driver JIT-compiles one kernel at a time.
#pragma once

#include <string>
#include <string_view>

namespace rocflash::gpu {

// The module with `kernel` as its only entry; the declarations that entries share remain. Empty
// when the module lacks the kernel. Drivers compile a whole module when they load it, so without
// this the first call would compile all of its kernels.
std::string extract_kernel(std::string_view module, std::string_view kernel);

}  // namespace rocflash::gpu
