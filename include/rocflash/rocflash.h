/**
 * @file rocflash.h
 * @brief The C ABI of rocflash: exact attention on CPUs and GPUs.
 *
 * Four rules hold for every function:
 *  - Tensors are DLPack's DLTensor. The caller owns them. A call keeps no pointer to them.
 *  - Every struct begins with its size, which the caller sets (`.struct_size = sizeof(x)`).
 *    A program built against an older header therefore works with a newer library.
 *  - Zero means absent. A struct of zeros except for its size, q, k and v is a call without
 *    options.
 *  - An option is honored, or the call is rejected before any output is written. The message
 *    (rocflash_last_error) names the argument, its value and what is allowed.
 *
 * Every function is thread-safe. No function throws, aborts or exits. dlclose leaves the library
 * mapped, because its CPU worker threads live until the process ends.
 *
 * docs/reference/semantics.md defines what is computed. docs/guides/c-cpp.md walks through a
 * program.
 */
#ifndef ROCFLASH_ROCFLASH_H_
#define ROCFLASH_ROCFLASH_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#define ROCFLASH_VERSION_MAJOR 0
#define ROCFLASH_VERSION_MINOR 1
#define ROCFLASH_VERSION_PATCH 0

#if defined(_WIN32) && defined(rocflash_EXPORTS)
#define ROCFLASH_API __declspec(dllexport)
#elif defined(_WIN32)
#define ROCFLASH_API
#elif defined(__GNUC__)
#define ROCFLASH_API __attribute__((visibility("default")))
#else
#define ROCFLASH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** @brief Result of a call; rocflash_last_error() has the message of a failure. */
typedef enum rocflash_status {
  ROCFLASH_OK = 0,
  /** An argument is invalid. The message names it, its value and what is allowed. */
  ROCFLASH_INVALID_ARGUMENT = 1,
  /** The call is valid, but this backend or device does not support it. */
  ROCFLASH_UNSUPPORTED = 2,
  /** The system has no memory or threads left. */
  ROCFLASH_OUT_OF_MEMORY = 3,
  /** A driver failed. The message contains the driver's own error. */
  ROCFLASH_DEVICE_ERROR = 4,
  /** A defect of this library. */
  ROCFLASH_INTERNAL = 5
} rocflash_status;

/** @brief Backend that computes a call. */
typedef enum rocflash_backend {
  /** Selected by the device of the tensors. */
  ROCFLASH_BACKEND_AUTO = 0,
  /** CPU: tiled, multithreaded, vectorized. */
  ROCFLASH_BACKEND_CPU = 1,
  /** CPU: the reference implementation in double precision; it also accepts f64. */
  ROCFLASH_BACKEND_REFERENCE = 2,
  /** CPU: naive attention step by step in the dtype of q; the baseline of the error bound. */
  ROCFLASH_BACKEND_NAIVE = 3,
  /** Former name of ROCFLASH_BACKEND_NAIVE. */
  ROCFLASH_BACKEND_PLAIN = 3,
  /** CPU: naive attention with the kernels of CPU; the baseline of speed and memory. */
  ROCFLASH_BACKEND_STANDARD = 4
} rocflash_backend;

/**
 * @name DLPack's type codes that older DLPack headers do not define
 *
 * Booleans, and the 8-bit floats of quantized keys and values; int8 is kDLInt with 8 bits.
 */
/** @{ */
#define ROCFLASH_DL_BOOL 6
#define ROCFLASH_DL_FLOAT8_E4M3FN 10
#define ROCFLASH_DL_FLOAT8_E4M3FNUZ 11
#define ROCFLASH_DL_FLOAT8_E5M2 12
#define ROCFLASH_DL_FLOAT8_E5M2FNUZ 13
/** @} */

/**
 * @brief Inputs and options of attention, shared by forward, backward and decode.
 *
 * Shapes: b batch, h query heads, hk key heads (h is a multiple of hk), sq and sk sequence
 * lengths, d and dv head dimensions. q, k and v have one dtype: f32, f16 or bf16. Without gradients
 * k and v may also be quantized to 8 bits (k_descale), or be f16 or bf16 under f32 queries. Their
 * last dimension is contiguous; other strides are free. "float" below is f32 or the dtype of q.
 * "int" is int32. All tensors are on one device.
 */
typedef struct rocflash_problem {
  /** sizeof(rocflash_problem). */
  size_t struct_size;

  /** (b, sq, h, d), or packed (total_q, h, d) with cu_seqlens_q. */
  const DLTensor* q;
  /** (b, sk, hk, d), or packed (total_k, hk, d) with cu_seqlens_k. */
  const DLTensor* k;
  /** (b, sk, hk, dv), or packed (total_k, hk, dv). */
  const DLTensor* v;

  /** @name Sequence lengths */
  /** @{ */
  /** int (b + 1): first row of each sequence in a packed q. */
  const DLTensor* cu_seqlens_q;
  /** int (b + 1): the same for k and v. */
  const DLTensor* cu_seqlens_k;
  /** int (b): rows of q in use, counted from the sequence's first row. */
  const DLTensor* seqused_q;
  /** int (b): the same for k and v. */
  const DLTensor* seqused_k;
  /** int (b): keys to skip at the start of each sequence; seqused_k counts them. */
  const DLTensor* leftpad_k;
  /** Varlen: upper bound of the lengths in q. 0 derives it from cu_seqlens_q, on the CPU only. */
  int64_t max_seqlen_q;
  /** Varlen: the same for k. */
  int64_t max_seqlen_k;
  /** @} */

  /** @name Masks; the query position is i + sk - sq (bottom-right aligned) */
  /** @{ */
  /** 0 or 1: a query attends to no key after its query position. */
  int32_t causal;
  /** {left, right}: keys visible before and after the query position; -1 is no bound. */
  const int64_t* window;
  /** > 0: a query attends only to keys of its own chunk of this many positions. */
  int64_t attention_chunk;
  /** bool or uint8 (b|1, h|1, sq|1, sk|1): nonzero is visible. */
  const DLTensor* mask;
  /** @} */

  /** @name Score modifiers: s = softcap(scale * q.k) + alibi + bias */
  /** @{ */
  /** Null: 1 / sqrt(d). */
  const float* softmax_scale;
  /** > 0: s = softcap * tanh(s / softcap). */
  float softcap;
  /** f32 (h) or (b, h): s -= slope * |query position - key position|. */
  const DLTensor* alibi_slopes;
  /** float (b|1, h|1, sq|1, sk|1): s += bias; -inf masks the key. */
  const DLTensor* bias;
  /** float (h): one logit per head in the softmax's denominator, without a value. */
  const DLTensor* sinks;
  /** @} */

  /** @name Dropout of weights; kept weights are scaled by 1 / (1 - p) */
  /** @{ */
  /** Probability in [0, 1). */
  float dropout_p;
  /** The pattern is a function of seed, offset and indices alone (Philox). */
  uint64_t dropout_seed;
  /** See dropout_seed. */
  uint64_t dropout_offset;
  /** @} */

  /** 0 or 1: bitwise equal results on every run, even where that costs time. */
  int32_t deterministic;

  /** @name KV cache; forward and decode only */
  /** @{ */
  /** Split-KV decode: maximum number of splits; 0 selects it by a heuristic. */
  int32_t num_splits;
  /** Paged KV cache: int (b, pages); k and v are (num_pages, page, hk, d or dv). */
  const DLTensor* block_table;
  /** int (b): batch entry of k and v that each sequence uses. */
  const DLTensor* cache_batch_idx;
  /** @} */

  /** @name Quantized k and v: e4m3fn, e4m3fnuz, e5m2, e5m2fnuz or int8; not in backward */
  /** @{ */
  /**
   * Optional, f32: value = stored * k_descale, rounded to f32. One element; (b|1, hk|1), per
   * sequence and head; or three dimensions, those of k without the last, each of which may be 1:
   * per token and head, per head, per page. A packed k counts as (1, total_k, hk, d). Null: 1.
   */
  const DLTensor* k_descale;
  /** The same for v. */
  const DLTensor* v_descale;
  /** @} */
} rocflash_problem;

/** @brief Outputs of forward and decode. */
typedef struct rocflash_forward_outputs {
  /** sizeof(rocflash_forward_outputs). */
  size_t struct_size;
  /** As q but with dv columns. Every element is written; rows without a query become 0. */
  const DLTensor* out;
  /** Optional, f32 (b, h, sq) or packed (h, total_q): log-sum-exp of the scores. */
  const DLTensor* lse;
  /**
   * Optional, float (b, h, sq, sk), packed (b, h, max_q, max_k): softmax weights, negative where
   * dropout dropped them.
   */
  const DLTensor* s_dmask;
} rocflash_forward_outputs;

/** @brief Inputs and outputs of backward besides the problem; at least one gradient is required. */
typedef struct rocflash_backward_tensors {
  /** sizeof(rocflash_backward_tensors). */
  size_t struct_size;
  /** Input: gradient of out, of the same shape. */
  const DLTensor* dout;
  /** Input: out as forward wrote it. */
  const DLTensor* out;
  /** Input: lse as forward wrote it. */
  const DLTensor* lse;
  /** Output, optional: as q. */
  const DLTensor* dq;
  /** Output, optional: as k. */
  const DLTensor* dk;
  /** Output, optional: as v. */
  const DLTensor* dv;
  /** Output, optional: f32 (h). */
  const DLTensor* dsinks;
  /**
   * Output, optional: shape and dtype of bias, without overlapping elements; summed over the
   * dimensions in which the bias has size 1.
   */
  const DLTensor* dbias;
  /** Output, optional: f32, shape of alibi_slopes; (h) sums over b. */
  const DLTensor* dalibi_slopes;
  /**
   * Output, optional: f32 (b, h, sq), packed (h, total_q), with a last stride of 1: the sum over
   * the columns of dout times out, minus dlse if given, times 1 - dropout_p (softmax_d of
   * flash-attn); 0 for unused rows.
   */
  const DLTensor* delta;
  /**
   * Input, optional: gradient of lse, f32 of its shape. Not read where lse is +inf: unused rows and
   * fully masked ones, whose lse is constant.
   */
  const DLTensor* dlse;
} rocflash_backward_tensors;

/** @brief New keys and values to append to a KV cache, and rotary embedding; all optional. */
typedef struct rocflash_append {
  /** sizeof(rocflash_append). */
  size_t struct_size;
  /**
   * As k: (b, s_new, hk, d), or packed (total_new, hk, d). For a quantized k also of q's dtype:
   * quantized with k_descale.
   */
  const DLTensor* k_new;
  /** As v: (b, s_new, hk, dv), or packed (total_new, hk, dv). */
  const DLTensor* v_new;
  /** int (b + 1): first row of each sequence in a packed k_new and v_new. */
  const DLTensor* cu_seqlens_k_new;
  /** float (positions, r / 2): rotates the first r columns of q and k_new; r even, at most d. */
  const DLTensor* rotary_cos;
  /** As rotary_cos. */
  const DLTensor* rotary_sin;
  /** int (b): first position; null: the row where the first new key goes. */
  const DLTensor* rotary_seqlens;
  /** 1: pairs are (0, 1), (2, 3) ...; 0: (0, r/2), (1, r/2 + 1) ... */
  int32_t rotary_interleaved;
} rocflash_append;

/** @brief Backend, stream and workspace of a call; a null pointer is a struct of zeros. */
typedef struct rocflash_execution {
  /** sizeof(rocflash_execution). */
  size_t struct_size;
  /** A rocflash_backend. */
  int32_t backend;
  /** CPU: threads; 0 takes ROCFLASH_NUM_THREADS, else the CPUs that this process may use. */
  int32_t num_threads;
  /** GPU: hipStream_t or CUstream. CPU: must be null; the call returns when it is done. */
  void* stream;
  /** Scratch memory on the tensors' device, 64-byte aligned, not shared by concurrent calls. */
  void* workspace;
  /** Size in bytes, at least what the workspace query returns for the same arguments. */
  size_t workspace_size;
} rocflash_execution;

/**
 * @brief Computes attention.
 * @param problem Inputs and options.
 * @param outputs Tensors to write.
 * @param execution Backend, stream and workspace; null for the defaults.
 * @return ROCFLASH_OK, or the reason of the failure. A rejected call has written nothing.
 */
ROCFLASH_API rocflash_status rocflash_forward(const rocflash_problem* problem,
                                              const rocflash_forward_outputs* outputs,
                                              const rocflash_execution* execution);

/**
 * @brief Computes the gradients of attention.
 * @param problem The problem that forward was given.
 * @param tensors What forward wrote, the gradient of out, and the gradients to write.
 * @param execution Backend, stream and workspace; null for the defaults.
 * @return ROCFLASH_OK, or the reason of the failure. A rejected call has written nothing.
 */
ROCFLASH_API rocflash_status rocflash_backward(const rocflash_problem* problem,
                                               const rocflash_backward_tensors* tensors,
                                               const rocflash_execution* execution);

/**
 * @brief Computes attention without a backward pass: scores may be summed in any order.
 *
 * This is several times faster for single f32 queries, whose results may differ from
 * rocflash_forward's in the last bits. It is rocflash_decode without an append.
 *
 * @param problem Inputs and options; k and v may be a cache.
 * @param outputs Tensors to write.
 * @param execution Backend, stream and workspace; null for the defaults.
 * @return ROCFLASH_OK, or the reason of the failure. A rejected call has written nothing.
 */
ROCFLASH_API rocflash_status rocflash_infer(const rocflash_problem* problem,
                                            const rocflash_forward_outputs* outputs,
                                            const rocflash_execution* execution);

/**
 * @brief Appends to a KV cache and computes attention over it.
 *
 * k_new and v_new are written to k and v in place, after the seqused_k keys of each sequence.
 * Attention covers the old and the new keys. Queries are rotated to the positions of the new keys:
 * query i to first + i with a positional mask (causal, window), otherwise every query to first.
 *
 * @param problem Inputs and options; k and v are the cache.
 * @param append New keys and values, rotary tables; null only computes attention.
 * @param outputs Tensors to write.
 * @param execution Backend, stream and workspace; null for the defaults.
 * @return ROCFLASH_OK, or the reason of the failure. A rejected call has written nothing.
 */
ROCFLASH_API rocflash_status rocflash_decode(const rocflash_problem* problem,
                                             const rocflash_append* append,
                                             const rocflash_forward_outputs* outputs,
                                             const rocflash_execution* execution);

/**
 * @brief Combines attention over splits of the keys by their log-sum-exp.
 * @param out_partial f32 (splits, b, sq, h, dv), as forward writes it.
 * @param lse_partial f32 (splits, b, h, sq), as forward writes it. An infinite lse of either sign
 *        marks a split in which the query is fully masked.
 * @param out Output (b, sq, h, dv).
 * @param lse Output f32 (b, h, sq), optional.
 * @param execution Backend, stream and workspace; null for the defaults.
 * @return ROCFLASH_OK, or the reason of the failure.
 */
ROCFLASH_API rocflash_status rocflash_combine(const DLTensor* out_partial,
                                              const DLTensor* lse_partial, const DLTensor* out,
                                              const DLTensor* lse,
                                              const rocflash_execution* execution);

/**
 * @brief Applies rotary embedding to a tensor, without a workspace.
 *
 * Row i of a sequence has position first + i. With -sin it applies the inverse rotation. Packed
 * rows of no sequence are not written.
 *
 * @param x Input, float (b, s, h, d), or packed (total, h, d) with cu_seqlens.
 * @param cos float (positions, r / 2), r even and at most d.
 * @param sin As cos.
 * @param cu_seqlens int (b + 1), or null for a dense x.
 * @param first int (b): first position of each sequence; null: 0.
 * @param interleaved Column pairs as in rocflash_append.rotary_interleaved.
 * @param out Output, as x, or x itself.
 * @param execution Backend and stream; null for the defaults.
 * @return ROCFLASH_OK, or the reason of the failure.
 */
ROCFLASH_API rocflash_status rocflash_rotate(const DLTensor* x, const DLTensor* cos,
                                             const DLTensor* sin, const DLTensor* cu_seqlens,
                                             const DLTensor* first, int32_t interleaved,
                                             const DLTensor* out,
                                             const rocflash_execution* execution);

/**
 * @name Workspace queries
 *
 * A query validates its arguments as the call does, so it also answers whether a problem is
 * supported. The data pointers of tensors may be null, except those of int tensors.
 */
/** @{ */
/**
 * @brief Workspace size of rocflash_forward with the same arguments.
 * @param problem As in the call.
 * @param outputs As in the call.
 * @param execution As in the call; its workspace is not used.
 * @param bytes Receives the size in bytes; 0 when no workspace is needed.
 * @return ROCFLASH_OK, or the error that the call would return.
 */
ROCFLASH_API rocflash_status rocflash_forward_workspace(const rocflash_problem* problem,
                                                        const rocflash_forward_outputs* outputs,
                                                        const rocflash_execution* execution,
                                                        size_t* bytes);
/**
 * @brief Workspace size of rocflash_backward with the same arguments.
 * @param problem As in the call.
 * @param tensors As in the call.
 * @param execution As in the call; its workspace is not used.
 * @param bytes Receives the size in bytes; 0 when no workspace is needed.
 * @return ROCFLASH_OK, or the error that the call would return.
 */
ROCFLASH_API rocflash_status rocflash_backward_workspace(const rocflash_problem* problem,
                                                         const rocflash_backward_tensors* tensors,
                                                         const rocflash_execution* execution,
                                                         size_t* bytes);

/**
 * @brief Workspace size of rocflash_infer with the same arguments.
 * @param problem As in the call.
 * @param outputs As in the call.
 * @param execution As in the call; its workspace is not used.
 * @param bytes Receives the size in bytes; 0 when no workspace is needed.
 * @return ROCFLASH_OK, or the error that the call would return.
 */
ROCFLASH_API rocflash_status rocflash_infer_workspace(const rocflash_problem* problem,
                                                      const rocflash_forward_outputs* outputs,
                                                      const rocflash_execution* execution,
                                                      size_t* bytes);

/**
 * @brief Workspace size of rocflash_decode with the same arguments.
 * @param problem As in the call.
 * @param append As in the call.
 * @param outputs As in the call.
 * @param execution As in the call; its workspace is not used.
 * @param bytes Receives the size in bytes; 0 when no workspace is needed.
 * @return ROCFLASH_OK, or the error that the call would return.
 */
ROCFLASH_API rocflash_status rocflash_decode_workspace(const rocflash_problem* problem,
                                                       const rocflash_append* append,
                                                       const rocflash_forward_outputs* outputs,
                                                       const rocflash_execution* execution,
                                                       size_t* bytes);
/** @} */

/**
 * @name Plans
 *
 * A plan is a call whose shapes, strides, dtypes, device and options are fixed. Its creation
 * validates them, selects the kernels and fills in their arguments once. A run gives the addresses
 * of the tensors, dropout's seed and offset, stream and workspace. It computes what the function of
 * the same name computes, bitwise.
 *
 * A plan holds no tensors and no workspace. Threads may run one plan concurrently, with different
 * workspaces. Runs can be captured in graphs. A child process may use a plan of its parent for CPU
 * tensors.
 */
/** @{ */
/** @brief A planned call, to be destroyed by rocflash_plan_destroy. */
typedef struct rocflash_plan rocflash_plan;

/**
 * @brief What a run gives to its plan: addresses, dropout's seed and offset, stream, workspace.
 *
 * Each address is that of a tensor's first element. Exactly the tensors that the plan was created
 * with are required; the others must be null. An address must be as aligned as the one that the
 * plan was created with, up to 16 bytes. All memory is on the plan's device.
 */
typedef struct rocflash_plan_arguments {
  /** sizeof(rocflash_plan_arguments). */
  size_t struct_size;
  /** @name rocflash_problem */
  /** @{ */
  const void* q;
  /** Written by decode with new keys, as v. */
  void* k;
  /** The address of k if the plan was created so: v is then the first columns of k. */
  void* v;
  const void* cu_seqlens_q;
  const void* cu_seqlens_k;
  const void* seqused_q;
  const void* seqused_k;
  const void* leftpad_k;
  const void* mask;
  const void* alibi_slopes;
  const void* bias;
  const void* sinks;
  const void* block_table;
  const void* cache_batch_idx;
  /** @} */
  /** @name rocflash_append */
  /** @{ */
  const void* k_new;
  const void* v_new;
  const void* cu_seqlens_k_new;
  const void* rotary_cos;
  const void* rotary_sin;
  const void* rotary_seqlens;
  /** @} */
  /** @name rocflash_forward_outputs; backward reads out and lse */
  /** @{ */
  void* out;
  void* lse;
  void* s_dmask;
  /** @} */
  /** @name rocflash_backward_tensors */
  /** @{ */
  const void* dout;
  void* dq;
  void* dk;
  void* dv;
  void* dsinks;
  void* dbias;
  void* dalibi_slopes;
  void* delta;
  const void* dlse;
  /** @} */
  /** @name Dropout; the probability is the plan's */
  /** @{ */
  uint64_t dropout_seed;
  uint64_t dropout_offset;
  /** @} */
  /** @name rocflash_execution */
  /** @{ */
  void* stream;
  void* workspace;
  size_t workspace_size;
  /** @} */
  /** @name rocflash_problem: scales of quantized k and v */
  /** @{ */
  const void* k_descale;
  const void* v_descale;
  /** @} */
} rocflash_plan_arguments;

/**
 * @brief Creates a plan of rocflash_forward.
 * @param problem As in the call. The tensors' data may be null, except that of int tensors on the
 *        CPU: null is an address aligned to 16 bytes that no other tensor has.
 * @param outputs As in the call, also with null data.
 * @param execution Backend and threads; its stream and workspace are not used.
 * @param plan Receives the plan; null after a failure.
 * @return ROCFLASH_OK, or the error that the call would return.
 */
ROCFLASH_API rocflash_status rocflash_plan_create_forward(const rocflash_problem* problem,
                                                          const rocflash_forward_outputs* outputs,
                                                          const rocflash_execution* execution,
                                                          rocflash_plan** plan);
/**
 * @brief Creates a plan of rocflash_backward.
 * @param problem As for rocflash_plan_create_forward.
 * @param tensors As in the call, also with null data.
 * @param execution Backend and threads; its stream and workspace are not used.
 * @param plan Receives the plan; null after a failure.
 * @return ROCFLASH_OK, or the error that the call would return.
 */
ROCFLASH_API rocflash_status rocflash_plan_create_backward(const rocflash_problem* problem,
                                                           const rocflash_backward_tensors* tensors,
                                                           const rocflash_execution* execution,
                                                           rocflash_plan** plan);
/**
 * @brief Creates a plan of rocflash_infer.
 * @param problem As for rocflash_plan_create_forward.
 * @param outputs As in the call, also with null data.
 * @param execution Backend and threads; its stream and workspace are not used.
 * @param plan Receives the plan; null after a failure.
 * @return ROCFLASH_OK, or the error that the call would return.
 */
ROCFLASH_API rocflash_status rocflash_plan_create_infer(const rocflash_problem* problem,
                                                        const rocflash_forward_outputs* outputs,
                                                        const rocflash_execution* execution,
                                                        rocflash_plan** plan);
/**
 * @brief Creates a plan of rocflash_decode.
 * @param problem As for rocflash_plan_create_forward.
 * @param append As in the call, also with null data.
 * @param outputs As in the call, also with null data.
 * @param execution Backend and threads; its stream and workspace are not used.
 * @param plan Receives the plan; null after a failure.
 * @return ROCFLASH_OK, or the error that the call would return.
 */
ROCFLASH_API rocflash_status rocflash_plan_create_decode(const rocflash_problem* problem,
                                                         const rocflash_append* append,
                                                         const rocflash_forward_outputs* outputs,
                                                         const rocflash_execution* execution,
                                                         rocflash_plan** plan);
/**
 * @brief Workspace size of a run.
 *
 * On the CPU it depends on the values of int tensors too: the size is that of the values at the
 * creation, and a run whose values need more is rejected.
 *
 * @param plan A plan.
 * @param bytes Receives the size in bytes; 0 when no workspace is needed.
 * @return ROCFLASH_OK, or ROCFLASH_INVALID_ARGUMENT.
 */
ROCFLASH_API rocflash_status rocflash_plan_workspace(const rocflash_plan* plan, size_t* bytes);
/**
 * @brief Runs a plan.
 * @param plan A plan.
 * @param arguments Addresses, seed and offset, stream, workspace.
 * @return ROCFLASH_OK, or the reason of the failure. A rejected run has written nothing.
 */
ROCFLASH_API rocflash_status rocflash_plan_run(const rocflash_plan* plan,
                                               const rocflash_plan_arguments* arguments);
/**
 * @brief Destroys a plan, which no thread may be running. Work on a GPU need not have ended.
 * @param plan A plan, or null.
 */
ROCFLASH_API void rocflash_plan_destroy(rocflash_plan* plan);
/** @} */

/**
 * @name Kernel selection
 *
 * Which GPU kernels a call selects, as a JSON object: "arch", "family", "units", "refusal" (null,
 * or why no kernel supports the call), "features", "splits", "workspace_bytes", "launches" in order
 * (kernel, operation, schedule, family, grid, block, dynamic_lds, cluster, pdl) and "rejected"
 * candidates (kernel, operation, schedule, reason). Arguments are validated as by the workspace
 * queries; nothing is launched.
 *
 * `arch` names an architecture ("gfx942", "sm_90"), for which no device is needed: the tensors may
 * be on the CPU. `units` is its number of compute units or multiprocessors; 0: those of its
 * reference card. A null `arch`, with 0 units, is the device of the first tensor.
 */
/** @{ */
/**
 * @brief Explains the kernel selection of rocflash_forward.
 * @param problem As in the call.
 * @param outputs As in the call.
 * @param arch Architecture, or null for the device of q.
 * @param units Compute units or multiprocessors, or 0.
 * @param json Receives the text with a terminating 0, if it fits; may be null.
 * @param size The size of `json` in bytes; receives the size of the text with its 0.
 * @return ROCFLASH_OK also for a call that no kernel supports; or the error of an invalid call.
 */
ROCFLASH_API rocflash_status rocflash_forward_explain(const rocflash_problem* problem,
                                                      const rocflash_forward_outputs* outputs,
                                                      const char* arch, int32_t units, char* json,
                                                      size_t* size);
/**
 * @brief Explains the kernel selection of rocflash_backward.
 * @param problem As in the call.
 * @param tensors As in the call.
 * @param arch Architecture, or null for the device of q.
 * @param units Compute units or multiprocessors, or 0.
 * @param json Receives the text with a terminating 0, if it fits; may be null.
 * @param size The size of `json` in bytes; receives the size of the text with its 0.
 * @return ROCFLASH_OK also for a call that no kernel supports; or the error of an invalid call.
 */
ROCFLASH_API rocflash_status rocflash_backward_explain(const rocflash_problem* problem,
                                                       const rocflash_backward_tensors* tensors,
                                                       const char* arch, int32_t units, char* json,
                                                       size_t* size);
/**
 * @brief Explains the kernel selection of rocflash_decode.
 * @param problem As in the call.
 * @param append As in the call.
 * @param outputs As in the call.
 * @param arch Architecture, or null for the device of q.
 * @param units Compute units or multiprocessors, or 0.
 * @param json Receives the text with a terminating 0, if it fits; may be null.
 * @param size The size of `json` in bytes; receives the size of the text with its 0.
 * @return ROCFLASH_OK also for a call that no kernel supports; or the error of an invalid call.
 */
ROCFLASH_API rocflash_status rocflash_decode_explain(const rocflash_problem* problem,
                                                     const rocflash_append* append,
                                                     const rocflash_forward_outputs* outputs,
                                                     const char* arch, int32_t units, char* json,
                                                     size_t* size);
/**
 * @brief Explains the kernel selection of rocflash_combine.
 * @param out_partial As in the call.
 * @param lse_partial As in the call.
 * @param out As in the call.
 * @param lse As in the call.
 * @param arch Architecture, or null for the device of out_partial.
 * @param units Compute units or multiprocessors, or 0.
 * @param json Receives the text with a terminating 0, if it fits; may be null.
 * @param size The size of `json` in bytes; receives the size of the text with its 0.
 * @return ROCFLASH_OK, or the error of an invalid call.
 */
ROCFLASH_API rocflash_status rocflash_combine_explain(const DLTensor* out_partial,
                                                      const DLTensor* lse_partial,
                                                      const DLTensor* out, const DLTensor* lse,
                                                      const char* arch, int32_t units, char* json,
                                                      size_t* size);
/**
 * @brief Explains the kernel selection of rocflash_rotate.
 * @param x As in the call.
 * @param cos As in the call.
 * @param sin As in the call.
 * @param cu_seqlens As in the call.
 * @param first As in the call.
 * @param interleaved As in the call.
 * @param out As in the call.
 * @param arch Architecture, or null for the device of x.
 * @param units Compute units or multiprocessors, or 0.
 * @param json Receives the text with a terminating 0, if it fits; may be null.
 * @param size The size of `json` in bytes; receives the size of the text with its 0.
 * @return ROCFLASH_OK, or the error of an invalid call.
 */
ROCFLASH_API rocflash_status rocflash_rotate_explain(const DLTensor* x, const DLTensor* cos,
                                                     const DLTensor* sin,
                                                     const DLTensor* cu_seqlens,
                                                     const DLTensor* first, int32_t interleaved,
                                                     const DLTensor* out, const char* arch,
                                                     int32_t units, char* json, size_t* size);
/** @} */

/**
 * @brief Message of this thread's last failed call.
 * @return The message, valid until the thread's next call; "" before the first failure.
 */
ROCFLASH_API const char* rocflash_last_error(void);

/**
 * @brief Name of a status.
 * @param status Any status.
 * @return "ROCFLASH_OK", "ROCFLASH_INVALID_ARGUMENT" and so on.
 */
ROCFLASH_API const char* rocflash_status_name(rocflash_status status);
/**
 * @brief Version of the library at run time.
 * @return The version as text, such as "0.1.0".
 */
ROCFLASH_API const char* rocflash_version(void);
/**
 * @brief Version of the library at run time, as a number.
 * @return 10000 * major + 100 * minor + patch.
 */
ROCFLASH_API int32_t rocflash_version_number(void);

/** @brief Limits of this library on any device. */
typedef struct rocflash_limits {
  /** sizeof(rocflash_limits). */
  size_t struct_size;
  /** Largest head dimension of q and k, and of v. */
  int32_t max_head_dim;
  /** 0 or 1. */
  int32_t has_backward;
  /** Threads that num_threads = 0 selects now. */
  int32_t default_threads;
  /** dropout_p is rounded to the nearest 1 / dropout_steps. */
  int32_t dropout_steps;
} rocflash_limits;

/** @brief A device that calls can run on; its strings live as long as the library. */
typedef struct rocflash_device {
  /** sizeof(rocflash_device). */
  size_t struct_size;
  /** DLPack device of its tensors. */
  DLDevice device;
  /** "AMD EPYC", "AMD Instinct MI300X". */
  const char* name;
  /** Selected code path: "avx512", "gfx942". */
  const char* arch;
  /** Detected instruction sets and features, space-separated. */
  const char* features;
  /** CPUs, compute units or multiprocessors. */
  int32_t units;
} rocflash_device;

/** @brief A GPU driver library and whether it is in use. */
typedef struct rocflash_driver {
  /** sizeof(rocflash_driver). */
  size_t struct_size;
  /** "hip", "cuda". */
  const char* name;
  /** Path of the opened library, or "". */
  const char* library;
  /** A sentence: why the driver is or is not used. */
  const char* reason;
  /** 0 or 1. */
  int32_t in_use;
} rocflash_driver;

/** @brief A GPU architecture that this library contains kernels for. */
typedef struct rocflash_target {
  /** sizeof(rocflash_target). */
  size_t struct_size;
  /** "gfx942", "sm_80". */
  const char* arch;
  /** Kernel family: "cdna3", "nvidia". */
  const char* family;
  /** "hip", "cuda". */
  const char* driver;
} rocflash_target;

/**
 * @brief Reads the limits of this library.
 * @param limits Struct to fill; its struct_size is set by the caller.
 * @return ROCFLASH_OK, or ROCFLASH_INVALID_ARGUMENT.
 */
ROCFLASH_API rocflash_status rocflash_query_limits(rocflash_limits* limits);
/**
 * @brief Reads one entry of the device list; entry 0 is the CPU.
 * @param index Entry, from 0.
 * @param device Struct to fill; its struct_size is set by the caller.
 * @return ROCFLASH_OK, or ROCFLASH_INVALID_ARGUMENT past the last entry.
 */
ROCFLASH_API rocflash_status rocflash_query_device(int32_t index, rocflash_device* device);
/**
 * @brief Reads one entry of the list of GPU drivers.
 * @param index Entry, from 0.
 * @param driver Struct to fill; its struct_size is set by the caller.
 * @return ROCFLASH_OK, or ROCFLASH_INVALID_ARGUMENT past the last entry.
 */
ROCFLASH_API rocflash_status rocflash_query_driver(int32_t index, rocflash_driver* driver);
/**
 * @brief Reads one entry of the list of GPU architectures with kernels.
 * @param index Entry, from 0.
 * @param target Struct to fill; its struct_size is set by the caller.
 * @return ROCFLASH_OK, or ROCFLASH_INVALID_ARGUMENT past the last entry.
 */
ROCFLASH_API rocflash_status rocflash_query_target(int32_t index, rocflash_target* target);

#ifdef __cplusplus
}
#endif

#endif /* ROCFLASH_ROCFLASH_H_ */
