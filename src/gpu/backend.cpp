#include "gpu/backend.hpp"

#include <dlpack/dlpack.h>

#include <atomic>
#include <memory>

#include "core/error.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/loader.hpp"
#include "gpu/plan.hpp"

namespace rocflash {
namespace {

using gpu::Device;
using gpu::Driver;
using gpu::ForwardPlan;
using gpu::Launch;

constinit gpu::Loader loader;

class GpuBackend final : public Backend {
 public:
  GpuBackend(Driver& driver, const Device& device) : driver_(driver), device_(device) {}

  std::string refusal(const Problem& problem, bool gradients) const override {
    return gpu::refusal(problem, gradients);
  }
  Size workspace(const Problem& p, const ForwardOutputs& o, const Execution&) const override {
    plan(p, o);  // refuses what cannot be launched
    return 0;
  }
  void run(const Problem& p, const ForwardOutputs& o, const Execution& e) const override {
    const ForwardPlan steps = plan(p, o);
    if (!steps.forward && !steps.weights) return;
    const gpu::Current current(driver_, device_.index);
    if (steps.forward)
      launch(current.context(), *steps.forward, e.stream, &steps.forward_arguments);
    if (steps.weights)
      launch(current.context(), *steps.weights, e.stream, &steps.weights_arguments);
  }

  // The door refuses these before they are asked for.
  Size workspace(const Problem& p, const BackwardTensors&, const Execution&) const override {
    refuse_unsupported(gpu::refusal(p, true));
  }
  void run(const Problem& p, const BackwardTensors&, const Execution&) const override {
    refuse_unsupported(gpu::refusal(p, true));
  }
  void append(const Problem&, const Append& a, const AppendedProblem&) const override {
    if (a.k || a.rotary.dim > 0)
      refuse_unsupported(a.k ? "k_new" : "rotary_cos", ": is given; GPUs do not append or rotate");
  }

 private:
  ForwardPlan plan(const Problem& p, const ForwardOutputs& o) const {
    return gpu::plan_forward(p, o, device_.target->family, device_.facts.units);
  }
  void launch(std::uint64_t context, const Launch& l, void* stream, const void* arguments) const {
    const gpu::Function function =
        loader.kernel(driver_, context, *device_.target, l.kernel, l.shape.dynamic_shared);
    driver_.launch(function, l.shape, stream, arguments);
  }

  Driver& driver_;
  const Device& device_;
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
    if (!fresh) fresh.reset(new Known{GpuBackend(driver, device), &device, first});
    fresh->next = first;
    if (backends.compare_exchange_strong(first, fresh.get(), std::memory_order_acq_rel))
      return fresh.release()->backend;
  }
}

std::string place_text(int dlpack_type, int index) {
  return text(dlpack_type == kDLROCM ? "rocm:" : "cuda:", index);
}

}  // namespace

const Backend& gpu_backend(int dlpack_type, int index) {
  const gpu::DriverState& state = gpu::driver_for(dlpack_type);
  if (!state.driver) {
    throw Refusal(state.failed ? ROCFLASH_DEVICE_ERROR : ROCFLASH_UNSUPPORTED,
                  text("q: is on ", place_text(dlpack_type, index), ", but the ", state.name,
                       " driver is not in use: ", state.reason));
  }
  const auto count = static_cast<int>(state.devices.size());
  if (index < 0 || index >= count)
    refuse("q: is on ", place_text(dlpack_type, index), "; the ", state.name, " driver has ", count,
           count == 1 ? " device" : " devices");
  const Device& device = state.devices[static_cast<std::size_t>(index)];
  if (!device.target)
    refuse_unsupported("q: is on ", place_text(dlpack_type, index), ", ", device.facts.name, " (",
                       device.facts.arch, "), which has no kernels here; there are kernels for ",
                       gpu::built_for(dlpack_type));
  return backend_of(*state.driver, device);
}

}  // namespace rocflash
