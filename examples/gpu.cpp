// Forward and backward on an AMD GPU from C++20: plans, a stream, workspace in device memory, a
// graph.
//
//   c++ -std=c++20 gpu.cpp $(pkg-config --cflags --libs rocflash) \
//     -I/opt/rocm/include -L/opt/rocm/lib -lamdhip64
//
// A training step's attention in bf16 is planned once and captured once. Each replay reads new
// inputs from the memory of the capture. The results are compared with those of the CPU.
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <rocflash/rocflash.hpp>
#include <string>
#include <vector>

using Bf16 = std::uint16_t;

Bf16 to_bf16(float x) { return static_cast<Bf16>(std::bit_cast<std::uint32_t>(x) >> 16); }
float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

void check(hipError_t error) {
  if (error != hipSuccess) throw std::runtime_error(hipGetErrorString(error));
}

struct Free {
  void operator()(void* p) const { (void)hipFree(p); }
};
using DeviceMemory = std::unique_ptr<void, Free>;

DeviceMemory allocate(std::size_t bytes) {
  void* p = nullptr;
  if (bytes > 0) check(hipMalloc(&p, bytes));
  return DeviceMemory(p);
}

const rocflash::Dims q_shape{1, 96, 8, 64};  // batch, queries, heads, head dim
const rocflash::Dims k_shape{1, 96, 2, 64};
const rocflash::Dims lse_shape{1, 8, 96};

std::size_t count(const rocflash::Dims& shape) {
  std::size_t n = 1;
  for (const auto size : shape) n *= static_cast<std::size_t>(size);
  return n;
}

// The tensors of a step by name; every one is bf16, except for lse.
struct Tensors {
  std::map<std::string, rocflash::Tensor> all;

  rocflash::Problem problem() const {
    return {.q = all.at("q"), .k = all.at("k"), .v = all.at("v"), .causal = true};
  }
  rocflash::ForwardOutputs outputs() const { return {.out = all.at("out"), .lse = all.at("lse")}; }
  rocflash::BackwardTensors gradients() const {
    return {.dout = all.at("dout"),
            .out = all.at("out"),
            .lse = all.at("lse"),
            .dq = all.at("dq"),
            .dk = all.at("dk"),
            .dv = all.at("dv")};
  }
};

const std::map<std::string, const rocflash::Dims*> shapes{
    {"q", &q_shape},  {"k", &k_shape},  {"v", &k_shape},  {"out", &q_shape},   {"dout", &q_shape},
    {"dq", &q_shape}, {"dk", &k_shape}, {"dv", &k_shape}, {"lse", &lse_shape},
};

std::size_t bytes_of(const std::string& name) {
  return count(*shapes.at(name)) * (name == "lse" ? sizeof(float) : sizeof(Bf16));
}

Tensors describe(const std::map<std::string, void*>& memory, DLDevice device) {
  Tensors tensors;
  for (const auto& [name, shape] : shapes) {
    const auto dtype = name == "lse" ? rocflash::DType::f32 : rocflash::DType::bf16;
    tensors.all.emplace(name, rocflash::Tensor(memory.at(name), dtype, *shape, {}, device));
  }
  return tensors;
}

int main() try {
  std::map<std::string, std::vector<char>> host;
  std::map<std::string, DeviceMemory> owned;
  std::map<std::string, void*> on_host, on_gpu;
  for (const auto& [name, shape] : shapes) {
    on_host[name] = (host[name] = std::vector<char>(bytes_of(name))).data();
    on_gpu[name] = (owned[name] = allocate(bytes_of(name))).get();
  }
  const Tensors cpu = describe(on_host, {kDLCPU, 0});
  const Tensors gpu = describe(on_gpu, {kDLROCM, 0});

  hipStream_t stream = nullptr;
  check(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));

  // A plan validates the call and selects its kernels; a run only fills in addresses.
  rocflash::Execution execution{.stream = stream};
  const rocflash::Plan forward(gpu.problem(), gpu.outputs(), execution);
  const rocflash::Plan backward(gpu.problem(), gpu.gradients(), execution);
  execution.workspace_size = std::max(forward.workspace_size(), backward.workspace_size());
  const DeviceMemory workspace = allocate(execution.workspace_size);
  execution.workspace = workspace.get();

  hipGraph_t graph = nullptr;
  hipGraphExec_t step = nullptr;
  check(hipStreamBeginCapture(stream, hipStreamCaptureModeThreadLocal));
  forward.run(rocflash::plan_arguments(gpu.problem(), gpu.outputs(), execution));
  backward.run(rocflash::plan_arguments(gpu.problem(), gpu.gradients(), execution));
  check(hipStreamEndCapture(stream, &graph));
  check(hipGraphInstantiate(&step, graph, nullptr, nullptr, 0));
  check(hipGraphDestroy(graph));

  float largest = 0;
  for (int replay = 0; replay < 2; ++replay) {
    for (const char* name : {"q", "k", "v", "dout"}) {
      auto* values = reinterpret_cast<Bf16*>(on_host[name]);
      const int n_values = static_cast<int>(count(*shapes.at(name)));
      for (int n = 0; n < n_values; ++n)
        values[n] = to_bf16(std::sin(static_cast<float>(n * 37 + replay + name[0])));
      check(hipMemcpyAsync(on_gpu[name], on_host[name], bytes_of(name), hipMemcpyHostToDevice,
                           stream));
    }
    check(hipGraphLaunch(step, stream));
    rocflash::forward(cpu.problem(), cpu.outputs());
    rocflash::backward(cpu.problem(), cpu.gradients());
    for (const char* name : {"out", "dq", "dk", "dv"}) {
      std::vector<Bf16> found(count(*shapes.at(name)));
      check(hipMemcpyAsync(found.data(), on_gpu[name], bytes_of(name), hipMemcpyDeviceToHost,
                           stream));
      check(hipStreamSynchronize(stream));
      const auto* expected = reinterpret_cast<const Bf16*>(on_host[name]);
      for (std::size_t n = 0; n < found.size(); ++n) {
        const float reference = to_float(expected[n]);
        const float difference =
            std::abs(to_float(found[n]) - reference) / std::max(1.0f, std::abs(reference));
        if (!(difference <= largest)) largest = difference;
      }
    }
  }
  const bool equal = largest < 0.0156f;  // two units in the last place of bf16
  std::printf("2 replays, largest relative difference from the CPU %.1e: %s\n",
              static_cast<double>(largest), equal ? "equal" : "WRONG");
  check(hipGraphExecDestroy(step));
  check(hipStreamDestroy(stream));
  return equal ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
