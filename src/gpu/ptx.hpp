// PTX as text: what is needed of it to hand a driver one kernel at a time.
#pragma once

#include <string>
#include <string_view>

namespace rocflash::gpu {

// The module with `kernel` as its only entry; everything that entries share stays. Empty when there
// is no such kernel. Drivers compile all of a module on loading it: of 20 kernels in one, the first
// call would wait for all 20.
std::string cut_to_kernel(std::string_view module, std::string_view kernel);

}  // namespace rocflash::gpu
