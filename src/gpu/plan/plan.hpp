// A plan: what a call launches on a GPU, in order, and how much scratch memory that takes. Plans
// are values, made once per call by pure functions of the call and of a few facts about the device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>

#include "attention/arguments.hpp"
#include "core/sizes.hpp"
#include "gpu/driver/driver.hpp"
#include "table/groups.hpp"

namespace rocflash::gpu {

// What plans need to know of a device.
struct Chip {
  kernel::Family family;
  int units = 0;            // compute units or multiprocessors
  int group_shared = 0;     // bytes of shared memory that one workgroup may have, where known
  bool warpgroups = false;  // it also runs Hopper's kernels
};

struct Launch {
  int kernel = 0;  // its number in the table
  LaunchShape shape;
  const void* arguments = nullptr;
  std::span<const TensorBox> boxes = {};  // whose maps the arguments have
};

class Plan {
 public:
  static constexpr int most_launches = 10, most_boxes = 8;

  Size workspace = 0;  // bytes

  Plan() = default;
  Plan(const Plan&) = delete;  // launches point to their arguments
  Plan& operator=(const Plan&) = delete;

  // The arguments of the next launch, to be filled in; `add` then makes it one.
  template <kernel::Operation operation>
  kernel::ArgumentsOf<operation>& next() {
    using Arguments = kernel::ArgumentsOf<operation>;
    static_assert(sizeof(Arguments) <= sizeof(Room) && alignof(Arguments) <= alignof(Room));
    return *new (&arguments_[count_]) Arguments;
  }
  void add(const kernel::KernelSpec& spec, kernel::Family family, std::int64_t groups) {
    const kernel::GroupShape group = kernel::group_shape(family, spec);
    launches_[count_] = {
        kernel::kernel_number(spec),
        {static_cast<std::uint32_t>(groups), static_cast<std::uint32_t>(group.threads),
         static_cast<std::uint32_t>(group.dynamic_shared)},
        &arguments_[count_],
        {boxes_ + boxes_done_, static_cast<std::size_t>(boxes_count_ - boxes_done_)}};
    boxes_done_ = boxes_count_;
    ++count_;
  }
  // The shape of the launch that was added last, to be refined.
  LaunchShape& shape() { return launches_[count_ - 1].shape; }
  // A map among the arguments of the next launch; the driver writes it before that.
  void map(const TensorBox& box) { boxes_[boxes_count_++] = box; }

  std::span<const Launch> launches() const { return {launches_, static_cast<std::size_t>(count_)}; }
  // The launch of an operation, or null; and what it is given.
  const Launch* find(kernel::Operation operation) const {
    for (const Launch& launch : launches())
      if (kernel::kernel_spec(launch.kernel).operation == operation) return &launch;
    return nullptr;
  }
  template <kernel::Operation operation>
  const kernel::ArgumentsOf<operation>& arguments() const {
    return *static_cast<const kernel::ArgumentsOf<operation>*>(find(operation)->arguments);
  }

 private:
  struct alignas(64) Room {
    std::byte bytes[std::max(
        {sizeof(kernel::ForwardWarpgroupsArguments), sizeof(kernel::BackwardWarpgroupsArguments),
         sizeof(kernel::AppendArguments), sizeof(kernel::ClusterArguments),
         sizeof(kernel::LatentWarpgroupsArguments), sizeof(kernel::CombineArguments)})];
  };

  int count_ = 0;
  Launch launches_[most_launches];
  int boxes_count_ = 0, boxes_done_ = 0;
  TensorBox boxes_[most_boxes];
  Room arguments_[most_launches];  // made when they are used
};

inline std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace rocflash::gpu
