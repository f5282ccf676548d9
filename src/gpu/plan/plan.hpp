// A launch plan: the launches of a call in order, their arguments, and the workspace they need.
// Plans are values; pure functions of the call and of a few device properties make them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "attention/arguments.hpp"
#include "core/sizes.hpp"
#include "gpu/dispatch/chip.hpp"
#include "gpu/driver/driver.hpp"
#include "table/workgroups.hpp"

namespace rocflash::gpu {

struct Launch {
  int kernel = 0;  // its number in the table
  LaunchShape shape;
  const void* arguments = nullptr;
  std::uint32_t argument_bytes = 0;
  std::span<const TensorMapDesc> tensor_maps = {};  // encoded into the arguments before the launch
};

class Plan {
 public:
  static constexpr int max_launches = 10, max_tensor_maps = 8;
  static constexpr std::size_t argument_alignment = 64,
                               max_argument_bytes =
                                   std::max({sizeof(kernel::ForwardWarpSpecializedArguments),
                                             sizeof(kernel::BackwardWarpSpecializedArguments),
                                             sizeof(kernel::AppendArguments),
                                             sizeof(kernel::ClusterArguments),
                                             sizeof(kernel::SplitKvArguments),
                                             sizeof(kernel::MlaWarpSpecializedArguments),
                                             sizeof(kernel::CombineArguments)});

  Size workspace = 0;  // bytes

  Plan() = default;
  Plan(const Plan&) = delete;  // launches point to their arguments
  Plan& operator=(const Plan&) = delete;

  // The arguments of the next launch, to be filled in before `add`.
  template <kernel::Op op, kernel::Schedule schedule = kernel::Schedule::tiled>
  kernel::ArgumentsOf<op, schedule>& next() {
    using Arguments = kernel::ArgumentsOf<op, schedule>;
    static_assert(sizeof(Arguments) <= sizeof(ArgumentStorage) &&
                  alignof(Arguments) <= alignof(ArgumentStorage));
    argument_bytes_ = sizeof(Arguments);
    return *new (&arguments_[count_]) Arguments;
  }
  void add(const kernel::KernelSpec& spec, kernel::Family family, std::int64_t workgroups) {
    const kernel::WorkgroupShape shape = kernel::workgroup_shape(family, spec);
    launches_[count_] = {
        kernel::kernel_number(spec),
        {static_cast<std::uint32_t>(workgroups), static_cast<std::uint32_t>(shape.threads),
         static_cast<std::uint32_t>(shape.dynamic_shared)},
        &arguments_[count_],
        argument_bytes_,
        {tensor_maps_ + launched_tensor_maps_,
         static_cast<std::size_t>(tensor_map_count_ - launched_tensor_maps_)}};
    launched_tensor_maps_ = tensor_map_count_;
    ++count_;
  }
  // The shape of the last launch, for its PDL and cluster attributes.
  LaunchShape& shape() { return launches_[count_ - 1].shape; }
  // Adds a tensor map to the arguments of the next launch; the driver encodes it before the launch.
  void add_tensor_map(const TensorMapDesc& desc) { tensor_maps_[tensor_map_count_++] = desc; }

  std::span<const Launch> launches() const { return {launches_, static_cast<std::size_t>(count_)}; }
  // The launch of an operation by a schedule, or null; and its arguments.
  const Launch* find(kernel::Op op, kernel::Schedule schedule = kernel::Schedule::tiled) const {
    for (const Launch& launch : launches())
      if (const kernel::KernelSpec& spec = kernel::kernel_spec(launch.kernel);
          spec.op == op && spec.schedule == schedule)
        return &launch;
    return nullptr;
  }
  template <kernel::Op op, kernel::Schedule schedule = kernel::Schedule::tiled>
  const kernel::ArgumentsOf<op, schedule>& arguments() const {
    return *static_cast<const kernel::ArgumentsOf<op, schedule>*>(find(op, schedule)->arguments);
  }

 private:
  struct alignas(argument_alignment) ArgumentStorage {
    std::byte bytes[max_argument_bytes];
  };

  int count_ = 0;
  std::uint32_t argument_bytes_ = 0;  // of the next launch
  Launch launches_[max_launches];
  int tensor_map_count_ = 0, launched_tensor_maps_ = 0;
  TensorMapDesc tensor_maps_[max_tensor_maps];
  ArgumentStorage arguments_[max_launches];  // constructed by next()
};

}  // namespace rocflash::gpu
