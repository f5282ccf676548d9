#include "gpu/backend.hpp"

#include <dlpack/dlpack.h>

#include <map>
#include <mutex>

#include "api/error.hpp"
#include "gpu/drivers.hpp"
#include "gpu/loader.hpp"
#include "gpu/plan.hpp"

namespace rocflash {
namespace {

using gpu::Device;
using gpu::Driver;
using gpu::ForwardPlan;
using gpu::Launch;

gpu::Loader& loader() {
  static auto* one = new gpu::Loader;  // see drivers.hpp: nothing of this is taken down
  return *one;
}

class GpuBackend final : public Backend {
 public:
  GpuBackend(Driver& driver, const Device& device) : driver_(driver), device_(device) {}

  std::string refusal(const Problem& problem, bool gradients) const override {
    return gpu::refusal(problem, gradients);
  }
  std::size_t workspace(const Problem& p, const ForwardOutputs& o,
                        const Execution&) const override {
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
  std::size_t workspace(const Problem& p, const BackwardTensors&, const Execution&) const override {
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
        loader().kernel(driver_, context, *device_.target, l.kernel, l.shape.dynamic_shared);
    driver_.launch(function, l.shape, stream, arguments);
  }

  Driver& driver_;
  const Device& device_;
};

}  // namespace

const Backend& gpu_backend(int dlpack_type, int index) {
  const gpu::DriverState& state = gpu::driver_for(dlpack_type);
  const std::string place = text(dlpack_type == kDLROCM ? "rocm:" : "cuda:", index);
  if (!state.driver)
    refuse_unsupported("q: is on ", place, ", but the ", state.name,
                       " driver is not in use: ", state.reason);
  const auto count = static_cast<int>(state.devices.size());
  if (index < 0 || index >= count)
    refuse("q: is on ", place, "; the ", state.name, " driver has ", count,
           count == 1 ? " device" : " devices");
  const Device& device = state.devices[static_cast<std::size_t>(index)];
  if (!device.target)
    refuse_unsupported("q: is on ", place, ", ", device.facts.name, " (", device.facts.arch,
                       "), which has no kernels here; there are kernels for ",
                       gpu::built_for(dlpack_type));
  static std::mutex mutex;
  static auto* backends = new std::map<const Device*, GpuBackend>;
  const std::lock_guard lock(mutex);
  return backends->try_emplace(&device, *state.driver, device).first->second;
}

}  // namespace rocflash
