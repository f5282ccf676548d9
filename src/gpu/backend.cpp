#include "gpu/backend.hpp"

#include <dlpack/dlpack.h>

#include <atomic>
#include <memory>

#include "core/error.hpp"
#include "core/workspace.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/loader.hpp"
#include "gpu/plan/append.hpp"
#include "gpu/plan/attention.hpp"
#include "gpu/plan/combine.hpp"
#include "gpu/plan/read.hpp"
#include "gpu/plan/refusal.hpp"
#include "gpu/plan/reusable.hpp"

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
        chip_{device.target->family, device.facts.units, device.facts.workgroup_shared,
              device.extension != nullptr} {}

  std::string refusal(const ForwardCall& c) const override { return gpu::refusal(c); }
  std::string refusal(const DecodeCall& c) const override { return gpu::refusal(c); }
  std::string refusal(const BackwardCall& c) const override {
    return gpu::refusal(c, chip_.family);
  }

  GpuDescription description() const { return {chip_, device_.target->arch}; }

  // The planners reject problems that cannot be launched.
  Size workspace(const ForwardCall& c) const override { return workspace_of(c); }
  Size workspace(const DecodeCall& c) const override { return workspace_of(c); }
  Size workspace(const BackwardCall& c) const override { return workspace_of(c); }

  void run(const ForwardCall& c) const override { run_call(c); }
  void run(const DecodeCall& c) const override { run_call(c); }
  void run(const BackwardCall& c) const override { run_call(c); }
  void run(const CombineCall& c) const override {
    Plan plan;
    gpu::plan_combine(plan, c, chip_);
    launch(plan, c.resources.stream);
  }
  void run(const RotateCall& c) const override {
    Plan plan;
    gpu::plan_rotate(plan, c.problem, c.rotary, c.out, chip_);
    launch(plan, c.resources.stream);
  }
  std::unique_ptr<const PreparedCall> prepare(const ForwardCall& c,
                                              const ArgumentValues& like) const override {
    return std::make_unique<PreparedLaunches>(*this, c, like);
  }
  std::unique_ptr<const PreparedCall> prepare(const DecodeCall& c,
                                              const ArgumentValues& like) const override {
    return std::make_unique<PreparedLaunches>(*this, c, like);
  }
  std::unique_ptr<const PreparedCall> prepare(const BackwardCall& c,
                                              const ArgumentValues& like) const override {
    return std::make_unique<PreparedLaunches>(*this, c, like);
  }
  void run(const MemoryRead& read, void* stream) const {
    Plan plan;
    gpu::plan_read(plan, read, chip_);
    launch(plan, stream);
  }

 private:
  class PreparedLaunches final : public PreparedCall {
   public:
    template <class Call>
    PreparedLaunches(const GpuBackend& backend, const Call& call, const ArgumentValues& like)
        : backend_(backend), plan_(call, like, backend.chip_) {}

    void run(const ArgumentValues& values, void* stream) const override {
      if (plan_.launches().empty()) return;
      const gpu::DeviceGuard guard(backend_.driver_, backend_.device_.index);
      plan_.for_each_launch(
          values, [&](const gpu::Launch& l) { backend_.launch(l, guard.context(), stream); });
    }

   private:
    const GpuBackend& backend_;
    const gpu::ReusablePlan plan_;
  };

  template <class Call>
  Size workspace_of(const Call& c) const {
    Plan plan;
    gpu::plan_call(plan, c, nullptr, chip_);
    return plan.workspace;
  }
  template <class Call>
  void run_call(const Call& c) const {
    Plan plan;
    gpu::plan_call(plan, c, c.resources.workspace, chip_);
    check_workspace(c.resources, plan.workspace, c.problem);
    launch(plan, c.resources.stream);
  }
  void launch(const Plan& plan, void* stream) const {
    if (plan.launches().empty()) return;
    const gpu::DeviceGuard guard(driver_, device_.index);
    for (const gpu::Launch& l : plan.launches()) launch(l, guard.context(), stream);
  }
  void launch(const gpu::Launch& l, std::uint64_t context, void* stream) const {
    for (const gpu::TensorMapDesc& desc : l.tensor_maps) driver_.encode_tensor_map(desc);
    const gpu::Target& target =
        kernel::has_kernel(chip_.family, l.kernel) ? *device_.target : *device_.extension;
    const gpu::Function function = loader.kernel(driver_, context, target, l.kernel);
    driver_.launch(function, l.shape, stream, l.arguments);
  }

  Driver& driver_;
  const Device& device_;
  gpu::Chip chip_;
};

// An append-only list with one backend per device. Its nodes are never destroyed, as devices.hpp
// explains.
struct BackendNode {
  GpuBackend backend;
  const Device* device;
  const BackendNode* next;
};
constinit std::atomic<const BackendNode*> backends{nullptr};

const Backend& backend_of(Driver& driver, const Device& device) {
  std::unique_ptr<BackendNode> fresh;
  const BackendNode* first = backends.load(std::memory_order_acquire);
  for (;;) {
    for (const BackendNode* node = first; node; node = node->next)
      if (node->device == &device) return node->backend;
    if (!fresh) fresh = std::make_unique<BackendNode>(GpuBackend(driver, device), &device, first);
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
                  text("q is on ", device_text(dlpack_type, index), ", but the ", state.name,
                       " driver is not in use: ", state.reason));
  }
  const auto count = static_cast<int>(state.devices.size());
  if (index < 0 || index >= count)
    refuse("q is on ", device_text(dlpack_type, index), ", but the ", state.name, " driver has ",
           count, count == 1 ? " device" : " devices");
  const Device& device = state.devices[static_cast<std::size_t>(index)];
  if (!device.target)
    refuse_unsupported("q is on ", device_text(dlpack_type, index), ", ", device.facts.name, " (",
                       device.facts.arch,
                       "), which this library has no kernels for; it has kernels for ",
                       gpu::built_for(dlpack_type));
  return backend_of(*state.driver, device);
}

GpuDescription describe_gpu(int dlpack_type, int index) {
  return static_cast<const GpuBackend&>(gpu_backend(dlpack_type, index)).description();
}

void read_on_gpu(int dlpack_type, int index, const MemoryRead& read, void* stream) {
  static_cast<const GpuBackend&>(gpu_backend(dlpack_type, index)).run(read, stream);
}

}  // namespace rocflash
