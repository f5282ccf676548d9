// One attention problem, validated and normalized by the API layer (src/api). Later code relies on
// it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "core/inline.hpp"
#include "core/names.hpp"
#include "core/philox.hpp"
#include "core/visibility.hpp"

namespace rocflash::core {

// The head dimension of MLA: 512 latent columns that are keys and values, and 64 rotary columns.
inline constexpr int max_head_dim = 576;

// Rows of q, k, v, out and their gradients: row (sequence, row, head) has `columns` contiguous
// elements. All addressing of dense, packed and paged rows is here. Packed tensors have
// batch_stride 0, and rows count from the start of the tensor.
struct Rows {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;  // in elements
  int columns = 0;
  // KV cache: rows are in blocks of block_rows; blocks[sequence][row / block_rows] is the physical
  // page or batch.
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
  // Lower bound of the number of rows from this one on with a constant row_stride.
  ROCFLASH_INLINE std::int64_t rows_together(std::int64_t row) const {
    return blocks ? block_rows - row % block_rows : std::int64_t{1} << 62;
  }
};

// The scales of quantized keys or values: an element's value is stored · scale, rounded to f32.
// Strides of 0 broadcast. Either one scale per sequence and head, or in the layout of the rows:
// then pages and batches of a KV cache have their own, as its rows do.
struct Descale {
  const float* data = nullptr;  // null: 1
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  bool per_sequence = false;

  ROCFLASH_INLINE explicit operator bool() const { return data != nullptr; }
  ROCFLASH_INLINE float at(const Rows& rows, std::int64_t batch, std::int64_t row,
                           std::int64_t head) const {
    if (!data) return 1;
    if (rows.blocks && !per_sequence) {
      batch = rows.blocks[batch * rows.blocks_stride + row / rows.block_rows];
      row %= rows.block_rows;
    }
    return data[batch * batch_stride + row * row_stride + head * head_stride];
  }
};

// A tensor over (batch, head, query, key) with broadcast strides of 0: bias, mask, s_dmask.
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

// The sizes of an output tensor over scores: 1 for broadcast dimensions (stride 0), else those of
// the problem.
struct ScoreSizes {
  std::int64_t batch, heads, queries, keys;
};

// One value per (batch, head, query): lse. Packed: batch_stride 0, and queries count from the start
// of the tensor.
struct RowStatistic {
  float* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, query_stride = 0;

  ROCFLASH_INLINE explicit operator bool() const { return data != nullptr; }
  ROCFLASH_INLINE float& at(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return data[batch * batch_stride + head * head_stride + row * query_stride];
  }
};

// One value per head, or per (batch, head): sinks, ALiBi slopes.
struct PerHead {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_stride = 0, head_stride = 0;

  ROCFLASH_INLINE explicit operator bool() const { return data != nullptr; }
  ROCFLASH_INLINE double at(std::int64_t batch, std::int64_t head) const {
    return load_as_double(data, dtype, batch * batch_stride + head * head_stride);
  }
};

// The rows of one sequence. Its queries start at q_row; the first sq of q_rows rows are in use.
struct Sequence {
  std::int64_t q_row = 0, sq = 0, q_rows = 0;
  std::int64_t k_row = 0, sk = 0;  // first key in use, and number of keys
};

// Sequence lengths. Dense tensors have neither cu_q nor cu_k. With a paged KV cache cu_k gives
// lengths only.
struct Lengths {
  std::int64_t batch = 0;
  std::int64_t rows_q = 0;  // rows of q: per sequence, or total if packed
  std::int64_t rows_k = 0;  // likewise of k and v; paged: the capacity of the block table
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
  std::int64_t max_q = 0, max_k = 0;  // longest sequences: the extent of bias, mask and s_dmask
  Visibility visibility;
  PerScore mask, bias;
  PerHead alibi, sinks;
  float scale = 1, softcap = 0;
  Dropout dropout;
  bool deterministic = false;
  int splits = 0;                // split-KV; 0: automatic
  bool inference = false;        // no backward follows
  std::int64_t caches = 0;       // batch size or number of pages of k and v: the range of block ids
  Descale k_descale, v_descale;  // of 8-bit k and v

  ROCFLASH_INLINE constexpr std::int64_t batch() const { return lengths.batch; }
  ROCFLASH_INLINE constexpr std::int64_t gqa_group() const {
    return static_cast<std::int64_t>(static_cast<Divided>(heads) / static_cast<Divided>(kv_heads));
  }
  ROCFLASH_INLINE constexpr std::int64_t kv_head(std::int64_t head) const {
    return static_cast<std::int64_t>(static_cast<Divided>(head) /
                                     static_cast<Divided>(gqa_group()));
  }
  // Whether v is the first columns of k in the same memory (MLA).
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
  Rows dq, dk, dv;  // each may be null
  PerHead dsinks, dalibi;
  PerScore dbias;  // a stride of 0 marks a broadcast dimension, over which it is summed

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
