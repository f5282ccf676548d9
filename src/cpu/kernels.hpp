// The functions compiled once per ISA. Each runs one work item in the caller's scratch memory.
#pragma once

#include "core/new_keys.hpp"
#include "core/problem.hpp"
#include "cpu/plan.hpp"

namespace rocflash::cpu {

// One float per (batch, head, query), contiguous over queries: delta = rowsum(dO * O) - dlse,
// without the dropout scale.
struct Delta {
  float* data;
  std::int64_t batch_stride, head_stride;
  // Weights are exp(score - base - log_sum). base is the lse and log_sum 0, unless the lse is too
  // large for f32 to resolve the logarithm of the weights' sum.
  float *base = nullptr, *log_sum = nullptr;
  // Gradient of lse; may be null. It is subtracted from delta.
  RowStatistic dlse = {};

  // dlse of a row without the dropout scale. A fully masked row has a constant lse.
  ROCFLASH_INLINE float lse_gradient(const Problem& p, const BackwardTensors& t, std::int64_t batch,
                                     std::int64_t head, std::int64_t row) const {
    if (!dlse || t.lse.at(batch, head, row) == __builtin_inff()) return 0;
    return dlse.at(batch, head, row) / p.dropout.scale();
  }
  ROCFLASH_INLINE float* rows(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return data + batch * batch_stride + head * head_stride + row;
  }
};

// dq accumulators in float, in a few copies that are summed in order at the end. Rows that no unit
// of keys has initialized hold garbage.
struct DqAccumulators {
  float* data;
  KeyPartition parts;
  std::int64_t copy_stride, batch_stride, head_stride, row_stride;
  // With sinks: delta from unrounded weights, one array per copy.
  Delta means;
  std::int64_t means_copy_stride;

  ROCFLASH_INLINE float* rows(std::int64_t copy, std::int64_t batch, std::int64_t head,
                              std::int64_t row) const {
    return data + copy * copy_stride + batch * batch_stride + head * head_stride + row * row_stride;
  }
  ROCFLASH_INLINE float* mean_rows(std::int64_t copy, std::int64_t batch, std::int64_t head,
                                   std::int64_t row) const {
    return means.rows(batch, head, row) + copy * means_copy_stride;
  }
  // Calls body for each copy with contributions to a query that attends to these keys.
  template <class Body>
  ROCFLASH_INLINE void for_each_copy(Range keys, Body body) const {
    const Copies c = copies_of(parts, keys);
    for (std::int64_t n = c.first; n < c.first + c.count; ++n)
      body(n < parts.copies ? n : n - parts.copies);
  }
};

// Accumulators of dbias in float, in the shape of the bias. Concurrent work items that share
// elements have their own copy (see BiasSharing); copies are added in order at the end. Null data:
// the bias is not broadcast and each element is stored directly.
struct BiasAccumulators {
  float* data;
  std::int64_t copy_stride, batch_stride, head_stride, query_stride;
  int key_step;  // 0: broadcast over keys
  int copies;

  ROCFLASH_INLINE float* row(std::int64_t batch, std::int64_t head, std::int64_t query) const {
    return data + batch * batch_stride + head * head_stride + query * query_stride;
  }
  ROCFLASH_INLINE BiasAccumulators copy(std::int64_t n) const {
    BiasAccumulators one = *this;
    if (data) one.data += n * copy_stride;
    return one;
  }
};

// Gradients of the ALiBi slopes: one sum per (batch, head, split).
struct SlopeAccumulators {
  double* data;
  std::int64_t heads;
  int parts;

  ROCFLASH_INLINE double& at(std::int64_t batch, std::int64_t head, std::int64_t part) const {
    return data[(batch * heads + head) * parts + part];
  }
};

struct OptionAccumulators {
  BiasAccumulators bias;
  SlopeAccumulators slopes;
};

// Split-KV partial results of decode: unnormalized values and the online softmax state, for each
// row that shares a KV head.
struct DecodePartials {
  float* data;
  int splits;
  std::int64_t rows, row_stride;  // rows per partial result; a row is [value_dim padded][state]

  ROCFLASH_INLINE float* partial(const Problem& p, std::int64_t batch, std::int64_t kv_head,
                                 std::int64_t split) const {
    return data + ((batch * p.kv_heads + kv_head) * splits + split) * rows * row_stride;
  }
};

// What to prefetch around one split: whether it is the thread's first, and the split that the
// thread will probably run next.
struct DecodePrefetch {
  bool first;
  const WorkItem* next;
};

// The full score matrix and its gradient, row-major (query, key) per (batch, head): the workspace
// of the standard backend.
struct Scores {
  float* data;
  float* gradient;
  std::int64_t queries, keys;  // of the longest sequence

  ROCFLASH_INLINE std::int64_t offset(std::int64_t bh, std::int64_t query) const {
    return (bh * queries + query) * keys;
  }
};

struct Kernels {
  const char* name;

  // A block of `rows` queries against all keys they attend to.
  void (*forward)(const Problem&, const ForwardOutputs&, WorkItem, int rows, float* scratch);

  // Decode: one split of the keys (item.block) for all rows of some KV heads; then the combination
  // of a KV head's splits.
  void (*decode)(const Problem&, const DecodePartials&, WorkItem, DecodePrefetch, float* scratch);
  void (*combine)(const Problem&, const ForwardOutputs&, const DecodePartials&, WorkItem,
                  float* scratch);

  // Preprocess: delta and softmax statistics of a block of queries. Main: all gradients of one
  // split of the keys (item.block). Postprocess: dq of a block of queries.
  void (*delta)(const Problem&, const BackwardTensors&, const Delta&, WorkItem, float* scratch);
  void (*statistics)(const Problem&, const BackwardTensors&, const Delta&, WorkItem,
                     float* scratch);
  void (*gradients)(const Problem&, const BackwardTensors&, const Delta&, const DqAccumulators&,
                    const OptionAccumulators&, WorkItem, float* scratch);
  void (*query_gradients)(const Problem&, const BackwardTensors&, const DqAccumulators&, WorkItem);

  // dbias: sums the copies for some rows (of batch, heads and queries).
  void (*bias_gradients)(const Problem&, const BackwardTensors&, const BiasAccumulators&,
                         Range rows);

  // Stages of the standard backend, each over a block of queries or keys, through memory.
  void (*standard_scores)(const Problem&, const Scores&, WorkItem, float* scratch);
  void (*standard_softmax)(const Problem&, const ForwardOutputs&, const Scores&, WorkItem,
                           float* scratch);
  void (*standard_output)(const Problem&, const ForwardOutputs&, const Scores&, WorkItem,
                          float* scratch);
  void (*standard_statistics)(const Problem&, const BackwardTensors&, const Delta&, WorkItem,
                              float* scratch);
  void (*standard_weights)(const Problem&, const BackwardTensors&, const Delta&, const Scores&,
                           WorkItem, float* scratch);
  void (*standard_query_gradients)(const Problem&, const BackwardTensors&, const Scores&, WorkItem,
                                   float* scratch);
  void (*standard_key_gradients)(const Problem&, const BackwardTensors&, const Scores&, WorkItem,
                                 float* scratch);

  // Rotates some rows of all queries to their positions, into `to`, possibly in place.
  void (*rotate)(const Problem&, const Rotary&, const Rows& to, Range rows);
};

// Those of the architecture that the library is built for are defined.
namespace baseline {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}
namespace amx {
extern const Kernels kernels;
}
namespace neon {
extern const Kernels kernels;
}
namespace neon_bf16 {
extern const Kernels kernels;
}

// The best ISA that this CPU supports, or the one named by ROCFLASH_CPU_ISA. Selected once.
const Kernels& chosen_kernels();

}  // namespace rocflash::cpu
