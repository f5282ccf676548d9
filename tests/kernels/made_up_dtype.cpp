// A dtype that no code handles must not compile. CMakeLists.txt compiles this file for each family
// and expects the message of a static_assert: with a kernel of the dtype that of the traits, and
// where the dtype has traits, that of the family's matrix instruction.
#include "entry/entry.hpp"

namespace rocflash::kernel {

inline constexpr auto made_up = static_cast<DType>(99);

#ifdef ROCFLASH_MADE_UP_TRAITS
template <>
struct DTypeTraits<made_up> : DTypeTraits<DType::f16> {};
template struct arch::Mma<made_up>;
#else
inline constexpr KernelSpec made_up_spec{Op::ROCFLASH_OP, Schedule::ROCFLASH_SCHEDULE_NAME, made_up,
                                         ROCFLASH_BUCKET, Variant::ROCFLASH_VARIANT};
using MadeUpArguments = ArgumentsOf<Op::ROCFLASH_OP, Schedule::ROCFLASH_SCHEDULE_NAME>;
#endif

}  // namespace rocflash::kernel

#ifndef ROCFLASH_MADE_UP_TRAITS
ROCFLASH_KERNEL(made_up_kernel, (rocflash::kernel::WorkgroupShape{64, 1, 0}),
                rocflash::kernel::MadeUpArguments) {
  rocflash::kernel::ROCFLASH_MADE_UP<rocflash::kernel::made_up_spec>(arguments);
}
#endif
