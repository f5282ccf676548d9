#include "verify/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "verify/random.hpp"
#include "verify/scalar.hpp"

namespace rocflash::verify {
namespace {

constexpr int mixed_cases_per_dtype = 400;
constexpr int max_head_dim = 576;

void set_heads(Case& c, std::int64_t heads, std::int64_t kv_heads) {
  c.heads = heads;
  c.kv_heads = kv_heads;
}

// Four sequences derived from the shape, including an empty one and one with a single row.
void pack(Case& c) {
  c.lengths_q = {c.sq, 1, 0, (c.sq + 1) / 2};
  c.lengths_k = {c.sk, (c.sk + 2) / 3, std::min<std::int64_t>(c.sk, 5),
                 std::min<std::int64_t>(c.sk, 1)};
  c.spare = 5;
}

std::int64_t length_q(const Case& c, std::size_t n) { return c.packed() ? c.lengths_q[n] : c.sq; }
std::int64_t length_k(const Case& c, std::size_t n) {
  return c.lengths_k.empty() ? c.sk : c.lengths_k[n];
}

// Number of used rows; it cycles through two thirds, none, one and all rows.
std::int64_t used_rows(std::int64_t length, std::size_t n) {
  const std::array<std::int64_t, 4> of{length - length / 3, 0, std::min<std::int64_t>(length, 1),
                                       length};
  return of[n % 4];
}

void dense_batch(Case& c) {
  if (!c.packed()) c.batch = 4;
}

void use_queries(Case& c) {
  dense_batch(c);
  c.seqused_q.clear();
  for (std::size_t n = 0; n < static_cast<std::size_t>(c.sequences()); ++n)
    c.seqused_q.push_back(used_rows(length_q(c, n), n));
}

void use_keys(Case& c) {
  dense_batch(c);
  c.seqused_k.clear();
  for (std::size_t n = 0; n < static_cast<std::size_t>(c.sequences()); ++n)
    c.seqused_k.push_back(used_rows(length_k(c, n), n + 3));
}

void pad_left(Case& c) {
  dense_batch(c);
  c.leftpad_k.clear();
  for (std::size_t n = 0; n < static_cast<std::size_t>(c.sequences()); ++n) {
    const std::int64_t keys = c.seqused_k.empty() ? length_k(c, n) : c.seqused_k[n];
    c.leftpad_k.push_back(
        std::array<std::int64_t, 4>{keys / 3, keys, 0, std::min<std::int64_t>(keys, 1)}[n % 4]);
  }
}

// The length of a paged cache is a multiple of the page size.
void page_keys(Case& c, std::int64_t page) {
  c.page = page;
  if (c.lengths_k.empty()) c.sk = (c.sk + page - 1) / page * page;
}

// New keys of all sequences have the same length, or are packed with different lengths.
enum class New : std::uint8_t { equal_lengths, packed };

// Appends up to `most` new keys per sequence and enlarges the cache accordingly. Packed keys cannot
// be appended to, so with packed queries the cache is dense or paged.
void append(Case& c, std::int64_t most, New kind = New::equal_lengths) {
  c.lengths_k.clear();
  c.packed_new = kind == New::packed;
  const std::int64_t before = c.sk;
  c.sk += most;
  if (c.page > 0) page_keys(c, c.page);
  dense_batch(c);
  c.seqused_k.clear();
  c.appended.clear();
  for (std::size_t n = 0; n < static_cast<std::size_t>(c.sequences()); ++n) {
    c.seqused_k.push_back(used_rows(before, n + 3));
    c.appended.push_back(kind == New::packed ? used_rows(most, n) : most);
  }
  if (!c.leftpad_k.empty()) pad_left(c);
}

void rotate(Case& c, int columns, bool interleaved) {
  c.rotary_dim = std::min(columns, c.head_dim) / 2 * 2;  // columns rotate in pairs
  c.rotary_interleaved = c.rotary_dim > 0 && interleaved;
}

void rotate_from(Case& c, std::vector<std::int64_t> begins) {
  begins.resize(static_cast<std::size_t>(c.sequences()), 2);
  if (c.rotary_dim > 0) c.rotary_seqlens = std::move(begins);
}

void use_16_bit_cache(Case& c, DType dtype) {
  if (c.dtype == DType::f32) c.cache_dtype = dtype;
}

// MLA: one row of the latent KV cache per token for all heads, whose first columns are the values.
// Few queries, since there are many heads.
void use_mla(Case& c, std::int64_t heads, int head_dim = max_head_dim, int value_dim = 512) {
  c.mla = true;
  c.sq = std::min<std::int64_t>(c.sq, 3);
  c.sk = std::min<std::int64_t>(c.sk, 200);
  c.head_dim = head_dim;
  c.value_dim = value_dim;
  // f32 has no MLA kernel, so a few heads suffice.
  set_heads(c, c.dtype == DType::f32 ? 2 : heads, 1);
}

// Shapes that the decode kernels are selected for.
void use_decode_shape(Case& c) {
  c.sq = std::min<std::int64_t>(c.sq, 3);
  c.sk = std::max<std::int64_t>(c.sk, 300);
}

void drop(Case& c, float p) {
  c.dropout_p = p;
  c.weights = true;
}

float scale_of(const Case& c, double factor) {
  return static_cast<float>(factor / std::sqrt(static_cast<double>(c.head_dim)));
}

// The scale restores scores of the usual size.
void compensate(Case& c, Values values) {
  c.values = values;
  c.softmax_scale = scale_of(c, 1 / magnitude(c) / magnitude(c));
}

void everything(Case& c) {
  set_heads(c, 4, 2);
  c.layout = Layout::gapped;
  use_queries(c);
  use_keys(c);
  pad_left(c);
  c.causal = true;
  c.window = Window{100, 3};
  c.mask = Spans{.head = false};
  c.softmax_scale = scale_of(c, 1.5);
  c.softcap = 4;
  c.alibi = Slopes::per_sequence;
  c.bias = Spans{.batch = false};
  c.bias_masks = true;
  c.sinks = true;
  drop(c, 0.2f);
  c.lse_gradient = true;
  c.deterministic = true;
}

// Clamped to the finite range of the bias, this is the value of additive masks of finfo(dtype).min.
constexpr float finfo_max = std::numeric_limits<float>::max();

void use_large_bias(Case& c, LargeBias where, float value, DType dtype_of_bias) {
  c.bias = Spans{.head = false};
  c.large_bias = where;
  c.bias_value = value;
  c.f32_options = dtype_of_bias == DType::f32;
}

// Finite scores that are far larger than usual: softmax depends only on differences. A softcap far
// above the scores is the identity; far below them it makes all scores equal.
std::vector<Feature> extreme_score_features() {
  return {
      {"softcap 1e6", [](Case& c) { c.softcap = 1e6f; }},
      {"softcap 1e7 causal", [](Case& c) { c.softcap = 1e7f, c.causal = true; }},
      {"softcap 3e38", [](Case& c) { c.softcap = 3e38f; }},
      {"softcap 1e-3", [](Case& c) { c.softcap = 1e-3f; }},
      {"softcap 1e-30 causal", [](Case& c) { c.softcap = 1e-30f, c.causal = true; }},
      {"bias finfo.min queries",
       [](Case& c) { use_large_bias(c, LargeBias::queries, -finfo_max, c.dtype); }},
      {"bias finfo.min keys",
       [](Case& c) { use_large_bias(c, LargeBias::keys, -finfo_max, c.dtype); }},
      {"bias finfo.min mixed causal",
       [](Case& c) { use_large_bias(c, LargeBias::mixed, -finfo_max, c.dtype), c.causal = true; }},
      {"bias 3e38 mixed f32",
       [](Case& c) { use_large_bias(c, LargeBias::mixed, 3e38f, DType::f32); }},
      {"bias -3e38 mixed f32 dropout",
       [](Case& c) { use_large_bias(c, LargeBias::mixed, -3e38f, DType::f32), drop(c, 0.2f); }},
      {"bias 1e30 mixed f32 gqa",
       [](Case& c) { use_large_bias(c, LargeBias::mixed, 1e30f, DType::f32), set_heads(c, 4, 2); }},
      {"bias -1e9 queries f32",
       [](Case& c) { use_large_bias(c, LargeBias::queries, -1e9f, DType::f32); }},
      {"bias -3e38 sinks -3e38",
       [](Case& c) {
         use_large_bias(c, LargeBias::mixed, -3e38f, DType::f32);
         c.sinks = true, c.sink_value = -3e38f;
       }},
      {"sinks 3e38", [](Case& c) { c.sinks = true, c.sink_value = 3e38f, c.f32_options = true; }},
      {"alibi 1e30 causal",
       [](Case& c) { c.alibi = Slopes::per_head, c.slope_factor = 1e30f, c.causal = true; }},
      // Gradients of q and k grow with the scale and must be representable in f16.
      {"scale huge", [](Case& c) { c.softmax_scale = c.dtype == DType::f16 ? 1e6f : 1e30f; }},
      {"scale 1e30 softcap 1e30",
       [](Case& c) { c.softmax_scale = 1e30f, c.softcap = 1e30f, c.decode = true; }},
      // The scaled products exceed f32; the softcap makes them finite.
      {"scale 3e38 softcap 30", [](Case& c) { c.softmax_scale = 3e38f, c.softcap = 30; }},
      {"decode scale -3e38 softcap 1e4 causal",
       [](Case& c) {
         use_decode_shape(c), set_heads(c, 4, 2);
         c.softmax_scale = -3e38f, c.softcap = 1e4f, c.decode = true, c.causal = true;
       }},
      {"decode scale -1e30",
       [](Case& c) { c.decode = true, set_heads(c, 8, 2), c.softmax_scale = -1e30f; }},
      {"decode bias finfo.min",
       [](Case& c) {
         use_decode_shape(c), use_large_bias(c, LargeBias::mixed, -finfo_max, c.dtype),
             c.decode = true;
         set_heads(c, 4, 2);
       }},
      {"decode bias 3e38 sinks splits",
       [](Case& c) {
         use_decode_shape(c), use_large_bias(c, LargeBias::mixed, 3e38f, DType::f32),
             c.decode = true;
         c.splits = 4, c.sinks = true, c.sink_value = 3e38f;
       }},
      // So small a scale makes decode recompute every row, one split at a time.
      {"decode bias 1e12 scale 1e-30 splits",
       [](Case& c) {
         use_decode_shape(c), use_large_bias(c, LargeBias::queries, 1e12f, DType::f32),
             c.decode = true;
         c.splits = 4, c.softmax_scale = 1e-30f;
       }},
  };
}

// Positional masks, grouped heads and score modifiers.
std::vector<Feature> mask_and_score_features() {
  return {
      {"plain", [](Case&) {}},
      {"causal", [](Case& c) { c.causal = true; }},
      {"window left", [](Case& c) { c.window = Window{16, -1}; }},
      {"window right", [](Case& c) { c.window = Window{-1, 9}; }},
      {"window both", [](Case& c) { c.window = Window{13, 7}; }},
      {"window causal", [](Case& c) { c.window = Window{40, 40}, c.causal = true; }},
      {"chunk", [](Case& c) { c.attention_chunk = 29; }},
      {"chunk causal", [](Case& c) { c.attention_chunk = 48, c.causal = true; }},
      {"gqa", [](Case& c) { set_heads(c, 6, 2); }},
      {"mqa", [](Case& c) { set_heads(c, 4, 1); }},
      {"gqa causal", [](Case& c) { set_heads(c, 6, 3), c.causal = true; }},
      {"dv < d", [](Case& c) { c.value_dim = std::max(1, c.head_dim / 2 - 1); }},
      {"dv > d", [](Case& c) { c.value_dim = std::min(max_head_dim, 2 * c.head_dim + 3); }},
      {"scale 0", [](Case& c) { c.softmax_scale = 0.0f; }},
      {"scale negative", [](Case& c) { c.softmax_scale = scale_of(c, -1); }},
      {"scale large", [](Case& c) { c.softmax_scale = scale_of(c, 8); }},
      {"softcap", [](Case& c) { c.softcap = 1.5f; }},
      {"softcap causal",
       [](Case& c) { c.softcap = 30, c.softmax_scale = scale_of(c, 12), c.causal = true; }},
      {"alibi (h)", [](Case& c) { c.alibi = Slopes::per_head; }},
      {"alibi (b,h) causal", [](Case& c) { c.alibi = Slopes::per_sequence, c.causal = true; }},
  };
}

std::vector<Feature> bias_broadcast_features() {
  std::vector<Feature> list;
  for (int bits = 15; bits >= 0; --bits) {
    const Spans spans{(bits & 8) != 0, (bits & 4) != 0, (bits & 2) != 0, (bits & 1) != 0};
    const auto letter = [](bool spanned, const char* name) { return spanned ? name : "1"; };
    const std::string name = std::string("bias (") + letter(spans.batch, "b") + "," +
                             letter(spans.head, "h") + "," + letter(spans.query, "q") + "," +
                             letter(spans.key, "k") + ")";
    list.push_back({name, [spans](Case& c) { c.bias = spans; }});
  }
  return list;
}

// Options that are tensors, and outputs other than out and lse.
std::vector<Feature> tensor_option_features() {
  return {
      {"bias f32 causal", [](Case& c) { c.bias = Spans{}, c.f32_options = true, c.causal = true; }},
      {"bias -inf", [](Case& c) { c.bias = Spans{}, c.bias_masks = true; }},
      {"mask (b,h,q,k)", [](Case& c) { c.mask = Spans{}; }},
      {"mask (b,1,1,k)", [](Case& c) { c.mask = Spans{.head = false, .query = false}; }},
      {"mask (b,1,q,k) causal", [](Case& c) { c.mask = Spans{.head = false}, c.causal = true; }},
      {"sinks", [](Case& c) { c.sinks = true; }},
      {"sinks f32 causal", [](Case& c) { c.sinks = true, c.f32_options = true, c.causal = true; }},
      {"weights", [](Case& c) { c.weights = true; }},
      {"dlse gqa causal",
       [](Case& c) { c.lse_gradient = true, set_heads(c, 4, 2), c.causal = true; }},
      {"dropout", [](Case& c) { drop(c, 0.17f); }},
      {"dropout f32 causal", [](Case& c) { drop(c, 0.5f), c.f32_options = true, c.causal = true; }},
      {"dropout softcap", [](Case& c) { drop(c, 0.3f), c.softcap = 2; }},
      {"dropout gqa", [](Case& c) { drop(c, 0.3f), set_heads(c, 6, 2), c.causal = true; }},
      {"deterministic", [](Case& c) { c.deterministic = true, c.threads = 3, set_heads(c, 4, 2); }},
  };
}

// Varlen, used lengths and left padding.
std::vector<Feature> length_features() {
  return {
      {"packed", [](Case& c) { pack(c); }},
      {"packed causal", [](Case& c) { pack(c), c.causal = true; }},
      {"packed gqa window", [](Case& c) { pack(c), set_heads(c, 4, 2), c.window = Window{20, 5}; }},
      {"packed bias dropout", [](Case& c) { pack(c), c.bias = Spans{}, drop(c, 0.2f); }},
      {"packed dlse sinks",
       [](Case& c) { pack(c), c.lse_gradient = true, c.sinks = true, drop(c, 0.2f); }},
      {"packed seqused leftpad",
       [](Case& c) { pack(c), use_queries(c), use_keys(c), pad_left(c); }},
      {"seqused_q", [](Case& c) { use_queries(c); }},
      {"seqused_k causal", [](Case& c) { use_keys(c), c.causal = true; }},
      {"leftpad_k", [](Case& c) { pad_left(c); }},
      {"leftpad_k seqused_k causal", [](Case& c) { use_keys(c), pad_left(c), c.causal = true; }},
  };
}

// Strides, outliers, non-finite values and products outside the range of the dtype.
std::vector<Feature> layout_and_value_features() {
  return {
      {"strides swapped", [](Case& c) { c.layout = Layout::swapped, c.weights = true; }},
      {"strides gapped",
       [](Case& c) {
         c.layout = Layout::gapped, c.bias = Spans{}, c.mask = Spans{}, c.weights = true;
       }},
      {"strides backward", [](Case& c) { c.layout = Layout::reversed, c.causal = true; }},
      {"strides 0", [](Case& c) { c.layout = Layout::broadcast, c.bias = Spans{}; }},
      {"strides packed", [](Case& c) { pack(c), c.layout = Layout::swapped, c.causal = true; }},
      {"outliers", [](Case& c) { c.values = Values::outliers; }},
      {"outliers causal",
       [](Case& c) { c.values = Values::outliers, c.causal = true, c.softcap = 20; }},
      {"non-finite window",
       [](Case& c) { c.values = Values::non_finite, c.causal = true, c.window = Window{9, 0}; }},
      {"non-finite mask", [](Case& c) { c.values = Values::non_finite, c.mask = Spans{}; }},
      {"non-finite dropout", [](Case& c) { c.values = Values::non_finite, drop(c, 0.3f); }},
      {"non-finite bias softcap",
       [](Case& c) {
         c.values = Values::non_finite, c.bias = Spans{}, c.bias_masks = true, c.softcap = 3,
         c.weights = true;
       }},
      // +infinity makes every result of its head NaN; -infinity is no sink.
      {"sinks infinite",
       [](Case& c) {
         c.sinks = true, c.sink_value = std::numeric_limits<float>::infinity(), c.causal = true;
       }},
      {"sinks NaN dropout",
       [](Case& c) {
         c.sinks = true, c.sink_value = std::numeric_limits<float>::quiet_NaN(), drop(c, 0.2f);
       }},
      {"products too large", [](Case& c) { compensate(c, Values::large), c.causal = true; }},
      {"products too small", [](Case& c) { compensate(c, Values::small), c.causal = true; }},
  };
}

// Paged and 16-bit KV caches, split-KV and decode.
std::vector<Feature> kv_cache_features() {
  return {
      {"pages 16", [](Case& c) { page_keys(c, 16), use_keys(c); }},
      {"pages 1 gqa causal",
       [](Case& c) {
         page_keys(c, 1), set_heads(c, 6, 2), use_keys(c), pad_left(c), c.causal = true;
       }},
      {"pages 37 packed causal", [](Case& c) { pack(c), page_keys(c, 37), c.causal = true; }},
      {"cache_batch_idx", [](Case& c) { use_keys(c), c.batch_indexed_cache = true; }},
      {"cache f16", [](Case& c) { use_16_bit_cache(c, DType::f16), set_heads(c, 4, 1); }},
      {"cache bf16 pages",
       [](Case& c) { use_16_bit_cache(c, DType::bf16), page_keys(c, 8), use_keys(c); }},
      {"splits 3", [](Case& c) { c.splits = 3; }},
      {"splits 5 sinks causal", [](Case& c) { c.splits = 5, c.sinks = true, c.causal = true; }},
      {"pages 7", [](Case& c) { page_keys(c, 7), set_heads(c, 4, 2), use_keys(c), pad_left(c); }},
      {"pages 64 splits",
       [](Case& c) { page_keys(c, 64), use_keys(c), c.splits = 2, c.causal = true; }},
      {"pages 256 window",
       [](Case& c) { page_keys(c, 256), use_keys(c), c.window = Window{90, 0}; }},
      {"decode gqa", [](Case& c) { c.decode = true, set_heads(c, 8, 2); }},
      {"decode alibi softcap sinks splits",
       [](Case& c) {
         c.decode = true, set_heads(c, 6, 2), c.alibi = Slopes::per_head, c.softcap = 9,
         c.sinks = true, c.splits = 4;
       }},
  };
}

std::vector<Feature> mla_features() {
  return {
      {"latent", [](Case& c) { use_mla(c, 16), c.causal = true; }},
      {"latent pages 16",
       [](Case& c) { use_mla(c, 40), page_keys(c, 16), use_keys(c), pad_left(c); }},
      {"latent few rows pages 24",
       [](Case& c) {
         use_mla(c, 5), page_keys(c, 24), use_keys(c), c.sq = 1, c.window = Window{150, 0};
       }},
      {"latent append splits",
       [](Case& c) {
         use_mla(c, 24), page_keys(c, 64), append(c, 2), c.splits = 3, c.sinks = true;
       }},
      {"latent non-finite",
       [](Case& c) { use_mla(c, 16, 320, 264), c.values = Values::non_finite, c.causal = true; }},
      {"latent with every option",
       [](Case& c) {
         use_mla(c, 20), use_queries(c), use_keys(c), c.window = Window{150, 0};
         c.mask = Spans{.head = false}, c.bias = Spans{.batch = false}, c.softcap = 4;
         c.alibi = Slopes::per_sequence, c.sinks = true, c.dropout_p = 0.2f;
         c.softmax_scale = scale_of(c, -1.2);
       }},
  };
}

// Append and rotary embedding.
std::vector<Feature> append_features() {
  return {
      {"append 1", [](Case& c) { append(c, 1); }},
      {"append 3 causal", [](Case& c) { set_heads(c, 4, 2), append(c, 3), c.causal = true; }},
      {"append packed", [](Case& c) { pack(c), append(c, 6, New::packed), c.causal = true; }},
      {"append pages 7",
       [](Case& c) { page_keys(c, 7), append(c, 9, New::packed), set_heads(c, 4, 1); }},
      {"append pages 16 leftpad_k",
       [](Case& c) { page_keys(c, 16), append(c, 2), pad_left(c), c.causal = true; }},
      {"append cache_batch_idx", [](Case& c) { c.batch_indexed_cache = true, append(c, 4); }},
      {"append strides",
       [](Case& c) { c.layout = Layout::gapped, append(c, 4), c.window = Window{30, 2}; }},
      {"rotary", [](Case& c) { rotate(c, max_head_dim, false), append(c, 1); }},
      {"rotary interleaved causal",
       [](Case& c) { rotate(c, max_head_dim, true), append(c, 5), c.causal = true; }},
      {"rotary part pages 64",
       [](Case& c) {
         page_keys(c, 64), rotate(c, 12, false), append(c, 3), rotate_from(c, {3, 0, 70, 11});
       }},
      {"rotary queries alone",
       [](Case& c) { rotate(c, 16, true), rotate_from(c, {3, 40}), c.causal = true; }},
      {"rotary cache bf16",
       [](Case& c) {
         use_16_bit_cache(c, DType::bf16), c.f32_options = true, rotate(c, max_head_dim, false),
                                           append(c, 2), set_heads(c, 4, 2);
       }},
      {"append with every option",
       [](Case& c) {
         pack(c), page_keys(c, 16), append(c, 5, New::packed), pad_left(c), use_queries(c);
         rotate(c, 20, true), set_heads(c, 6, 2), c.causal = true, c.window = Window{200, 0};
         c.softcap = 8, c.alibi = Slopes::per_sequence, c.sinks = true, c.splits = 3;
         c.softmax_scale = scale_of(c, 1.3);
       }},
  };
}

// Quantized keys and values: each dtype with each kind of call, whose scales have another shape
// for each dtype.
std::vector<Feature> quantized_features() {
  const std::vector<Feature> calls{
      {"decode pages",
       [](Case& c) {
         use_decode_shape(c), set_heads(c, 8, 2), page_keys(c, 16), use_keys(c), pad_left(c);
         c.decode = true;
       }},
      {"decode splits", [](Case& c) { use_decode_shape(c), c.decode = true, c.splits = 3; }},
      {"causal", [](Case& c) { c.causal = true, c.weights = true; }},
      {"packed gqa", [](Case& c) { pack(c), set_heads(c, 6, 2), c.causal = true; }},
      {"append pages packed",
       [](Case& c) {
         pack(c), page_keys(c, 7), append(c, 5, New::packed), set_heads(c, 4, 2);
         rotate(c, max_head_dim, false), c.causal = true;
       }},
      {"append cache_batch_idx",
       [](Case& c) { c.batch_indexed_cache = true, append(c, 3), c.quantized_new = true; }},
      {"window sinks softcap strides",
       [](Case& c) {
         c.window = Window{40, 3}, c.sinks = true, c.softcap = 5, c.layout = Layout::swapped;
       }},
      {"non-finite decode bias",
       [](Case& c) {
         use_decode_shape(c), c.values = Values::non_finite, c.mask = Spans{}, c.bias = Spans{};
         c.decode = true, c.layout = Layout::gapped;
       }},
      {"latent append", [](Case& c) { use_mla(c, 16), page_keys(c, 16), append(c, 2); }},
  };
  constexpr std::array scales{Scales::per_tensor, Scales::per_row,  Scales::per_sequence,
                              Scales::per_page,   Scales::per_head, Scales::none};
  constexpr std::array quantized{DType::e4m3fn, DType::e4m3fnuz, DType::e5m2, DType::e5m2fnuz,
                                 DType::i8};
  std::vector<Feature> list;
  for (std::size_t n = 0; n < calls.size(); ++n) {
    for (std::size_t t = 0; t < quantized.size(); ++t) {
      const auto apply = [call = calls[n], dtype = quantized[t],
                          shape = scales[(n + t) % scales.size()]](Case& c) {
        c.cache_dtype = dtype, c.scales = shape;
        call.apply(c);
      };
      list.push_back({std::string(name_of(quantized[t])) + " " + calls[n].name, apply});
    }
  }
  return list;
}

// Many options in one call.
std::vector<Feature> combined_features() {
  return {
      {"everything", [](Case& c) { everything(c); }},
      {"everything packed", [](Case& c) { pack(c), everything(c); }},
      {"cache bf16 splits",
       [](Case& c) {
         use_16_bit_cache(c, DType::bf16), use_decode_shape(c), set_heads(c, 8, 2), c.splits = 3;
         c.decode = true;
       }},
      {"cache f16 splits non-finite",
       [](Case& c) {
         use_16_bit_cache(c, DType::f16), use_decode_shape(c), c.splits = 2, c.causal = true;
         c.values = Values::non_finite, c.mask = Spans{};
       }},
      {"cache f16 splits with every option",
       [](Case& c) {
         use_16_bit_cache(c, DType::f16), use_decode_shape(c), page_keys(c, 16), append(c, 2),
             pad_left(c);
         set_heads(c, 6, 2), c.causal = true, c.window = Window{150, 0}, c.splits = 4;
         c.mask = Spans{.head = false}, c.bias = Spans{.batch = false}, c.softcap = 4;
         c.alibi = Slopes::per_sequence, c.sinks = true, c.dropout_p = 0.2f;
         c.softmax_scale = scale_of(c, -1.2);
       }},
  };
}

std::vector<Feature> make_features() {
  std::vector<Feature> list;
  for (const auto& stage :
       {mask_and_score_features, bias_broadcast_features, tensor_option_features, length_features,
        layout_and_value_features, kv_cache_features, mla_features, append_features,
        quantized_features, combined_features, extreme_score_features}) {
    const std::vector<Feature> features = stage();
    list.insert(list.end(), features.begin(), features.end());
  }
  return list;
}

std::vector<Shape> make_shapes() {
  std::vector<Shape> list{
      // name, b, h, hk, sq, sk, d, dv
      {"127x129", 2, 2, 2, 127, 129, 32, 32}, {"37x200", 2, 2, 2, 37, 200, 64, 64},
      {"150x70", 1, 2, 2, 150, 70, 40, 40},   {"1x517", 2, 4, 4, 1, 517, 128, 128},
      {"5x2311", 1, 2, 2, 5, 2311, 64, 64},   {"64x64", 2, 2, 2, 64, 64, 64, 64},
      {"300x333", 1, 2, 2, 300, 333, 48, 48}, {"1x1", 1, 1, 1, 1, 1, 8, 8},
      {"33x1", 1, 2, 2, 33, 1, 16, 16},       {"9x0", 2, 2, 2, 9, 0, 16, 16},
      {"0x9", 2, 2, 2, 0, 9, 16, 16},
  };
  for (const int d : {1, 8, 17, 32, 40, 64, 80, 96, 128, 160, 192, 256, max_head_dim})
    list.push_back({"d" + std::to_string(d), 1, 2, 2, 33, 65, d, d});
  // Several key blocks, whose workgroups accumulate the same dQ, with a large head dimension.
  list.push_back({"70x290", 1, 4, 2, 70, 290, 192, 192});
  // Few query blocks and many keys, which AMD's matrix GPUs split over the waves of a workgroup.
  list.push_back({"140x1030", 1, 2, 2, 140, 1030, 128, 128});
  return list;
}

// The number of shapes at the front of the list that are large enough for every feature to matter.
constexpr std::size_t general_shapes = 7;

void finish(Case& c, std::uint64_t seed) {
  c.seed = derive_seed(seed, c.name());
  if (!c.deterministic) c.threads = 1 + static_cast<int>(c.seed % 4);
}

std::vector<Case> quick_cases(std::uint64_t seed) {
  std::vector<Case> list;
  for (std::size_t f = 0; f < features().size(); ++f) {
    for (std::size_t t = 0; t < std::size(dtypes); ++t)
      list.push_back(
          make_case(features()[f], shapes()[(f + 2 * t) % (general_shapes - 1)], dtypes[t], seed));
  }
  const auto add = [&](const Shape& s, const char* feature) {
    const auto it = std::find_if(features().begin(), features().end(),
                                 [&](const Feature& f) { return f.name == feature; });
    for (const DType t : dtypes) list.push_back(make_case(*it, s, t, seed));
  };
  for (std::size_t s = general_shapes - 1; s < shapes().size(); ++s) add(shapes()[s], "causal");
  // Several key tiles: fully masked ones at both ends, and some that contain infinities.
  for (const char* feature : {"window causal", "non-finite mask"})
    add(shapes()[general_shapes - 1], feature);
  add(shapes().back(), "scale negative");
  return list;
}

std::vector<Case> full_cases(std::uint64_t seed) {
  std::vector<Case> list;
  for (const Feature& f : features())
    for (const Shape& s : shapes())
      for (const DType t : dtypes) list.push_back(make_case(f, s, t, seed));
  for (int n = 0; n < mixed_cases_per_dtype; ++n) {
    for (const DType t : dtypes) {
      Case c = mixed_case(t, derive_seed(seed, std::to_string(n)));
      c.shape = std::to_string(n);
      list.push_back(c);
    }
  }
  return list;
}

}  // namespace

const std::vector<Feature>& features() {
  static const std::vector<Feature> list = make_features();
  return list;
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> list = make_shapes();
  return list;
}

Case make_case(const Feature& feature, const Shape& shape, DType dtype, std::uint64_t seed) {
  Case c;
  c.feature = feature.name;
  c.shape = shape.name;
  c.dtype = dtype;
  c.batch = shape.batch;
  c.heads = shape.heads;
  c.kv_heads = shape.kv_heads;
  c.sq = shape.sq;
  c.sk = shape.sk;
  c.head_dim = shape.head_dim;
  c.value_dim = shape.value_dim;
  feature.apply(c);
  finish(c, seed);
  return c;
}

Case mixed_case(DType dtype, std::uint64_t seed) {
  Random random(seed);
  const auto size = [&](std::int64_t most) {  // log-uniform
    return static_cast<std::int64_t>(
        std::exp2(random.uniform() * std::log2(static_cast<double>(most) + 1)));
  };
  Case c;
  c.feature = "mixed";
  c.dtype = dtype;
  c.batch = random.integer(1, 3);
  c.kv_heads = random.integer(1, 3);
  c.heads = c.kv_heads * random.integer(1, 3);
  c.sq = size(150);
  c.sk = size(300);
  c.head_dim = static_cast<int>(size(160));
  c.value_dim = random.chance(0.7) ? c.head_dim : static_cast<int>(size(160));

  const auto spans = [&] {
    return Spans{random.chance(0.6), random.chance(0.6), random.chance(0.8), random.chance(0.8)};
  };
  if (random.chance(0.3)) pack(c);
  if (random.chance(0.1)) page_keys(c, random.integer(1, 40));
  if (random.chance(0.1)) c.batch_indexed_cache = !c.packed() && c.page == 0;
  if (random.chance(0.05)) use_16_bit_cache(c, random.chance(0.5) ? DType::f16 : DType::bf16);
  if (random.chance(0.1)) c.splits = static_cast<int>(random.integer(1, 6));
  if (random.chance(0.15)) use_queries(c);
  if (random.chance(0.2)) use_keys(c);
  if (random.chance(0.15)) pad_left(c);
  if (random.chance(0.5)) c.layout = static_cast<Layout>(random.integer(0, 4));
  if (random.chance(0.1)) c.values = Values::outliers;
  c.causal = random.chance(0.4);
  if (random.chance(0.25)) c.window = Window{random.integer(-1, 60), random.integer(-1, 60)};
  if (random.chance(0.15)) c.attention_chunk = random.integer(2, 80);
  if (random.chance(0.2)) c.mask = spans();
  if (random.chance(0.2)) c.softmax_scale = scale_of(c, 3 * random.normal());
  if (random.chance(0.25)) c.softcap = static_cast<float>(0.5 + 20 * random.uniform());
  if (random.chance(0.25)) c.alibi = random.chance(0.5) ? Slopes::per_head : Slopes::per_sequence;
  if (random.chance(0.25)) c.bias = spans();
  c.bias_masks = random.chance(0.3);
  c.sinks = random.chance(0.25);
  c.f32_options = random.chance(0.3);
  if (random.chance(0.3)) c.dropout_p = static_cast<float>(0.9 * random.uniform());
  c.weights = random.chance(0.4);
  c.deterministic = random.chance(0.2);
  c.decode = random.chance(0.1);
  if (random.chance(0.15))
    append(c, random.integer(1, 9), random.chance(0.5) ? New::packed : New::equal_lengths);
  if (random.chance(0.1)) {
    rotate(c, static_cast<int>(size(160)), random.chance(0.5));
    if (random.chance(0.5)) rotate_from(c, {random.integer(0, 50), random.integer(0, 50)});
  }
  c.lse_gradient = random.chance(0.2);
  finish(c, seed);
  return c;
}

std::vector<Case> cases(Level level, std::uint64_t seed, const std::string& filter) {
  std::vector<Case> list = level == Level::quick ? quick_cases(seed) : full_cases(seed);
  std::erase_if(list, [&](const Case& c) { return c.name().find(filter) == std::string::npos; });
  return list;
}

}  // namespace rocflash::verify
