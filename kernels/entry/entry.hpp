// What every unit of device code includes. CMake writes the units, one for each family and each
// line of table/kernels.inc; a unit defines
//
//   ROCFLASH_THIS_FAMILY       the family's id in table/families.inc
//   ROCFLASH_ARCH_HEADER       its instructions
//   ROCFLASH_SCHEDULE_HEADER   the header that table/kernels.inc names for the operation, schedule
//                              and family
//
// and then has one ROCFLASH_ENTRY per kernel.
#pragma once

#ifdef __CUDA__  // functions of ordinary C++ are for the device there
#pragma clang force_cuda_host_device begin
#endif

// All device code is inlined into its kernel: a call would need a stack.
#pragma clang attribute push([[gnu::always_inline]], apply_to = function)
#include ROCFLASH_SCHEDULE_HEADER
#pragma clang attribute pop

#include "arch/arch.hpp"
#include "attention/arguments.hpp"
#include "table/workgroups.hpp"

// `function` is the template of the operation and schedule.
#define ROCFLASH_ENTRY(symbol, function, op, schedule, dtype, bucket, variant)                \
  namespace rocflash::kernel {                                                                \
  inline constexpr KernelSpec symbol##_spec{Op::op, Schedule::schedule, DType::dtype, bucket, \
                                            Variant::variant};                                \
  static_assert(kernel_number(symbol##_spec) >= 0 && is_named(symbol##_spec, #symbol));       \
  using symbol##_arguments = ArgumentsOf<Op::op, Schedule::schedule>;                         \
  }                                                                                           \
  ROCFLASH_KERNEL(symbol,                                                                     \
                  (rocflash::kernel::workgroup_shape(rocflash::kernel::this_family,           \
                                                     rocflash::kernel::symbol##_spec)),       \
                  rocflash::kernel::symbol##_arguments) {                                     \
    rocflash::kernel::function<rocflash::kernel::symbol##_spec>(arguments);                   \
  }
