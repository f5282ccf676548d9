// Internal names live in rocflash::core, so that the C++ face's Problem (include/rocflash) is the only
// rocflash::Problem. The rooms behind the door see them without the prefix; nothing includes both.
#pragma once

namespace rocflash::core {}
namespace rocflash {
using namespace core;
}
