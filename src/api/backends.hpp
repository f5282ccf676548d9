// Who computes a call: the device of its tensors decides, and on the CPU the caller may.
#pragma once

#include <rocflash/rocflash.h>

#include "api/tensor.hpp"
#include "core/backend.hpp"

namespace rocflash {

const Backend& choose_backend(const rocflash_execution&, Device);

}  // namespace rocflash
