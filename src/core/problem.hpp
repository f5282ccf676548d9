// One attention problem, checked and normalised by the door (src/api). Everything behind it trusts
// this.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "core/inline.hpp"
#include "core/names.hpp"
#include "core/philox.hpp"
#include "core/visibility.hpp"

namespace rocflash::core {

// 512 columns that are keys and values, and 64 that are keys alone: the largest rows of models that cache one
// latent row per token.
inline constexpr int max_head_dim = 576;

// Rows of q, k, v, out and their gradients: row (sequence, row, head) has `columns` contiguous
// elements. This is the one place that knows where a row lies, dense, packed or paged. Packed
// tensors have batch_stride 0, and their rows count from the begin of the whole tensor.
struct Rows {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;  // in elements
  int columns = 0;
  // Caches: block_rows rows at a time lie in the batch that the table names, blocks[sequence][row /
  // block_rows].
  const std::int32_t* blocks = nullptr;
  std::int64_t blocks_stride = 0, block_rows = 1;

  ROCFLASH_INLINE explicit operator bool() const { return data != nullptr; }
  ROCFLASH_INLINE std::byte* row(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    if (blocks) {
      batch = blocks[batch * blocks_stride + row / block_rows];
      row %= block_rows;
    }
    return data + (batch * batch_stride + row * row_stride + head * head_stride) *
                      static_cast<std::int64_t>(size_of(dtype));
  }
  // How many rows from this one on follow each other at row_stride, at least.
  ROCFLASH_INLINE std::int64_t rows_together(std::int64_t row) const {
    return blocks ? block_rows - row % block_rows : std::int64_t{1} << 62;
  }
};

// A tensor over (sequence, head, query, key) where each stride may be 0: bias, mask, s_dmask.
struct PerScore {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_stride = 0, head_stride = 0, query_stride = 0, key_stride = 0;

  ROCFLASH_INLINE explicit operator bool() const { return data != nullptr; }
  ROCFLASH_INLINE std::byte* row(std::int64_t batch, std::int64_t head, std::int64_t query) const {
    return data + (batch * batch_stride + head * head_stride + query * query_stride) *
                      static_cast<std::int64_t>(size_of(dtype));
  }
};

// Numbers per score to be written: dimensions with stride 0 have one element, the others are those of the
// problem. Inputs may also repeat elements.
struct ScoreSizes {
  std::int64_t batch, heads, queries, keys;
};

// One number per (sequence, head, query): lse. Packed: batch_stride 0 and queries count from the
// tensor's begin.
struct RowStatistic {
  float* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, query_stride = 0;

  ROCFLASH_INLINE explicit operator bool() const { return data != nullptr; }
  ROCFLASH_INLINE float& at(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return data[batch * batch_stride + head * head_stride + row * query_stride];
  }
};

// One number per head, or per (sequence, head): sinks, slopes.
struct PerHead {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_stride = 0, head_stride = 0;

  ROCFLASH_INLINE explicit operator bool() const { return data != nullptr; }
  ROCFLASH_INLINE double at(std::int64_t batch, std::int64_t head) const {
    return load_as_double(data, dtype, batch * batch_stride + head * head_stride);
  }
};

// Where one sequence lies. Rows from q_row on hold its queries; the first sq of q_rows are in use.
struct Sequence {
  std::int64_t q_row = 0, sq = 0, q_rows = 0;
  std::int64_t k_row = 0, sk = 0;  // first key in use and their number
};

// How long each sequence is. Dense tensors have neither cu_q nor cu_k. With paged keys cu_k tells
// lengths only.
struct Lengths {
  std::int64_t batch = 0;
  std::int64_t rows_q = 0;  // rows of q: per sequence, or in all when packed
  std::int64_t rows_k = 0;  // likewise of k and v; paged: what the table has room for
  const std::int32_t* cu_q = nullptr;
  const std::int32_t* cu_k = nullptr;
  const std::int32_t* used_q = nullptr;
  const std::int32_t* used_k = nullptr;
  const std::int32_t* leftpad_k = nullptr;
  bool paged = false;

  ROCFLASH_INLINE constexpr bool packed_q() const { return cu_q != nullptr; }
  ROCFLASH_INLINE constexpr bool packed_k() const { return cu_k != nullptr && !paged; }
  // Keys of a sequence before leftpad_k and seqused_k.
  ROCFLASH_INLINE constexpr std::int64_t keys(std::int64_t b) const {
    return cu_k ? cu_k[b + 1] - cu_k[b] : rows_k;
  }
  ROCFLASH_INLINE constexpr std::int64_t queries(std::int64_t b) const {
    return cu_q ? cu_q[b + 1] - cu_q[b] : rows_q;
  }
  ROCFLASH_INLINE Sequence sequence(std::int64_t b) const {
    Sequence s;
    s.q_row = cu_q ? cu_q[b] : 0;
    s.q_rows = queries(b);
    s.sq = used_q ? used_q[b] : s.q_rows;
    const std::int64_t skipped = leftpad_k ? leftpad_k[b] : 0;
    s.k_row = (packed_k() ? cu_k[b] : 0) + skipped;
    s.sk = (used_k ? used_k[b] : keys(b)) - skipped;
    return s;
  }
};

struct Problem {
  DType dtype = DType::f32;
  std::int64_t heads = 0, kv_heads = 0;
  int head_dim = 0, value_dim = 0;
  Rows q, k, v;
  Lengths lengths;
  std::int64_t max_q = 0, max_k = 0;  // longest sequence of each; what bias, mask and s_dmask span
  Visibility visibility;
  PerScore mask, bias;
  PerHead alibi, sinks;
  float scale = 1, softcap = 0;
  Dropout dropout;
  bool deterministic = false;
  int splits = 0;           // of the keys, for few queries; 0: chosen
  bool inference = false;   // no backward will follow
  std::int64_t caches = 0;  // batches or pages that k and v have: what their blocks may name

  ROCFLASH_INLINE constexpr std::int64_t batch() const { return lengths.batch; }
  ROCFLASH_INLINE constexpr std::int64_t group() const {
    return static_cast<std::int64_t>(static_cast<Divided>(heads) / static_cast<Divided>(kv_heads));
  }
  ROCFLASH_INLINE constexpr std::int64_t kv_head(std::int64_t head) const {
    return static_cast<std::int64_t>(static_cast<Divided>(head) / static_cast<Divided>(group()));
  }
  // Whether the values are the first columns of the keys, in the same memory.
  ROCFLASH_INLINE constexpr bool values_within_keys() const {
    return v.data == k.data && v.dtype == k.dtype && v.batch_stride == k.batch_stride &&
           v.row_stride == k.row_stride && v.head_stride == k.head_stride && value_dim <= head_dim;
  }
};

struct ForwardOutputs {
  Rows out;
  RowStatistic lse;
  PerScore s_dmask;
};

struct BackwardTensors {
  Rows dout, out;
  RowStatistic lse;
  Rows dq, dk, dv;  // each may be missing
  PerHead dsinks, dalibi;
  PerScore dbias;  // strides are 0 where the bias has one element: terms add up there

  ROCFLASH_INLINE constexpr ScoreSizes dbias_sizes(const Problem& p) const {
    return {dbias.batch_stride ? p.batch() : 1, dbias.head_stride ? p.heads : 1,
            dbias.query_stride ? p.max_q : 1, dbias.key_stride ? p.max_k : 1};
  }
};

struct Execution {
  int threads = 1;
  void* stream = nullptr;
  std::byte* workspace = nullptr;
};

}  // namespace rocflash::core
