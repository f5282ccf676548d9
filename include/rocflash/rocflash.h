/* rocflash: exact attention on CPUs and GPUs. The C ABI.
 *
 * Four rules hold everywhere:
 *  - Tensors are DLPack's DLTensor. The caller owns them; a call reads or writes them and keeps
 * nothing.
 *  - Every struct begins with its size, set by the caller (`.struct_size = sizeof(x)`), so that a
 *    program built against an older header works with a newer library.
 *  - Zero means absent. A struct that is zero but for its size, q, k and v is a call without options.
 *  - An option is honoured, or the call is refused before anything is written, with a message
 *    (rocflash_last_error) that names the argument, its value and what is allowed.
 *
 * Every function may be called from any thread at any time. None of them throws, aborts or exits.
 * dlclose leaves the library mapped: threads that it started for the CPU live until the process
 * ends. docs/semantics.md defines what is computed; docs/c-api.md walks through a program.
 */
#ifndef ROCFLASH_ROCFLASH_H_
#define ROCFLASH_ROCFLASH_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#define ROCFLASH_VERSION_MAJOR 0
#define ROCFLASH_VERSION_MINOR 1
#define ROCFLASH_VERSION_PATCH 0

#if defined(__GNUC__)
#define ROCFLASH_API __attribute__((visibility("default")))
#else
#define ROCFLASH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rocflash_status {
  ROCFLASH_OK = 0,
  ROCFLASH_INVALID_ARGUMENT =
      1,                      /* the call makes no sense; the message says which argument and why */
  ROCFLASH_UNSUPPORTED = 2,   /* it makes sense, but this backend or device cannot do it */
  ROCFLASH_OUT_OF_MEMORY = 3, /* the system refused memory or threads */
  ROCFLASH_DEVICE_ERROR = 4,  /* a driver failed; the message carries its words */
  ROCFLASH_INTERNAL = 5       /* a defect of this library */
} rocflash_status;

/* Who computes. AUTO follows the device of the tensors. */
typedef enum rocflash_backend {
  ROCFLASH_BACKEND_AUTO = 0,
  ROCFLASH_BACKEND_CPU = 1, /* tiled, threaded, vectorised */
  ROCFLASH_BACKEND_REFERENCE =
      2, /* the definition, in double: the judge of all others; also takes f64 */
  ROCFLASH_BACKEND_PLAIN = 3,   /* step by step in the dtype of q: the yardstick for errors */
  ROCFLASH_BACKEND_STANDARD = 4 /* materialises the scores, else as fast as CPU: for comparisons */
} rocflash_backend;

/* DLPack's code for booleans, which older DLPack headers do not name. */
#define ROCFLASH_DL_BOOL 6

/* What is computed: inputs and options, the same struct for forward and backward.
 *
 * b batch, h query heads, hk key heads (h a multiple of hk), sq and sk lengths, d and dv head
 * sizes. q, k and v: f32, f16 or bf16, all of one dtype, any strides but a contiguous last
 * dimension. "float" below: f32 or the dtype of q. "int": int32. All tensors live on one device.
 */
typedef struct rocflash_problem {
  size_t struct_size;

  const DLTensor* q; /* (b, sq, h, d), or packed (total_q, h, d) with cu_seqlens_q */
  const DLTensor* k; /* (b, sk, hk, d), or packed (total_k, hk, d) with cu_seqlens_k */
  const DLTensor* v; /* (b, sk, hk, dv), or packed (total_k, hk, dv) */

  /* Which rows belong to which sequence. */
  const DLTensor* cu_seqlens_q; /* int (b + 1): row where each packed sequence of q begins */
  const DLTensor* cu_seqlens_k; /* int (b + 1): likewise for k and v */
  const DLTensor* seqused_q;    /* int (b): rows of q in use, counted from the sequence's begin */
  const DLTensor* seqused_k;    /* int (b): likewise for k and v */
  const DLTensor*
      leftpad_k;        /* int (b): keys to skip at each sequence's begin; seqused_k counts them */
  int64_t max_seqlen_q; /* packed: no sequence of q is longer; 0: found from cu_seqlens_q, which
                           only the CPU can */
  int64_t max_seqlen_k; /* packed: likewise for k */

  /* Which keys a query sees. Query i stands at key i + sk - sq. */
  int32_t causal;          /* 0 or 1: no key after the query's own place */
  const int64_t* window;   /* {left, right}: at most so many keys before and after; -1: no bound */
  int64_t attention_chunk; /* > 0: only keys of the chunk of this many keys that the query's place
                              lies in */
  const DLTensor* mask;    /* bool or uint8 (b|1, h|1, sq|1, sk|1): nonzero sees */

  /* How a score is shaped: s = softcap(scale * q.k) + alibi + bias. */
  const float* softmax_scale;   /* null: 1 / sqrt(d) */
  float softcap;                /* > 0: s = softcap * tanh(s / softcap) */
  const DLTensor* alibi_slopes; /* f32 (h) or (b, h): s -= slope * |distance| */
  const DLTensor* bias;         /* float (b|1, h|1, sq|1, sk|1): s += bias; -inf hides the key */
  const DLTensor* sinks; /* float (h): one more logit per head that takes weight but has no value */

  /* Dropout of weights: kept ones are scaled by 1 / (1 - p). */
  float dropout_p;       /* [0, 1) */
  uint64_t dropout_seed; /* the pattern is a function of seed, offset and position alone */
  uint64_t dropout_offset;

  int32_t deterministic; /* 0 or 1: bit-equal results on every run, even where that costs time */

  /* Keys and values in a cache; forward and decode only. */
  int32_t num_splits;          /* few queries: parts that their keys are split into; 0: chosen */
  const DLTensor* block_table; /* int (b, pages): k and v are (num_pages, page, hk, d or dv) */
  const DLTensor* cache_batch_idx; /* int (b): the batch of k and v that each sequence uses */
} rocflash_problem;

typedef struct rocflash_forward_outputs {
  size_t struct_size;
  const DLTensor*
      out; /* as q but with dv columns; written everywhere: rows without a query become 0 */
  const DLTensor*
      lse; /* optional, f32 (b, h, sq) or packed (h, total_q): log of the sum of exponentials */
  const DLTensor* s_dmask; /* optional, float (b, h, sq, sk), packed (b, h, max_q, max_k): weights,
                              negative where dropped */
} rocflash_forward_outputs;

typedef struct rocflash_backward_tensors {
  size_t struct_size;
  const DLTensor* dout;   /* in: as out */
  const DLTensor* out;    /* in: what forward wrote */
  const DLTensor* lse;    /* in: what forward wrote */
  const DLTensor* dq;     /* out: as q; gradients are each optional, but one must be there */
  const DLTensor* dk;     /* out: as k */
  const DLTensor* dv;     /* out: as v */
  const DLTensor* dsinks; /* out, optional: f32 (h) */
  const DLTensor* dbias;  /* out, optional: shape and dtype of bias, no two elements at one address;
                             summed over the dimensions in which the bias has size 1 */
  const DLTensor* dalibi_slopes; /* out, optional: f32, shape of alibi_slopes: (h) sums over b */
} rocflash_backward_tensors;

/* New keys and values on their way into a cache, and rotary embedding. All of it is optional. */
typedef struct rocflash_append {
  size_t struct_size;
  const DLTensor* k_new;            /* as k: (b, s_new, hk, d), or packed (total_new, hk, d) */
  const DLTensor* v_new;            /* as v: (b, s_new, hk, dv), or packed (total_new, hk, dv) */
  const DLTensor* cu_seqlens_k_new; /* int (b + 1): row where each packed sequence of them begins */
  const DLTensor* rotary_cos;       /* float (positions, r / 2): rotates the first r columns of */
  const DLTensor* rotary_sin;       /* q and k_new; r even, at most d */
  const DLTensor* rotary_seqlens;   /* int (b): first position; null: where the new keys go */
  int32_t rotary_interleaved; /* 1: pairs are (0, 1), (2, 3) ...; 0: (0, r/2), (1, r/2 + 1) ... */
} rocflash_append;

/* How it is computed. A null pointer stands for a struct of zeros. */
typedef struct rocflash_execution {
  size_t struct_size;
  int32_t backend;     /* rocflash_backend */
  int32_t num_threads; /* CPU: 0 takes ROCFLASH_NUM_THREADS, else the CPUs this process may use */
  void* stream; /* GPU: hipStream_t or CUstream; CPU: must be null, the call returns when it is done
                 */
  void* workspace; /* scratch memory on the tensors' device, 64-byte aligned, not shared by two
                      calls at once */
  size_t workspace_size; /* in bytes, at least what the query answers for the same arguments */
} rocflash_execution;

ROCFLASH_API rocflash_status rocflash_forward(const rocflash_problem* problem,
                                              const rocflash_forward_outputs* outputs,
                                              const rocflash_execution* execution);
ROCFLASH_API rocflash_status rocflash_backward(const rocflash_problem* problem,
                                               const rocflash_backward_tensors* tensors,
                                               const rocflash_execution* execution);

/* Attention over a cache: appends k_new and v_new to k and v in place, each behind the seqused_k
 * keys that its sequence has (all of them are then counted as used), and computes forward. Queries
 * are rotated to the positions of the new keys: query i to first + i if it is masked by position
 * (causal, window), else all to the first. A call that is refused has written nothing. A null
 * append only computes. */
ROCFLASH_API rocflash_status rocflash_decode(const rocflash_problem* problem,
                                             const rocflash_append* append,
                                             const rocflash_forward_outputs* outputs,
                                             const rocflash_execution* execution);

/* Merges attention over parts of the keys: out_partial f32 (parts, b, sq, h, dv) and lse_partial
 * f32 (parts, b, h, sq), as forward gives them, into out (b, sq, h, dv) and optionally lse f32 (b,
 * h, sq). An infinite lse of either sign marks a part in which the query saw nothing. */
ROCFLASH_API rocflash_status rocflash_combine(const DLTensor* out_partial,
                                              const DLTensor* lse_partial, const DLTensor* out,
                                              const DLTensor* lse,
                                              const rocflash_execution* execution);

/* Rotary embedding by itself: writes x, float (b, s, h, d) or packed (total, h, d) with cu_seqlens,
 * to out with its first r columns rotated; out is as x, or x itself. Row i of a sequence has the
 * position first + i; without `first`, int (b), i. cos and sin: float (positions, r / 2), r even,
 * at most d. Pairs of columns are those of rocflash_append. With -sin it rotates back. Packed rows
 * of no sequence are not written. Needs no workspace. */
ROCFLASH_API rocflash_status rocflash_rotate(const DLTensor* x, const DLTensor* cos,
                                             const DLTensor* sin, const DLTensor* cu_seqlens,
                                             const DLTensor* first, int32_t interleaved,
                                             const DLTensor* out,
                                             const rocflash_execution* execution);

/* The workspace that the call with these arguments needs. They check all that the call itself would
 * check, so they also tell whether a problem can be run. Tensors' data may be null here, except the
 * int ones. */
ROCFLASH_API rocflash_status rocflash_forward_workspace(const rocflash_problem* problem,
                                                        const rocflash_forward_outputs* outputs,
                                                        const rocflash_execution* execution,
                                                        size_t* bytes);
ROCFLASH_API rocflash_status rocflash_backward_workspace(const rocflash_problem* problem,
                                                         const rocflash_backward_tensors* tensors,
                                                         const rocflash_execution* execution,
                                                         size_t* bytes);

ROCFLASH_API rocflash_status rocflash_decode_workspace(const rocflash_problem* problem,
                                                       const rocflash_append* append,
                                                       const rocflash_forward_outputs* outputs,
                                                       const rocflash_execution* execution,
                                                       size_t* bytes);

/* The message of this thread's last call that did not return ROCFLASH_OK; "" before the first.
 * Valid until the thread's next call. */
ROCFLASH_API const char* rocflash_last_error(void);

ROCFLASH_API const char* rocflash_status_name(rocflash_status status); /* "ROCFLASH_OK", ... */
ROCFLASH_API const char* rocflash_version(void);                       /* "0.1.0" */
ROCFLASH_API int32_t rocflash_version_number(void); /* 10000 major + 100 minor + patch */

/* What this library can do, whatever the device. */
typedef struct rocflash_limits {
  size_t struct_size;
  int32_t max_head_dim;    /* of q and k, and of v */
  int32_t has_backward;    /* 0 or 1 */
  int32_t default_threads; /* what num_threads = 0 means now */
  int32_t dropout_steps;   /* dropout_p is honoured to the nearest 1 / dropout_steps */
} rocflash_limits;

/* A device it can run on. Strings live as long as the library. */
typedef struct rocflash_device {
  size_t struct_size;
  DLDevice device;
  const char* name;     /* "AMD EPYC", "AMD Instinct MI300X" */
  const char* arch;     /* the code path taken: "avx512", "gfx942" */
  const char* features; /* instruction sets and the like that were found, separated by blanks */
  int32_t units;        /* CPUs or compute units */
} rocflash_device;

/* A GPU driver it looked for, and what came of it. */
typedef struct rocflash_driver {
  size_t struct_size;
  const char* name;    /* "hip", "cuda" */
  const char* library; /* the file that was opened, or "" */
  const char* reason;  /* a sentence: why it is or is not used */
  int32_t in_use;      /* 0 or 1 */
} rocflash_driver;

/* A GPU architecture that this library carries kernels for. */
typedef struct rocflash_target {
  size_t struct_size;
  const char* arch;   /* "gfx942", "sm_80" */
  const char* family; /* whose schedule its kernels follow: "cdna3", "nvidia" */
  const char* driver; /* "hip", "cuda" */
} rocflash_target;

ROCFLASH_API rocflash_status rocflash_query_limits(rocflash_limits* limits);
/* Entry `index`, from 0; ROCFLASH_INVALID_ARGUMENT past the last. Entry 0 of the devices is the
 * CPU. */
ROCFLASH_API rocflash_status rocflash_query_device(int32_t index, rocflash_device* device);
ROCFLASH_API rocflash_status rocflash_query_driver(int32_t index, rocflash_driver* driver);
ROCFLASH_API rocflash_status rocflash_query_target(int32_t index, rocflash_target* target);

#ifdef __cplusplus
}
#endif

#endif /* ROCFLASH_ROCFLASH_H_ */
