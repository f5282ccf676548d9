#include "gpu/backend.hpp"

#include <dlpack/dlpack.h>

#include <atomic>
#include <memory>

#include "core/error.hpp"
#include "core/workspace.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/loader.hpp"
#include "gpu/plan/append.hpp"
#include "gpu/plan/backward.hpp"
#include "gpu/plan/combine.hpp"
#include "gpu/plan/decode.hpp"
#include "gpu/plan/forward.hpp"
#include "gpu/plan/read.hpp"
#include "gpu/plan/refusal.hpp"
#include "gpu/plan/weights.hpp"

namespace rocflash {
namespace {

using gpu::Device;
using gpu::Driver;
using gpu::Plan;

constinit gpu::Loader loader;

std::string device_text(int dlpack_type, int index) {
  return text(dlpack_type == kDLROCM ? "rocm:" : "cuda:", index);
}

class GpuBackend final : public Backend {
 public:
  GpuBackend(Driver& driver, const Device& device)
      : driver_(driver),
        device_(device),
        chip_{device.target->family, device.facts.units, device.facts.group_shared,
              device.addition != nullptr} {}

  std::string refusal(const ForwardCall& c) const override { return gpu::refusal(c); }
  std::string refusal(const DecodeCall& c) const override { return gpu::refusal(c); }
  std::string refusal(const BackwardCall& c) const override {
    return gpu::refusal(c, chip_.family);
  }

  // Planning refuses what cannot be launched.
  Size workspace(const ForwardCall& c) const override {
    Plan plan;
    make(plan, c.problem, c.outputs, nullptr);
    return plan.workspace;
  }
  Size workspace(const DecodeCall& c) const override {
    Plan plan;
    make(plan, c, nullptr);
    return plan.workspace;
  }
  Size workspace(const BackwardCall& c) const override {
    Plan plan;
    gpu::plan_backward(plan, c.problem, c.tensors, nullptr, chip_);
    return plan.workspace;
  }

  void run(const ForwardCall& c) const override {
    Plan plan;
    make(plan, c.problem, c.outputs, c.resources.workspace);
    check_workspace(c.resources, plan.workspace, c.problem);
    launch(plan, c.resources.stream);
  }
  void run(const DecodeCall& c) const override {
    Plan plan;
    make(plan, c, c.resources.workspace);
    check_workspace(c.resources, plan.workspace, c.problem);
    launch(plan, c.resources.stream);
  }
  void run(const BackwardCall& c) const override {
    Plan plan;
    gpu::plan_backward(plan, c.problem, c.tensors, c.resources.workspace, chip_);
    check_workspace(c.resources, plan.workspace, c.problem);
    launch(plan, c.resources.stream);
  }
  void run(const CombineCall& c) const override {
    Plan plan;
    gpu::plan_combine(plan, c, nullptr, chip_);
    launch(plan, c.resources.stream);
  }
  void run(const RotateCall& c) const override {
    Plan plan;
    gpu::plan_rotate(plan, c.problem, c.rotary, c.out, chip_);
    launch(plan, c.resources.stream);
  }
  void run(const MemoryRead& read, void* stream) const {
    Plan plan;
    gpu::plan_read(plan, read, chip_);
    launch(plan, stream);
  }

 private:
  void make(Plan& plan, const Problem& p, const ForwardOutputs& o, std::byte* workspace,
            gpu::Gradients gradients = gpu::Gradients::may_follow) const {
    if (gpu::is_split(p, o, chip_, gradients))
      return gpu::plan_decode(plan, p, o, workspace, chip_);
    gpu::plan_forward(plan, p, o, chip_);
    gpu::plan_weights(plan, p, o, chip_);
  }
  void make(Plan& plan, const DecodeCall& c, std::byte* workspace) const {
    make(plan, gpu::plan_append(plan, c.problem, c.append, workspace, chip_), c.outputs, workspace,
         gpu::Gradients::never);
  }
  void launch(const Plan& plan, void* stream) const {
    if (plan.launches().empty()) return;
    const gpu::Current current(driver_, device_.index);
    for (const gpu::Launch& l : plan.launches()) {
      for (const gpu::TensorBox& box : l.boxes) driver_.map(box);
      const gpu::Target& target =
          kernel::has_kernel(chip_.family, l.kernel) ? *device_.target : *device_.addition;
      const gpu::Function function = loader.kernel(driver_, current.context(), target, l.kernel);
      driver_.launch(function, l.shape, stream, l.arguments);
    }
  }

  Driver& driver_;
  const Device& device_;
  gpu::Chip chip_;
};

// A list that only grows: one backend per device. As all that has to do with drivers, they are
// never destroyed.
struct Known {
  GpuBackend backend;
  const Device* device;
  const Known* next;
};
constinit std::atomic<const Known*> backends{nullptr};

const Backend& backend_of(Driver& driver, const Device& device) {
  std::unique_ptr<Known> fresh;
  const Known* first = backends.load(std::memory_order_acquire);
  for (;;) {
    for (const Known* known = first; known; known = known->next)
      if (known->device == &device) return known->backend;
    if (!fresh) fresh = std::make_unique<Known>(GpuBackend(driver, device), &device, first);
    fresh->next = first;
    if (backends.compare_exchange_strong(first, fresh.get(), std::memory_order_acq_rel))
      return fresh.release()->backend;
  }
}

}  // namespace

const Backend& gpu_backend(int dlpack_type, int index) {
  const gpu::DriverState& state = gpu::driver_for(dlpack_type);
  if (!state.driver) {
    throw Refusal(state.failed ? ROCFLASH_DEVICE_ERROR : ROCFLASH_UNSUPPORTED,
                  text("q: is on ", device_text(dlpack_type, index), ", but the ", state.name,
                       " driver is not in use: ", state.reason));
  }
  const auto count = static_cast<int>(state.devices.size());
  if (index < 0 || index >= count)
    refuse("q: is on ", device_text(dlpack_type, index), "; the ", state.name, " driver has ",
           count, count == 1 ? " device" : " devices");
  const Device& device = state.devices[static_cast<std::size_t>(index)];
  if (!device.target)
    refuse_unsupported("q: is on ", device_text(dlpack_type, index), ", ", device.facts.name, " (",
                       device.facts.arch, "), which has no kernels here; there are kernels for ",
                       gpu::built_for(dlpack_type));
  return backend_of(*state.driver, device);
}

void read_on_gpu(int dlpack_type, int index, const MemoryRead& read, void* stream) {
  static_cast<const GpuBackend&>(gpu_backend(dlpack_type, index)).run(read, stream);
}

}  // namespace rocflash
