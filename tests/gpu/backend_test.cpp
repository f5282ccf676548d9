// The GPU backend through the public API, on a fake driver with two devices: one with kernels and
// one without. Addresses are invalid, so a host access to them crashes.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <rocflash/rocflash.hpp>

#include <cstdlib>
#include <functional>
#include <string>

namespace rocflash {
namespace {

constexpr DLDevice gpu{kDLROCM, 0};

Tensor at(std::uintptr_t address, DType dtype, Dims shape, DLDevice device = gpu) {
  return {reinterpret_cast<void*>(address), dtype, shape, {}, device};
}

struct Given {
  explicit Given(DLDevice device = gpu, DType t = DType::f16, std::int64_t d = 64) {
    problem.q = at(0x100000, t, {2, 30, 4, d}, device);
    problem.k = at(0x200000, t, {2, 50, 2, d}, device);
    problem.v = at(0x300000, t, {2, 50, 2, d}, device);
    outputs.out = at(0x400000, t, {2, 30, 4, d}, device);
    outputs.lse = at(0x500000, DType::f32, {2, 4, 30}, device);
  }
  Problem problem;
  ForwardOutputs outputs;
};

Given packed_call() {
  Given g;
  g.problem.q = at(0x100000, DType::f16, {60, 4, 64});
  g.problem.k = at(0x200000, DType::f16, {80, 2, 64});
  g.problem.v = at(0x300000, DType::f16, {80, 2, 64});
  g.outputs.out = at(0x400000, DType::f16, {60, 4, 64});
  g.outputs.lse = at(0x500000, DType::f32, {4, 60});
  g.problem.cu_seqlens_q = at(0x600000, DType::i32, {3});
  g.problem.cu_seqlens_k = at(0x610000, DType::i32, {3});
  g.problem.max_seqlen_q = 40;
  g.problem.max_seqlen_k = 50;
  return g;
}

// The fake driver's log since the last call.
std::string driver_log() {
  static void* fake = dlopen(std::getenv("ROCFLASH_HIP_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  const std::string log = reinterpret_cast<const char* (*)()>(dlsym(fake, "fake_log"))();
  reinterpret_cast<void (*)()>(dlsym(fake, "fake_clear"))();
  return log;
}

std::string rejection(Status status, const std::function<void()>& call) {
  driver_log();
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), status) << e.what();
    EXPECT_EQ(driver_log().find("launch"), std::string::npos)
        << "a rejected call launched a kernel";
    return e.what();
  }
  return "was not rejected";
}

TEST(GpuBackend, ListsDevicesDriversAndTargets) {
  const auto all = devices();
  ASSERT_EQ(all.size(), 2u);  // the CPU, and the one with kernels
  EXPECT_EQ(all[1].device.device_type, kDLROCM);
  EXPECT_EQ(all[1].device.device_id, 0);
  EXPECT_STREQ(all[1].name, "Fake MI300X");
  EXPECT_STREQ(all[1].arch, "gfx942");
  EXPECT_STREQ(all[1].features, "gfx942 sramecc+ xnack-");
  EXPECT_EQ(all[1].units, 304);
  const rocflash_driver hip = drivers()[0];
  EXPECT_EQ(hip.in_use, 1);
  EXPECT_STREQ(hip.reason,
               "opened from ROCFLASH_HIP_LIBRARY; device 1, Fake Nano (gfx803), has no kernels in "
               "this build");
  EXPECT_EQ(drivers()[1].in_use, 0);
  bool found = false;
  for (const rocflash_target& t : targets()) found = found || std::string(t.arch) == "gfx942";
  EXPECT_TRUE(found);
}

TEST(GpuBackend, LaunchesOnTheCallersStream) {
  const Given g;
  driver_log();
  forward(g.problem, g.outputs, {.stream = reinterpret_cast<void*>(77)});
  const std::string log = driver_log();
  EXPECT_NE(log.find("launch 8 x "), std::string::npos) << log;
  EXPECT_NE(log.find("on device 0 stream 77"), std::string::npos) << log;
  decode(g.problem, {}, g.outputs);  // attention over a KV cache without append
  EXPECT_NE(driver_log().find("stream 0"), std::string::npos);
}

TEST(GpuBackend, SDmaskIsASecondLaunch) {
  Given g;
  g.outputs.lse.reset();
  g.outputs.s_dmask = at(0x700000, DType::f32, {2, 4, 30, 50});
  EXPECT_EQ(workspace_size(g.problem, g.outputs), 0u);
  driver_log();
  forward(g.problem, g.outputs);
  const std::string log = driver_log();
  EXPECT_LT(log.find("launch 8 x "), log.find("launch 60 x 256")) << log;
}

// Lengths, block tables and indices are in device memory: the host never reads them.
TEST(GpuBackend, DoesNotReadDeviceSideLengths) {
  Given packed = packed_call();
  packed.problem.seqused_q = at(0x620000, DType::i32, {2});
  packed.problem.leftpad_k = at(0x640000, DType::i32, {2});
  forward(packed.problem, packed.outputs);
  Given paged;
  paged.problem.block_table = at(0x650000, DType::i32, {2, 3});
  paged.problem.seqused_k = at(0x660000, DType::i32, {2});
  forward(paged.problem, paged.outputs);
  Given chosen;
  chosen.problem.cache_batch_idx = at(0x670000, DType::i32, {2});
  forward(chosen.problem, chosen.outputs);
}

TEST(GpuBackend, SizeQueriesAcceptNullData) {
  Given g = packed_call();
  for (Tensor* t : {&g.problem.q, &g.problem.k, &g.problem.v, &g.outputs.out})
    *t = at(0, t->dtype(), t->shape());
  g.problem.cu_seqlens_q = at(0, DType::i32, {3});
  EXPECT_EQ(workspace_size(g.problem, g.outputs), 0u);
  EXPECT_EQ(rejection(Status::invalid_argument, [&] { forward(g.problem, g.outputs); }),
            "q has null data; with shape (60, 4, 64) it must point to memory");
}

TEST(GpuBackend, VarlenNeedsMaxSeqlen) {
  Given g = packed_call();
  g.problem.max_seqlen_q = 0;
  EXPECT_EQ(rejection(Status::invalid_argument, [&] { forward(g.problem, g.outputs); }),
            "max_seqlen_q is 0; with cu_seqlens on a GPU it must be the longest sequence length");
  g = packed_call();
  g.problem.max_seqlen_k = 0;
  EXPECT_EQ(
      rejection(Status::invalid_argument, [&] { forward(g.problem, g.outputs); }).substr(0, 15),
      "max_seqlen_k is");
}

TEST(GpuBackend, EmptyProblemsSucceed) {
  Given g;
  g.problem.q = at(0, DType::f16, {2, 0, 4, 64});
  g.outputs.out = at(0, DType::f16, {2, 0, 4, 64});
  g.outputs.lse = at(0, DType::f32, {2, 4, 0});
  driver_log();
  forward(g.problem, g.outputs);
  EXPECT_EQ(driver_log(), "");
}

TEST(GpuBackend, RejectsProblemsWithoutKernel) {
  const auto why = [](const Given& g, const Execution& e = {}) {
    return rejection(Status::unsupported, [&] { forward(g.problem, g.outputs, e); });
  };
  EXPECT_EQ(why(Given(gpu, DType::f64)), "q has dtype f64; GPU kernels take f32, f16 and bf16");
  const std::string other = why(Given({kDLROCM, 1}));
  const std::string message =
      "q is on rocm:1, Fake Nano (gfx803), which this library has no kernels for; it has kernels "
      "for gfx";
  EXPECT_EQ(other.substr(0, message.size()), message);
  EXPECT_NE(other.find("gfx942"), std::string::npos) << other;
  const std::string cuda = why(Given({kDLCUDA, 0}));
  EXPECT_EQ(cuda.substr(0, 56), "q is on cuda:0, but the cuda driver is not in use: ROCFL") << cuda;
}

TEST(GpuBackend, BackwardNeedsAWorkspace) {
  Given g;
  g.problem.deterministic = true;
  const BackwardTensors b{.dout = g.outputs.out,
                          .out = at(0x900000, DType::f16, {2, 30, 4, 64}),
                          .lse = *g.outputs.lse,
                          .dq = at(0xa00000, DType::f16, {2, 30, 4, 64})};
  // The row statistics in f32, each padded to 64 bytes.
  const std::size_t bytes = workspace_size(g.problem, b);
  EXPECT_EQ(bytes, 3 * 2u * 4 * 30 * 4);
  Execution execution;
  execution.workspace = reinterpret_cast<void*>(0xb00000);
  execution.workspace_size = bytes;
  driver_log();
  backward(g.problem, b, execution);
  const std::string log = driver_log();
  // One block per (batch, head) slice: preprocess, then dq.
  EXPECT_LT(log.find("launch 8 x 256"), log.rfind("launch 8 x 256")) << log;
}

TEST(GpuBackend, AppendsBeforeAttention) {
  Given g;
  Append a;
  a.k_new = at(0xb00000, DType::f16, {2, 1, 2, 64});
  a.v_new = at(0xc00000, DType::f16, {2, 1, 2, 64});
  EXPECT_EQ(rejection(Status::invalid_argument, [&] { decode(g.problem, a, g.outputs); }),
            "k_new has 1 rows; without seqused_k all 50 rows of k are in use, so it must have 0");
  g.problem.seqused_k = at(0x660000, DType::i32, {2});
  EXPECT_EQ(workspace_size(g.problem, a, g.outputs, {}), 64u);  // the new lengths
  driver_log();
  decode(g.problem, a, g.outputs,
         {.workspace = reinterpret_cast<void*>(0xe00000), .workspace_size = 64});
  const std::string log = driver_log();
  EXPECT_LT(log.find("launch 1 x 256"), log.find("launch 8 x ")) << log;
}

TEST(GpuBackend, RejectsInvalidArguments) {
  const auto why = [](const Given& g, const Execution& e = {}) {
    return rejection(Status::invalid_argument, [&] { forward(g.problem, g.outputs, e); });
  };
  EXPECT_EQ(why(Given({kDLROCM, 2})), "q is on rocm:2, but the hip driver has 2 devices");
  Given mixed;
  mixed.problem.k = at(0x200000, DType::f16, {2, 50, 2, 64}, {kDLCPU, 0});
  EXPECT_EQ(why(mixed), "k is on cpu; it must be on rocm:0, the device of q");
  Given shared;
  shared.outputs.out = shared.problem.q;
  EXPECT_EQ(why(shared), "out overlaps q in memory; an output must not overlap another tensor");
  EXPECT_EQ(why(Given(), {.backend = Backend::naive}),
            "backend is 3 (naive) and q is on rocm:0; backend must be 0 (auto) for GPU tensors");
}

TEST(GpuBackend, ReportsTheDriversErrorMessage) {
  const Given g;
  setenv("FAKE_LAUNCH_ERROR", "719", 1);
  try {
    forward(g.problem, g.outputs);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), Status::device_error);
    EXPECT_STREQ(e.what(), "hip: hipModuleLaunchKernel: error 719, fake trouble");
  }
  unsetenv("FAKE_LAUNCH_ERROR");
  forward(g.problem, g.outputs);
}

// The same launches as the call, at other addresses than those of the creation.
TEST(GpuPlan, LaunchesLikeTheCall) {
  const Given g = packed_call();
  Given created = g;
  for (Tensor* t :
       {&created.problem.q, &created.problem.k, &created.problem.v, &created.outputs.out})
    *t = at(0, t->dtype(), t->shape());
  created.problem.cu_seqlens_q = at(0, DType::i32, {3});
  const Execution execution{.stream = reinterpret_cast<void*>(77)};
  const Plan plan(created.problem, created.outputs);
  EXPECT_EQ(plan.workspace_size(), 0u);
  forward(g.problem, g.outputs, execution);
  driver_log();
  forward(g.problem, g.outputs, execution);
  const std::string call = driver_log();
  EXPECT_NE(call.find("on device 0 stream 77"), std::string::npos) << call;
  for (int n = 0; n < 2; ++n) {
    plan.run(plan_arguments(g.problem, g.outputs, execution));
    EXPECT_EQ(driver_log(), call);
  }
}

TEST(GpuPlan, AppendsAndComputesGradients) {
  Given g;
  g.problem.seqused_k = at(0x660000, DType::i32, {2});
  const Append a{.k_new = at(0xb00000, DType::f16, {2, 1, 2, 64}),
                 .v_new = at(0xc00000, DType::f16, {2, 1, 2, 64})};
  const Execution execution{.workspace = reinterpret_cast<void*>(0xe00000), .workspace_size = 64};
  const Plan decoding(g.problem, a, g.outputs);
  EXPECT_EQ(decoding.workspace_size(), 64u);
  decode(g.problem, a, g.outputs, execution);
  driver_log();
  decode(g.problem, a, g.outputs, execution);
  const std::string log = driver_log();
  decoding.run(plan_arguments(g.problem, a, g.outputs, execution));
  EXPECT_EQ(driver_log(), log);
  EXPECT_EQ(
      rejection(Status::invalid_argument,
                [&] { decoding.run(plan_arguments(g.problem, a, g.outputs)); }),
      "workspace_size is 0; it must be at least 64 for this call, the size that the workspace "
      "query returns");
}

TEST(GpuPlan, RestoresTheCurrentDevice) {
  const Given g;
  const Plan plan(g.problem, g.outputs);
  plan.run(plan_arguments(g.problem, g.outputs));
  void* fake = dlopen(std::getenv("ROCFLASH_HIP_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  const auto set = reinterpret_cast<int (*)(int)>(dlsym(fake, "hipSetDevice"));
  set(1);
  driver_log();
  plan.run(plan_arguments(g.problem, g.outputs));
  const std::string log = driver_log();
  set(0);
  EXPECT_EQ(log.substr(0, 16), "device 0\nlaunch ") << log;
  EXPECT_EQ(log.substr(log.size() - 9), "device 1\n") << log;
}

TEST(GpuPlan, RejectsOtherTensorsAndAlignments) {
  const Given g;
  const Plan plan(g.problem, g.outputs);
  const auto why = [&](auto change) {
    PlanArguments a = plan_arguments(g.problem, g.outputs);
    change(a);
    return rejection(Status::invalid_argument, [&] { plan.run(a); });
  };
  EXPECT_EQ(why([](PlanArguments& a) { a.q = nullptr; }),
            "q is null; this plan was created with it, so it is required");
  EXPECT_EQ(why([](PlanArguments& a) { a.bias = a.q; }),
            "bias is given; this plan was created without it, so it must be null");
  EXPECT_EQ(why([](PlanArguments& a) { a.k = static_cast<std::byte*>(a.k) + 8; }),
            "k is 8 bytes past a multiple of 16; this plan was created for addresses aligned to 16 "
            "bytes");
  EXPECT_EQ(why([](PlanArguments& a) { a.out = a.v; }),
            "out overlaps v in memory; an output must not overlap another tensor");
  Given misaligned;
  misaligned.problem.k = at(0x200008, DType::f16, {2, 50, 2, 64});
  const Plan generic(misaligned.problem, misaligned.outputs);
  driver_log();
  forward(misaligned.problem, misaligned.outputs);
  driver_log();
  forward(misaligned.problem, misaligned.outputs);
  const std::string log = driver_log();
  generic.run(plan_arguments(misaligned.problem, misaligned.outputs));
  EXPECT_EQ(driver_log(), log);
  generic.run(plan_arguments(g.problem, g.outputs));  // more alignment than planned
  EXPECT_EQ(driver_log(), log);
  EXPECT_EQ(rejection(Status::unsupported,
                      [] {
                        const Given other({kDLROCM, 1});
                        Plan(other.problem, other.outputs);
                      })
                .substr(0, 34),
            "q is on rocm:1, Fake Nano (gfx803)");
}

}  // namespace
}  // namespace rocflash
