// The functions that exist once per instruction set. Each runs one work item in the caller's
// scratch memory.
#pragma once

#include "core/new_keys.hpp"
#include "core/problem.hpp"
#include "cpu/plan.hpp"

namespace rocflash::cpu {

// One float per (sequence, head, query), contiguous over the query rows: the row sums of dout *
// out, without dropout's scale.
struct Delta {
  float* data;
  std::int64_t batch_stride, head_stride;

  ROCFLASH_INLINE float* rows(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return data + batch * batch_stride + head * head_stride + row;
  }
};

// Gradients of q on their way: summed per (sequence, head, query) in float, in a few copies, and
// then over the copies in order. What no unit of keys has begun holds anything.
struct PartialQueryGradients {
  float* data;
  GradientParts parts;
  std::int64_t copy_stride, batch_stride, head_stride, row_stride;
  // With sinks: the weighted means that delta stands for, from unrounded weights, in as many
  // copies.
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
  // Calls body with each copy that holds something for a query which sees these keys.
  template <class Body>
  ROCFLASH_INLINE void over_copies(Range keys, Body body) const {
    const Copies c = copies_of(parts, keys);
    for (std::int64_t n = c.first; n < c.first + c.count; ++n)
      body(n < parts.copies ? n : n - parts.copies);
  }
};

// Gradients of the bias on their way: sums in float over what the bias has one element for, of the
// bias's shape. Those that run at the same time and share elements have sums of their own (see
// BiasSharing), which are added in order at the end. No data: every element is one term, and is
// stored at once.
struct BiasSums {
  float* data;
  std::int64_t copy_stride, batch_stride, head_stride, query_stride;
  int key_step;  // 0: one sum for all keys
  int copies;

  ROCFLASH_INLINE float* row(std::int64_t batch, std::int64_t head, std::int64_t query) const {
    return data + batch * batch_stride + head * head_stride + query * query_stride;
  }
  ROCFLASH_INLINE BiasSums copy(std::int64_t n) const {
    BiasSums one = *this;
    if (data) one.data += n * copy_stride;
    return one;
  }
};

// Gradients of the slopes: a sum for each sequence, head and part of the keys.
struct SlopeSums {
  double* data;
  std::int64_t heads;
  int parts;

  ROCFLASH_INLINE double& at(std::int64_t batch, std::int64_t head, std::int64_t part) const {
    return data[(batch * heads + head) * parts + part];
  }
};

struct OptionSums {
  BiasSums bias;
  SlopeSums slopes;
};

// Attention of few queries over one split of the keys: values not yet divided by the sum of their
// weights, and the online softmax's state, for each of the rows that share a key head.
struct DecodeParts {
  float* data;
  int splits;
  std::int64_t rows, row_stride;  // rows of a part; a row is [value_dim padded][state]

  ROCFLASH_INLINE float* part(const Problem& p, std::int64_t batch, std::int64_t kv_head,
                              std::int64_t split) const {
    return data + ((batch * p.kv_heads + kv_head) * splits + split) * rows * row_stride;
  }
};

// What a thread does around one split, so that keys can be asked for before they are needed:
// whether this is the first, and the one that it will probably be given next, if any.
struct DecodeTurn {
  bool first;
  const WorkItem* next;
};

// Scores and their gradients in full, row-major (query, key) per sequence and head: the standard
// backend's memory.
struct Scores {
  float* data;
  float* gradient;
  std::int64_t queries, keys;  // of the longest sequence

  ROCFLASH_INLINE std::int64_t offset(std::int64_t plane, std::int64_t query) const {
    return (plane * queries + query) * keys;
  }
};

struct Kernels {
  const char* name;

  // A block of so many queries against all keys they see.
  void (*forward)(const Problem&, const ForwardOutputs&, WorkItem, int rows, float* scratch);

  // Few queries: one split of the keys (item.block) for all rows of some key heads; then the merge
  // of a key head's splits.
  void (*decode)(const Problem&, const DecodeParts&, WorkItem, DecodeTurn, float* scratch);
  void (*merge)(const Problem&, const ForwardOutputs&, const DecodeParts&, WorkItem,
                float* scratch);

  // delta of a block of queries; all gradients of one part of the keys (item.block is the part); dq
  // of a block of queries.
  void (*delta)(const Problem&, const BackwardTensors&, const Delta&, WorkItem, float* scratch);
  void (*gradients)(const Problem&, const BackwardTensors&, const Delta&,
                    const PartialQueryGradients&, const OptionSums&, WorkItem, float* scratch);
  void (*query_gradients)(const Problem&, const BackwardTensors&, const PartialQueryGradients&,
                          WorkItem);

  // The bias's gradient: sums of all copies for some rows (of its sequences, heads and queries).
  void (*bias_gradients)(const Problem&, const BackwardTensors&, const BiasSums&, Range rows);

  // The standard backend's steps, each over a block of queries or keys, through memory.
  void (*standard_scores)(const Problem&, const Scores&, WorkItem, float* scratch);
  void (*standard_softmax)(const Problem&, const ForwardOutputs&, const Scores&, WorkItem,
                           float* scratch);
  void (*standard_output)(const Problem&, const ForwardOutputs&, const Scores&, WorkItem,
                          float* scratch);
  void (*standard_weights)(const Problem&, const BackwardTensors&, const Delta&, const Scores&,
                           WorkItem, float* scratch);
  void (*standard_query_gradients)(const Problem&, const BackwardTensors&, const Scores&, WorkItem,
                                   float* scratch);
  void (*standard_key_gradients)(const Problem&, const BackwardTensors&, const Scores&, WorkItem,
                                 float* scratch);

  // Some rows of all queries rotated to their positions, into `to`, which may be where they are.
  void (*rotate)(const Problem&, const Rotary&, const Rows& to, Range rows);
};

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

// The best set this machine can run, or the one ROCFLASH_CPU_ISA names. Chosen once.
const Kernels& chosen_kernels();

}  // namespace rocflash::cpu
