// One problem to verify: every option of the ABI as data, nothing allocated. What tensors
// hold follows from these fields and the seed alone.
#pragma once

#include <rocflash/rocflash.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rocflash::verify {

// How tensors lie in memory. Outputs follow it too, except where two elements would share an
// address.
enum class Layout : std::uint8_t {
  compact,   // row by row
  swapped,   // heads outside of rows
  gapped,    // unused elements after every head, row and sequence
  backward,  // rows from the last to the first: a negative stride
  repeated,  // inputs with stride 0: one sequence of q for all, one head of k and v for all
};

// Which of (b, h, sq, sk) a bias or a mask spans; the others have size 1.
struct Spans {
  bool batch = true, head = true, query = true, key = true;
};

enum class Slopes : std::uint8_t { none, per_head, per_sequence };
enum class Values : std::uint8_t {
  normal,
  outliers,    // some rows of q, k and v ten times as large
  non_finite,  // NaN and infinities in a few rows of k and v
  large,       // q and k so large that their products exceed the dtype; the scale makes up for it
  small,       // the other way round
};

// Fields are in the order in which people think of them, as in the ABI.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct Case {
  std::string feature = "plain";  // what it is there to verify: a row of the report
  std::string shape = "custom";   // its shape class
  DType dtype = DType::f32;
  std::uint64_t seed = 0;

  std::int64_t batch = 1, heads = 1, kv_heads = 1, sq = 1, sk = 1;
  int head_dim = 8, value_dim = 8;
  Layout layout = Layout::compact;
  Values values = Values::normal;

  // Packed when lengths_q is not empty: sequence n has lengths_q[n] queries and lengths_k[n] keys,
  // there are as many sequences as entries, and batch, sq and sk above are ignored. Without
  // lengths_k only the queries are packed, and sk counts. `spare` rows are outside all sequences.
  std::vector<std::int64_t> lengths_q, lengths_k;
  std::int64_t spare = 0;
  std::vector<std::int64_t> seqused_q, seqused_k, leftpad_k;  // one entry a sequence, or none

  // Keys in a cache. These have no backward.
  bool shared_values = false;  // v is the first columns of k, in the same memory
  std::int64_t page = 0;       // > 0: k and v lie in pages of so many rows, in no order
  bool chosen_cache = false;   // k and v have a batch more than q, and cache_batch_idx chooses
  std::optional<DType> cache_dtype;  // of k and v, where it is not that of q
  int splits = 0;                    // num_splits

  // What rocflash_decode does before it computes: keys appended behind each sequence's seqused_k,
  // and rotary embedding. No backward either.
  bool decode = false;                 // asks decode, though there may be nothing to append
  std::vector<std::int64_t> appended;  // new keys of each sequence, or none
  bool packed_new = false;             // they come packed; if not, all have the same number
  int rotary_dim = 0;                  // columns that are rotated
  bool rotary_interleaved = false;
  std::vector<std::int64_t> rotary_seqlens;  // where rotation starts, if not at the first new key

  bool causal = false;
  std::optional<Window> window;
  std::int64_t attention_chunk = 0;
  std::optional<Spans> mask;

  std::optional<float> softmax_scale;
  float softcap = 0;
  Slopes alibi = Slopes::none;
  std::optional<Spans> bias;
  bool bias_hides = false;  // some of its elements, and all of some rows, are -inf
  bool sinks = false;
  bool wide_options = false;  // bias, sinks and s_dmask in f32 whatever the dtype

  float dropout_p = 0;
  bool weights = false;  // asks for s_dmask
  bool deterministic = false;
  int threads = 1;  // a second run takes another number, and must give the same bits

  bool packed() const { return !lengths_q.empty(); }
  bool packed_k() const { return !lengths_k.empty() && page == 0; }
  bool decodes() const { return decode || !appended.empty() || rotary_dim > 0; }
  bool has_backward() const {
    return page == 0 && !chosen_cache && !cache_dtype && !decodes() && !shared_values;
  }
  // Whether positions decide what a query sees.
  bool bounded() const {
    return causal || attention_chunk > 0 || (window && (window->left >= 0 || window->right >= 0));
  }
  std::int64_t sequences() const {
    return packed() ? static_cast<std::int64_t>(lengths_q.size()) : batch;
  }
  // feature/dtype/shape: unique in a table.
  std::string name() const;
  // All that differs from a call without options, as text from which a person can rebuild it.
  std::string describe() const;
};

// What q and k are multiplied with, as `values` says: a power of two.
inline double magnitude(const Case& c) {
  if (c.values == Values::large) return c.dtype == DType::f16 ? 0x1p6 : 0x1p66;
  if (c.values == Values::small) return c.dtype == DType::f16 ? 0x1p-4 : 0x1p-60;
  return 1;
}

}  // namespace rocflash::verify
