// Internal names are in rocflash::core, so that rocflash::Problem is unambiguous in the C++ wrapper
// (include/rocflash). Internal code uses them without the prefix; no file includes both.
#pragma once

namespace rocflash::core {}
namespace rocflash {
using namespace core;
}
