/* The part of HIP's header that examples/ uses, for builds without ROCm: the programs are linked with
 * the simulator's libamdhip64. Names and numbers are HIP's. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { hipSuccess = 0 } hipError_t;
typedef enum {
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
} hipMemcpyKind;
typedef enum { hipStreamCaptureModeThreadLocal = 1 } hipStreamCaptureMode;
#define hipStreamNonBlocking 0x01

typedef struct ihipStream_t* hipStream_t;
typedef struct ihipGraph* hipGraph_t;
typedef struct hipGraphNode* hipGraphNode_t;
typedef struct hipGraphExec* hipGraphExec_t;

const char* hipGetErrorString(hipError_t error);
hipError_t hipMalloc(void** pointer, size_t size);
hipError_t hipFree(void* pointer);
hipError_t hipMemcpyAsync(void* to, const void* from, size_t size, hipMemcpyKind kind,
                          hipStream_t stream);
hipError_t hipMemsetAsync(void* to, int value, size_t size, hipStream_t stream);
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags);
hipError_t hipStreamSynchronize(hipStream_t stream);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode);
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph);
hipError_t hipGraphInstantiate(hipGraphExec_t* executable, hipGraph_t graph,
                               hipGraphNode_t* error_node, char* log, size_t log_size);
hipError_t hipGraphDestroy(hipGraph_t graph);
hipError_t hipGraphLaunch(hipGraphExec_t executable, hipStream_t stream);
hipError_t hipGraphExecDestroy(hipGraphExec_t executable);

#ifdef __cplusplus
}
#endif
