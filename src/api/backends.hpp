// Backend selection: by the device of the tensors, and for CPU tensors by execution.backend.
#pragma once

#include <rocflash/rocflash.h>

#include "api/tensor.hpp"
#include "core/backend.hpp"

namespace rocflash {

const Backend& select_backend(const rocflash_execution&, Device);

}  // namespace rocflash
