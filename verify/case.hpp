// One problem to verify: every option of the ABI as data, without allocations. The contents of all
// tensors are determined by these fields and the seed.
#pragma once

#include <rocflash/rocflash.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rocflash::verify {

// Strides of the tensors. They apply to outputs too, except that outputs never broadcast.
enum class Layout : std::uint8_t {
  compact,    // contiguous
  swapped,    // the head dimension outside the row dimension
  gapped,     // unused elements after every head, row and sequence
  reversed,   // rows from the last to the first: a negative stride
  broadcast,  // inputs with stride 0: q over the batch, k and v over the heads
};

// Which of (b, h, sq, sk) a bias or a mask spans; the others have size 1.
struct Spans {
  bool batch = true, head = true, query = true, key = true;
};

// The shape of the scales of quantized k and v.
enum class Scales : std::uint8_t {
  none,          // 1
  per_tensor,    // one element
  per_sequence,  // (b, hk)
  per_head,      // (1, 1, hk)
  per_row,       // per token and head: the shape of k without columns
  per_page,      // per page, or batch entry of the cache: (caches, 1, 1)
};

enum class Slopes : std::uint8_t { none, per_head, per_sequence };
enum class Values : std::uint8_t {
  normal,
  outliers,    // some rows of q, k and v ten times as large
  non_finite,  // NaN and infinities in a few rows of k and v
  large,       // q and k whose products overflow the dtype; softmax_scale compensates
  small,       // q and k whose products underflow the dtype; softmax_scale compensates
};

// The elements of the bias that are `Case::bias_value`, a finite number far larger than other
// scores, as in additive masks of finfo(dtype).min. The other elements are normal random numbers.
enum class LargeBias : std::uint8_t {
  none,
  queries,  // every key of some queries: padding of the queries
  keys,     // the first third of the keys: left padding
  mixed,    // by query: no key, some keys, all keys, all keys with alternating signs
};

// Fields are in the order of the ABI, grouped by topic instead of by size.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct Case {
  std::string feature = "plain";  // the verified feature: a row of the report
  std::string shape = "custom";   // its shape class
  DType dtype = DType::f32;
  std::uint64_t seed = 0;

  std::int64_t batch = 1, heads = 1, kv_heads = 1, sq = 1, sk = 1;
  int head_dim = 8, value_dim = 8;
  Layout layout = Layout::compact;
  Values values = Values::normal;

  // Varlen if lengths_q is not empty: sequence n has lengths_q[n] queries and lengths_k[n] keys,
  // there is one sequence per entry, and batch, sq and sk above are ignored. Without
  // lengths_k only the queries are packed, and sk applies. `spare` rows are outside all sequences.
  std::vector<std::int64_t> lengths_q, lengths_k;
  std::int64_t spare = 0;
  std::vector<std::int64_t> seqused_q, seqused_k, leftpad_k;  // one entry per sequence, or empty

  // KV cache. Not supported by backward.
  bool mla = false;                  // v is a view of the first columns of k
  std::int64_t page = 0;             // > 0: k and v are paged with this page size, shuffled
  bool batch_indexed_cache = false;  // cache_batch_idx is set; the cache has one more batch entry
  std::optional<DType> cache_dtype;  // dtype of k and v if it differs from that of q
  Scales scales = Scales::none;      // of an 8-bit cache_dtype
  bool quantized_new = false;        // appended keys are of cache_dtype, not of dtype
  int splits = 0;                    // num_splits

  // Options of rocflash_decode: keys appended after each sequence's seqused_k, and rotary
  // embedding. Not supported by backward.
  bool decode = false;                 // calls decode even if nothing is appended
  std::vector<std::int64_t> appended;  // new keys of each sequence, or empty
  bool packed_new = false;  // new keys are packed; otherwise one number for all sequences
  int rotary_dim = 0;       // rotated columns
  bool rotary_interleaved = false;
  std::vector<std::int64_t> rotary_seqlens;  // first positions, if not those of the first new keys

  bool causal = false;
  std::optional<Window> window;
  std::int64_t attention_chunk = 0;
  std::optional<Spans> mask;

  std::optional<float> softmax_scale;
  float softcap = 0;
  Slopes alibi = Slopes::none;
  std::optional<Spans> bias;
  bool bias_masks = false;  // some elements of the bias, and all of some rows, are -inf
  LargeBias large_bias = LargeBias::none;
  float bias_value = 0;    // of a large bias; clamped to the finite range of its dtype
  float slope_factor = 1;  // multiplies ALiBi's slopes
  bool sinks = false;
  float sink_value = 0;      // unless 0: logit of the sinks, with alternating signs; clamped too,
                             // unless it is infinite or NaN
  bool f32_options = false;  // bias, sinks and s_dmask are f32 for every dtype

  float dropout_p = 0;
  bool weights = false;       // requests s_dmask
  bool lse_gradient = false;  // backward gets dlse
  bool deterministic = false;
  int threads = 1;  // a second run uses another number and must be bitwise equal

  bool packed() const { return !lengths_q.empty(); }
  bool packed_k() const { return !lengths_k.empty() && page == 0; }
  bool decodes() const { return decode || !appended.empty() || rotary_dim > 0; }
  bool has_backward() const {
    return page == 0 && !batch_indexed_cache && !cache_dtype && !decodes() && !mla;
  }
  // Whether visibility depends on the query position.
  bool has_positional_mask() const {
    return causal || attention_chunk > 0 || (window && (window->left >= 0 || window->right >= 0));
  }
  // Whether some scores are so large that f32 does not resolve differences of the usual size.
  bool has_large_scores() const {
    return large_bias != LargeBias::none || slope_factor != 1 || sink_value != 0 ||
           (softmax_scale && (*softmax_scale > 1e4f || *softmax_scale < -1e4f));
  }
  std::int64_t sequences() const {
    return packed() ? static_cast<std::int64_t>(lengths_q.size()) : batch;
  }
  // feature/dtype/shape: unique in a table.
  std::string name() const;
  // All fields that differ from a call without options, as text that suffices to reproduce it.
  std::string describe() const;
};

// The factor of q and k for `values`: a power of two.
inline double magnitude(const Case& c) {
  if (c.values == Values::large) return c.dtype == DType::f16 ? 0x1p6 : 0x1p66;
  if (c.values == Values::small) return c.dtype == DType::f16 ? 0x1p-4 : 0x1p-60;
  return 1;
}

}  // namespace rocflash::verify
