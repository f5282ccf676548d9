// A launch plan that is filled in once and run many times: a run copies the arguments of each
// launch and writes the addresses, dropout's seed and offset, and the workspace into the copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "core/arguments.hpp"
#include "gpu/plan/attention.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

// The word at `offset` in the arguments of a launch, or the data of a tensor map, is the value of
// `argument` plus `addend`, such as a part of the workspace.
struct Relocation {
  std::int32_t launch = 0;
  std::uint32_t offset = 0;
  Argument argument = {};
  std::uint64_t addend = 0;
};

class ReusablePlan {
 public:
  // `like` has the alignment, and the equality of k and v, of the values of all runs.
  template <class Call>
  ReusablePlan(const Call& call, const ArgumentValues& like, Chip chip)
      : ReusablePlan(like, [&](Plan& plan, const ArgumentValues& values) {
          Call bound = call;
          bind_arguments(bound, values);
          auto* const workspace = reinterpret_cast<std::byte*>(values[Argument::workspace]);
          plan_call(plan, bound, workspace, chip);
        }) {}

  Size workspace() const { return plan_->workspace; }
  std::span<const Launch> launches() const { return plan_->launches(); }

  // Calls `launch` with each launch in order. Its arguments are valid until the function returns.
  template <class Visit>
  void for_each_launch(const ArgumentValues& values, const Visit& launch) const {
    const Relocation *word = words_.data(), *const words_end = word + words_.size();
    const Relocation* map = maps_.data();
    alignas(Plan::argument_alignment) std::byte arguments[Plan::max_argument_bytes];
    TensorMapDesc tensor_maps[Plan::max_tensor_maps];
    std::int32_t number = 0;
    for (const Launch& planned : plan_->launches()) {
      std::memcpy(arguments, planned.arguments, planned.argument_bytes);
      for (; word != words_end && word->launch == number; ++word) {
        const std::uint64_t value = values[word->argument] + word->addend;
        std::memcpy(arguments + word->offset, &value, sizeof value);
      }
      Launch patched = planned;
      patched.arguments = arguments;
      std::size_t n = 0;
      for (const TensorMapDesc& desc : planned.tensor_maps) {
        TensorMapDesc& to = tensor_maps[n++] = desc;
        to.data = reinterpret_cast<const void*>(values[map->argument] + map->addend);
        to.map = reinterpret_cast<kernel::TensorMap*>(arguments + map->offset);
        ++map;
      }
      patched.tensor_maps = {tensor_maps, n};
      launch(patched);
      ++number;
    }
  }

 private:
  using Fill = void (*)(const void* context, Plan& plan, const ArgumentValues& values);
  ReusablePlan(const ArgumentValues& like, Fill fill, const void* context);
  template <class FillPlan>
  ReusablePlan(const ArgumentValues& like, const FillPlan& fill)
      : ReusablePlan(
            like,
            [](const void* context, Plan& plan, const ArgumentValues& values) {
              (*static_cast<const FillPlan*>(context))(plan, values);
            },
            &fill) {}

  // `other` is the plan of the same call with shifted values.
  void find_relocations(const Plan& other, const ArgumentValues& values);

  std::unique_ptr<const Plan> plan_;
  // In launch order. `maps_` has one entry per tensor map; its offset is that of the encoded map.
  std::vector<Relocation> words_, maps_;
};

}  // namespace rocflash::gpu
