// Modules, functions and launches.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "cycle_model/model.h"
#include "hip/graph.h"
#include "hip/runtime.h"

struct ihipModuleSymbol_t {
  ihipModule_t* module;
  const rocflash::sim::KernelInfo* kernel;
  rocflash::sim::u32 dynamic_lds_limit;
};

struct ihipModule_t {
  std::unique_ptr<rocflash::sim::Module> module;
  std::vector<std::unique_ptr<ihipModuleSymbol_t>> functions;
  int device;
};

namespace rocflash::sim {
namespace {

hipError_t load(hipModule_t* out, std::span<const u8> bytes) {
  if (out == nullptr) return hipErrorInvalidValue;
  *out = nullptr;
  if (const hipError_t error = check_unsafe_call(); error != hipSuccess) return error;
  const int device = current_device();
  const Target& target = Runtime::instance().target(device);
  std::unique_ptr<CodeObject> object;
  try {
    object = CodeObject::load(bytes, target.name);
  } catch (const std::exception& e) {
    print_error("hipModuleLoadData", e.what());
    const bool other = std::string_view(e.what()).find("the device is") != std::string_view::npos ||
                       std::string_view(e.what()).find("no code for") != std::string_view::npos;
    return other ? hipErrorNoBinaryForGpu : hipErrorInvalidImage;
  }
  auto module = std::make_unique<ihipModule_t>();
  module->module = std::make_unique<Module>(std::move(object), target, device);
  module->device = device;
  for (const KernelInfo& kernel : module->module->object().kernels()) {
    module->functions.push_back(std::make_unique<ihipModuleSymbol_t>(
        ihipModuleSymbol_t{module.get(), &kernel, target.max_lds_bytes}));
  }
  *out = module.release();
  return hipSuccess;
}

// The kernarg segment from an array of pointers, one for each explicit argument.
std::vector<u8> gather(const KernelInfo& kernel, void** params) {
  std::vector<u8> bytes(kernel.kernarg_bytes, 0);
  std::size_t index = 0;
  for (const KernelArgument& a : kernel.arguments) {
    if (a.kind.starts_with("hidden_")) continue;
    if (a.offset + a.size > bytes.size()) bytes.resize(a.offset + a.size);
    if (params == nullptr || params[index] == nullptr) {
      throw std::invalid_argument(fmt::format("argument {} of {} is missing", index, kernel.name));
    }
    std::memcpy(bytes.data() + a.offset, params[index], a.size);
    ++index;
  }
  return bytes;
}

// The other form: a buffer laid out by the caller.
std::span<const u8> packed(void** extra) {
  const auto kPointer = reinterpret_cast<void*>(1);
  const auto kSize = reinterpret_cast<void*>(2);
  const auto kEnd = reinterpret_cast<void*>(3);
  const u8* data = nullptr;
  std::size_t size = 0;
  for (int i = 0; extra[i] != kEnd; i += 2) {
    if (extra[i] == kPointer) {
      data = static_cast<const u8*>(extra[i + 1]);
    } else if (extra[i] == kSize) {
      size = *static_cast<const std::size_t*>(extra[i + 1]);
    } else {
      throw std::invalid_argument("the extra launch arguments are malformed");
    }
  }
  return {data, size};
}

hipError_t error_of(Fault fault) {
  switch (fault) {
    case Fault::OutOfBounds:
    case Fault::FreedMemory:
      return hipErrorIllegalAddress;
    case Fault::NoProgress:
      return hipErrorLaunchTimeOut;
    case Fault::Trap:
      return hipErrorAssert;
    default:
      return hipErrorLaunchFailure;
  }
}

// To stderr as a table or as JSON, or to a file that `variable` names.
template <class Result>
void deliver(const char* variable, const std::string& where, const Result& result) {
  if (where.empty()) return;
  if (where == "table") {
    std::fputs(result.table().c_str(), stderr);
  } else if (where == "json") {
    std::fprintf(stderr, "%s\n", result.json().c_str());
  } else {
    std::ofstream file(where, std::ios::app);
    file << result.json() << '\n';
    file.flush();
    if (!file) {
      throw std::runtime_error(fmt::format("{}={}: the file cannot be written", variable, where));
    }
  }
}

// `{kernel}` in the name gives each kernel a separate file.
std::string timeline_name(std::string name, std::string kernel) {
  constexpr std::string_view kPlaceholder = "{kernel}";
  std::ranges::replace_if(
      kernel, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  if (const auto at = name.find(kPlaceholder); at != std::string::npos) {
    name.replace(at, kPlaceholder.size(), kernel.substr(0, 200));
  }
  return name;
}

void deliver_time(Runtime& runtime, const PredictedTime& time, const LaunchRequest& request,
                  TimelineFile* timeline) {
  runtime.last_time = time.json();
  runtime.predicted_us += time.time_us;
  deliver("ROCFLASH_SIM_TIME", runtime.settings().time, time);
  if (timeline != nullptr) timeline->write(time);
  const std::string& report = runtime.settings().time_report;
  if (report.empty()) return;
  const Program& program = request.module->program(request.kernel->wave_size);
  std::fputs((report == "lines" ? line_report(time, *request.module, program)
                                : instruction_report(time, *request.module, program))
                 .c_str(),
             stderr);
}

using Extent = std::array<u32, 3>;

hipError_t execute(hipFunction_t f, const Extent& grid, const Extent& block, u32 dynamic_lds,
                   std::span<const u8> arguments) {
  Runtime& runtime = Runtime::instance();
  LaunchRequest request;
  request.module = f->module->module.get();
  request.kernel = f->kernel;
  request.arguments = arguments;
  std::ranges::copy(grid, request.grid);
  std::ranges::copy(block, request.block);
  request.dynamic_lds = dynamic_lds;
  request.checks = runtime.settings().checks;
  request.threads = runtime.settings().threads;
  request.count = runtime.count_launches;
  if (runtime.settings().trace) {
    std::fprintf(stderr, "rocflash-sim: %s grid %u %u %u block %u %u %u lds %u\n",
                 f->kernel->name.c_str(), grid[0], grid[1], grid[2], block[0], block[1], block[2],
                 f->kernel->lds_bytes + dynamic_lds);
  }
  LaunchResult result;
  std::unique_ptr<CycleModel> model;
  std::unique_ptr<TimelineFile> timeline;
  try {
    check_launch(request);
    if (runtime.time_launches) {
      const Settings& settings = runtime.settings();
      CycleModelOptions options{settings.time_only, settings.time_clock_mhz, {}};
      if (!settings.timeline.empty()) {
        timeline = std::make_unique<TimelineFile>(timeline_name(settings.timeline, f->kernel->name),
                                                  *request.module,
                                                  request.module->program(f->kernel->wave_size));
        options.timeline = timeline->sink();
      }
      model = std::make_unique<CycleModel>(request, std::move(options));
      request.traces = model.get();
    }
    result = run_kernel(request);
  } catch (const std::invalid_argument& e) {
    print_error("hipModuleLaunchKernel", e.what());
    return hipErrorInvalidConfiguration;
  }
  const std::scoped_lock lock(runtime.mutex);
  if (request.count) {
    runtime.last_counters = result.counters.json();
    deliver("ROCFLASH_SIM_COUNTERS", runtime.settings().counters, result.counters);
  }
  if (model != nullptr && result.ok())
    deliver_time(runtime, model->predict(), request, timeline.get());
  if (result.ok()) {
    runtime.last_report.clear();
    return hipSuccess;
  }
  runtime.last_report = result.report->json();
  std::fputs(result.report->text().c_str(), stderr);
  return error_of(result.report->fault);
}

// A graph owns a copy of the arguments; without capture the caller's buffer is read in place.
hipError_t launch(hipFunction_t f, const Extent& grid, const Extent& block, u32 dynamic_lds,
                  hipStream_t stream, void** params, void** extra) {
  if (f == nullptr) return hipErrorInvalidDeviceFunction;
  if (extra != nullptr && !is_capturing(stream)) {
    return execute(f, grid, block, dynamic_lds, packed(extra));
  }
  std::vector<u8> owned;
  if (extra != nullptr) {
    const std::span<const u8> given = packed(extra);
    owned.assign(given.begin(), given.end());
  } else {
    owned = gather(*f->kernel, params);
  }
  return enqueue(stream, [=, arguments = std::move(owned)] {
    return execute(f, grid, block, dynamic_lds, arguments);
  });
}

}  // namespace
}  // namespace rocflash::sim

using namespace rocflash::sim;

ROCFLASH_HIP_API hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  return guarded("hipModuleLoadData", [&] {
    if (image == nullptr) return hipErrorInvalidValue;
    try {
      return load(module, CodeObject::copy(image));
    } catch (const std::runtime_error& e) {
      print_error("hipModuleLoadData", e.what());
      return hipErrorInvalidImage;
    }
  });
}

ROCFLASH_HIP_API hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned,
                                                int*, void**) {
  return hipModuleLoadData(module, image);
}

ROCFLASH_HIP_API hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  return guarded("hipModuleLoad", [&] {
    if (path == nullptr) return hipErrorInvalidValue;
    std::ifstream file(path, std::ios::binary);
    if (!file) return hipErrorFileNotFound;
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    return load(module, {reinterpret_cast<const u8*>(bytes.data()), bytes.size()});
  });
}

ROCFLASH_HIP_API hipError_t hipModuleUnload(hipModule_t module) {
  if (module == nullptr) return set_last_error(hipErrorInvalidHandle);
  delete module;
  return hipSuccess;
}

ROCFLASH_HIP_API hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module,
                                                 const char* name) {
  return guarded("hipModuleGetFunction", [&] {
    if (function == nullptr || module == nullptr || name == nullptr) return hipErrorInvalidValue;
    for (auto& f : module->functions) {
      if (f->kernel->name == name) {
        *function = f.get();
        return hipSuccess;
      }
    }
    *function = nullptr;
    return hipErrorNotFound;
  });
}

ROCFLASH_HIP_API hipError_t hipModuleGetGlobal(hipDeviceptr_t* pointer, std::size_t* size,
                                               hipModule_t module, const char* name) {
  return guarded("hipModuleGetGlobal", [&] {
    if (module == nullptr || name == nullptr) return hipErrorInvalidValue;
    const Symbol* symbol = module->module->object().find_variable(name);
    if (symbol == nullptr) return hipErrorNotFound;
    if (pointer != nullptr) *pointer = reinterpret_cast<void*>(symbol->address);
    if (size != nullptr) *size = symbol->size;
    return hipSuccess;
  });
}

// hipFunction_attribute: 0 threads, 1 LDS, 3 scratch, 4 registers, 8 dynamic LDS limit.
ROCFLASH_HIP_API hipError_t hipFuncGetAttribute(int* value, int which, hipFunction_t f) {
  return guarded("hipFuncGetAttribute", [&] {
    if (value == nullptr || f == nullptr) return hipErrorInvalidValue;
    switch (which) {
      case 0:
        *value = static_cast<int>(f->kernel->max_threads);
        return hipSuccess;
      case 1:
        *value = static_cast<int>(f->kernel->lds_bytes);
        return hipSuccess;
      case 2:
        *value = 0;
        return hipSuccess;
      case 3:
        *value = static_cast<int>(f->kernel->scratch_bytes);
        return hipSuccess;
      case 4:
        *value = static_cast<int>(f->kernel->vgprs);
        return hipSuccess;
      case 5:
      case 6:
        *value = f->module->module->target().major * 10;
        return hipSuccess;
      case 8:
        *value = static_cast<int>(f->dynamic_lds_limit);
        return hipSuccess;
      default:
        return hipErrorInvalidValue;
    }
  });
}

ROCFLASH_HIP_API hipError_t hipFuncSetAttribute(const void* function, int which, int value) {
  return guarded("hipFuncSetAttribute", [&] {
    auto* f = static_cast<ihipModuleSymbol_t*>(const_cast<void*>(function));
    if (f == nullptr || which != 8 || value < 0 ||
        static_cast<u32>(value) > f->module->module->target().max_lds_bytes) {
      return hipErrorInvalidValue;
    }
    f->dynamic_lds_limit = static_cast<u32>(value);
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
    int* blocks, hipFunction_t f, int block_size, std::size_t dynamic_lds) {
  return guarded("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
    if (blocks == nullptr || f == nullptr || block_size <= 0) return hipErrorInvalidValue;
    const Target& target = f->module->module->target();
    const u32 lds = f->kernel->lds_bytes + static_cast<u32>(dynamic_lds);
    const int waves = waves_per_simd(target, *f->kernel, lds, static_cast<u32>(block_size));
    const int per_block = (block_size + f->kernel->wave_size - 1) / f->kernel->wave_size;
    *blocks = waves * target.simds_per_cu / per_block;
    if (lds > 0) {
      *blocks = std::min(*blocks, static_cast<int>(target.max_lds_bytes / lds));
    }
    return hipSuccess;
  });
}

ROCFLASH_HIP_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, hipFunction_t f, int block_size, std::size_t dynamic_lds, unsigned) {
  return hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, block_size, dynamic_lds);
}

ROCFLASH_HIP_API hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy,
                                                  unsigned gz, unsigned bx, unsigned by,
                                                  unsigned bz, unsigned dynamic_lds,
                                                  hipStream_t stream, void** params, void** extra) {
  return guarded("hipModuleLaunchKernel", [&] {
    return launch(f, {gx, gy, gz}, {bx, by, bz}, dynamic_lds, stream, params, extra);
  });
}

// The extended form counts the grid in work-items.
ROCFLASH_HIP_API hipError_t hipExtModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy,
                                                     unsigned gz, unsigned bx, unsigned by,
                                                     unsigned bz, std::size_t dynamic_lds,
                                                     hipStream_t stream, void** params,
                                                     void** extra, hipEvent_t, hipEvent_t,
                                                     unsigned) {
  return guarded("hipExtModuleLaunchKernel", [&] {
    if (bx == 0 || by == 0 || bz == 0 || gx % bx != 0 || gy % by != 0 || gz % bz != 0) {
      return hipErrorInvalidConfiguration;
    }
    return launch(f, {gx / bx, gy / by, gz / bz}, {bx, by, bz}, static_cast<u32>(dynamic_lds),
                  stream, params, extra);
  });
}
