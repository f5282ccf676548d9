// The C entry points: each validates its arguments and runs the selected backend.
#include <rocflash/rocflash.h>

#include <vector>

#include "api/check.hpp"
#include "api/structs.hpp"
#include "core/error.hpp"
#include "core/philox.hpp"
#include "cpu/backend.hpp"
#include "cpu/thread_pool.hpp"
#include "gpu/driver/devices.hpp"
#include "gpu/family.hpp"

#define ROCFLASH_STRING_(x) #x
#define ROCFLASH_STRING(x) ROCFLASH_STRING_(x)

namespace rocflash {
namespace {

// GPUs that this build has kernels for, in driver order.
std::vector<const gpu::Device*> usable_gpus() {
  std::vector<const gpu::Device*> usable;
  for (std::size_t n = 0; n < gpu::driver_count; ++n) {
    for (const gpu::Device& device : gpu::driver(n).devices) {
      if (device.target) usable.push_back(&device);
    }
  }
  return usable;
}

void write_bytes(std::size_t* bytes, std::size_t value) {
  if (!bytes) refuse("bytes is null; it receives the workspace size");
  *bytes = value;
}

}  // namespace
}  // namespace rocflash

using namespace rocflash;

rocflash_status rocflash_forward(const rocflash_problem* problem,
                                 const rocflash_forward_outputs* outputs,
                                 const rocflash_execution* execution) {
  return guarded([&] { check_forward(problem, outputs, execution, Data::required).run(); });
}

rocflash_status rocflash_backward(const rocflash_problem* problem,
                                  const rocflash_backward_tensors* tensors,
                                  const rocflash_execution* execution) {
  return guarded([&] { check_backward(problem, tensors, execution, Data::required).run(); });
}

rocflash_status rocflash_infer(const rocflash_problem* problem,
                               const rocflash_forward_outputs* outputs,
                               const rocflash_execution* execution) {
  return rocflash_decode(problem, nullptr, outputs, execution);
}

rocflash_status rocflash_infer_workspace(const rocflash_problem* problem,
                                         const rocflash_forward_outputs* outputs,
                                         const rocflash_execution* execution, size_t* bytes) {
  return rocflash_decode_workspace(problem, nullptr, outputs, execution, bytes);
}

rocflash_status rocflash_decode(const rocflash_problem* problem, const rocflash_append* append,
                                const rocflash_forward_outputs* outputs,
                                const rocflash_execution* execution) {
  return guarded([&] { check_decode(problem, append, outputs, execution, Data::required).run(); });
}

rocflash_status rocflash_decode_workspace(const rocflash_problem* problem,
                                          const rocflash_append* append,
                                          const rocflash_forward_outputs* outputs,
                                          const rocflash_execution* execution, size_t* bytes) {
  return guarded([&] {
    write_bytes(bytes,
                check_decode(problem, append, outputs, execution, Data::may_be_null).workspace());
  });
}

rocflash_status rocflash_combine(const DLTensor* out_partial, const DLTensor* lse_partial,
                                 const DLTensor* out, const DLTensor* lse,
                                 const rocflash_execution* execution) {
  return guarded([&] { check_combine(out_partial, lse_partial, out, lse, execution).run(); });
}

rocflash_status rocflash_rotate(const DLTensor* x, const DLTensor* cos, const DLTensor* sin,
                                const DLTensor* cu_seqlens, const DLTensor* first,
                                int32_t interleaved, const DLTensor* out,
                                const rocflash_execution* execution) {
  return guarded(
      [&] { check_rotate(x, cos, sin, cu_seqlens, first, interleaved, out, execution).run(); });
}

rocflash_status rocflash_forward_workspace(const rocflash_problem* problem,
                                           const rocflash_forward_outputs* outputs,
                                           const rocflash_execution* execution, size_t* bytes) {
  return guarded([&] {
    write_bytes(bytes, check_forward(problem, outputs, execution, Data::may_be_null).workspace());
  });
}

rocflash_status rocflash_backward_workspace(const rocflash_problem* problem,
                                            const rocflash_backward_tensors* tensors,
                                            const rocflash_execution* execution, size_t* bytes) {
  return guarded([&] {
    write_bytes(bytes, check_backward(problem, tensors, execution, Data::may_be_null).workspace());
  });
}

const char* rocflash_last_error(void) { return last_error(); }

const char* rocflash_status_name(rocflash_status status) {
  switch (status) {
    case ROCFLASH_OK:
      return "ROCFLASH_OK";
    case ROCFLASH_INVALID_ARGUMENT:
      return "ROCFLASH_INVALID_ARGUMENT";
    case ROCFLASH_UNSUPPORTED:
      return "ROCFLASH_UNSUPPORTED";
    case ROCFLASH_OUT_OF_MEMORY:
      return "ROCFLASH_OUT_OF_MEMORY";
    case ROCFLASH_DEVICE_ERROR:
      return "ROCFLASH_DEVICE_ERROR";
    case ROCFLASH_INTERNAL:
      return "ROCFLASH_INTERNAL";
  }
  return "not a rocflash_status";
}

const char* rocflash_version(void) {
  return ROCFLASH_STRING(ROCFLASH_VERSION_MAJOR) "." ROCFLASH_STRING(
      ROCFLASH_VERSION_MINOR) "." ROCFLASH_STRING(ROCFLASH_VERSION_PATCH);
}

int32_t rocflash_version_number(void) {
  return 10000 * ROCFLASH_VERSION_MAJOR + 100 * ROCFLASH_VERSION_MINOR + ROCFLASH_VERSION_PATCH;
}

rocflash_status rocflash_query_limits(rocflash_limits* limits) {
  return guarded([&] {
    rocflash_limits l{};
    l.max_head_dim = max_head_dim;
    l.has_backward = 1;
    l.default_threads = default_threads();
    l.dropout_steps = dropout_steps;
    write_struct("limits", limits, l);
  });
}

rocflash_status rocflash_query_device(int32_t index, rocflash_device* device) {
  return guarded([&] {
    const CpuDescription& cpu = describe_cpu();
    rocflash_device d{};
    d.device = {kDLCPU, 0};
    d.name = cpu.name.c_str();
    d.arch = cpu.path;
    d.features = cpu.features.c_str();
    d.units = usable_cpus();
    if (index != 0) {
      const auto gpus = usable_gpus();
      if (index < 0 || static_cast<std::size_t>(index) > gpus.size())
        refuse("index is ", index, "; this machine has ", gpus.size() + 1, " supported device",
               gpus.empty() ? "" : "s");
      const gpu::Device& g = *gpus[static_cast<std::size_t>(index) - 1];
      d.device = {static_cast<DLDeviceType>(g.dlpack_type), g.index};
      d.name = g.facts.name.c_str();
      d.arch = g.target->arch;
      d.features = g.features.c_str();
      d.units = g.facts.units;
    }
    write_struct("device", device, d);
  });
}

rocflash_status rocflash_query_driver(int32_t index, rocflash_driver* driver) {
  return guarded([&] {
    if (index < 0 || static_cast<std::size_t>(index) >= gpu::driver_count)
      refuse("index is ", index, "; there are ", gpu::driver_count, " drivers");
    const gpu::DriverState& found = gpu::driver(static_cast<std::size_t>(index));
    rocflash_driver d{};
    d.name = found.name;
    d.library = found.library.c_str();
    d.reason = found.reason.c_str();
    d.in_use = found.driver != nullptr;
    write_struct("driver", driver, d);
  });
}

rocflash_status rocflash_query_target(int32_t index, rocflash_target* target) {
  return guarded([&] {
    const auto targets = gpu::targets();
    if (index < 0 || static_cast<std::size_t>(index) >= targets.size())
      refuse("index is ", index, "; this library has kernels for ", targets.size(),
             " GPU architectures");
    const gpu::Target& found = targets[static_cast<std::size_t>(index)];
    rocflash_target t{};
    t.arch = found.arch;
    t.family = gpu::name_of(found.family);
    t.driver = kernel::vendor_of(found.family) == kernel::Vendor::nvidia ? "cuda" : "hip";
    write_struct("target", target, t);
  });
}
