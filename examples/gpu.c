/* Decode on an AMD GPU from C: a stream, workspace in device memory, a graph of the whole step.
 *
 *   cc gpu.c $(pkg-config --cflags --libs rocflash) -I/opt/rocm/include -L/opt/rocm/lib -lamdhip64
 *
 * A step appends one key and value per sequence to the KV cache and attends to all of them. The
 * step is captured once. Each replay reads the new token and the lengths from the memory of the
 * capture.
 */
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <rocflash/rocflash.h>
#include <stdio.h>
#include <stdlib.h>

enum { batch = 2, heads = 8, key_heads = 2, head_dim = 64, capacity = 64, steps = 5 };
enum { q_size = batch * heads * head_dim, new_size = batch * key_heads * head_dim };
enum { cache_size = batch * capacity * key_heads * head_dim };

#define CHECK_HIP(call)                                             \
  do {                                                              \
    hipError_t error = (call);                                      \
    if (error != hipSuccess) {                                      \
      fprintf(stderr, "%s: %s\n", #call, hipGetErrorString(error)); \
      exit(1);                                                      \
    }                                                               \
  } while (0)
#define CHECK(call)                                                                     \
  do {                                                                                  \
    rocflash_status status = (call);                                                    \
    if (status != ROCFLASH_OK) {                                                        \
      fprintf(stderr, "%s: %s\n", rocflash_status_name(status), rocflash_last_error()); \
      exit(1);                                                                          \
    }                                                                                   \
  } while (0)

/* The memory of a step, on the device and on the host. */
typedef struct {
  float *q, *k_new, *v_new, *k, *v, *out;
  int32_t* used;
} Memory;

/* A decode step: descriptors of the memory, and the problem that refers to them. */
typedef struct {
  DLTensor q, k_new, v_new, k, v, out, used;
  rocflash_problem problem;
  rocflash_append append;
  rocflash_forward_outputs outputs;
} Step;

static int64_t q_shape[4] = {batch, 1, heads, head_dim};
static int64_t new_shape[4] = {batch, 1, key_heads, head_dim};
static int64_t cache_shape[4] = {batch, capacity, key_heads, head_dim};
static int64_t used_shape[1] = {batch};

static DLTensor tensor(void* data, DLDeviceType device, int64_t* shape, int ndim) {
  DLTensor t = {0}; /* no strides: contiguous; device 0 */
  t.data = data;
  t.device.device_type = device;
  t.dtype.code = ndim == 1 ? kDLInt : kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.ndim = ndim;
  t.shape = shape;
  return t;
}

static void describe(Step* s, const Memory* m, DLDeviceType device) {
  s->q = tensor(m->q, device, q_shape, 4);
  s->k_new = tensor(m->k_new, device, new_shape, 4);
  s->v_new = tensor(m->v_new, device, new_shape, 4);
  s->k = tensor(m->k, device, cache_shape, 4);
  s->v = tensor(m->v, device, cache_shape, 4);
  s->out = tensor(m->out, device, q_shape, 4);
  s->used = tensor(m->used, device, used_shape, 1);
  s->problem = (rocflash_problem){.struct_size = sizeof s->problem,
                                  .q = &s->q,
                                  .k = &s->k,
                                  .v = &s->v,
                                  .seqused_k = &s->used,
                                  .causal = 1};
  s->append =
      (rocflash_append){.struct_size = sizeof s->append, .k_new = &s->k_new, .v_new = &s->v_new};
  s->outputs = (rocflash_forward_outputs){.struct_size = sizeof s->outputs, .out = &s->out};
}

static void* device_memory(size_t bytes) {
  void* p = NULL;
  CHECK_HIP(hipMalloc(&p, bytes));
  return p;
}

/* The query, key and value of the next token of each sequence: of a model, here arithmetic. */
static void next_token(Memory* host, int step) {
  for (int n = 0; n < q_size; ++n) host->q[n] = (float)((n * 7 + step) % 11 - 5) / 4;
  for (int n = 0; n < new_size; ++n) {
    host->k_new[n] = (float)((n * 3 + step * 5) % 13 - 6) / 4;
    host->v_new[n] = (float)((n + step * 17) % 19 - 9);
  }
}

/* The same step on the CPU; returns the largest difference. */
static float compare(const Memory* host, const float* out) {
  Step step;
  describe(&step, host, kDLCPU);
  rocflash_execution run = {.struct_size = sizeof run};
  CHECK(rocflash_decode_workspace(&step.problem, &step.append, &step.outputs, &run,
                                  &run.workspace_size));
  run.workspace = aligned_alloc(64, (run.workspace_size + 64) / 64 * 64);
  CHECK(rocflash_decode(&step.problem, &step.append, &step.outputs, &run));
  free(run.workspace);
  float largest = 0;
  for (int n = 0; n < q_size; ++n) {
    float difference = out[n] > host->out[n] ? out[n] - host->out[n] : host->out[n] - out[n];
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

int main(void) {
  static float q[q_size], k_new[new_size], v_new[new_size], k[cache_size], v[cache_size];
  static float expected[q_size], out[q_size];
  static int32_t used[batch] = {0, 3}; /* the second sequence already has three keys, of zeros */
  Memory host = {q, k_new, v_new, k, v, expected, used};
  Memory gpu = {device_memory(sizeof q),   device_memory(sizeof k_new), device_memory(sizeof v_new),
                device_memory(sizeof k),   device_memory(sizeof v),     device_memory(sizeof out),
                device_memory(sizeof used)};
  hipStream_t stream;
  CHECK_HIP(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  CHECK_HIP(hipMemsetAsync(gpu.k, 0, sizeof k, stream));
  CHECK_HIP(hipMemsetAsync(gpu.v, 0, sizeof v, stream));

  Step step;
  describe(&step, &gpu, kDLROCM);
  rocflash_execution execution = {.struct_size = sizeof execution, .stream = stream};
  /* The query validates the call. The workspace is the GPU's memory, and lives as long as the graph. */
  CHECK(rocflash_decode_workspace(&step.problem, &step.append, &step.outputs, &execution,
                                  &execution.workspace_size));
  execution.workspace = execution.workspace_size ? device_memory(execution.workspace_size) : NULL;

  hipGraph_t graph;
  hipGraphExec_t replay;
  CHECK_HIP(hipStreamBeginCapture(stream, hipStreamCaptureModeThreadLocal));
  CHECK(rocflash_decode(&step.problem, &step.append, &step.outputs, &execution));
  CHECK_HIP(hipStreamEndCapture(stream, &graph));
  CHECK_HIP(hipGraphInstantiate(&replay, graph, NULL, NULL, 0));
  CHECK_HIP(hipGraphDestroy(graph));

  float largest = 0;
  for (int n = 0; n < steps; ++n) {
    next_token(&host, n);
    CHECK_HIP(hipMemcpyAsync(gpu.q, q, sizeof q, hipMemcpyHostToDevice, stream));
    CHECK_HIP(hipMemcpyAsync(gpu.k_new, k_new, sizeof k_new, hipMemcpyHostToDevice, stream));
    CHECK_HIP(hipMemcpyAsync(gpu.v_new, v_new, sizeof v_new, hipMemcpyHostToDevice, stream));
    CHECK_HIP(hipMemcpyAsync(gpu.used, used, sizeof used, hipMemcpyHostToDevice, stream));
    CHECK_HIP(hipGraphLaunch(replay, stream));
    CHECK_HIP(hipMemcpyAsync(out, gpu.out, sizeof out, hipMemcpyDeviceToHost, stream));
    CHECK_HIP(hipStreamSynchronize(stream));
    float difference = compare(&host, out);
    if (!(difference <= largest)) largest = difference;
    for (int b = 0; b < batch; ++b) ++used[b];
  }
  printf("%d replays, largest difference from the CPU %.1e: %s\n", (int)steps, (double)largest,
         largest < 1e-4f ? "equal" : "WRONG");

  CHECK_HIP(hipGraphExecDestroy(replay));
  void* all[] = {gpu.q, gpu.k_new, gpu.v_new, gpu.k, gpu.v, gpu.out, gpu.used, execution.workspace};
  for (size_t n = 0; n < sizeof all / sizeof *all; ++n) CHECK_HIP(hipFree(all[n]));
  CHECK_HIP(hipStreamDestroy(stream));
  return largest < 1e-4f ? 0 : 1;
}
