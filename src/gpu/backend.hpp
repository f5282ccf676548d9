// GPUs as devices: a backend for each that has kernels.
#pragma once

#include "core/backend.hpp"

namespace rocflash {

// The backend of a device by DLPack's type and index, as tensors name it. Refuses, by the name of
// q, a device that is not there or has no kernels.
const Backend& gpu_backend(int dlpack_type, int index);

}  // namespace rocflash
