#include "verify/case.hpp"

#include <array>
#include <sstream>

#include "verify/scalar.hpp"

namespace rocflash::verify {
namespace {

const char* layout_name(Layout layout) {
  switch (layout) {
    case Layout::compact:
      return "compact";
    case Layout::swapped:
      return "swapped";
    case Layout::gapped:
      return "gapped";
    case Layout::reversed:
      return "reversed";
    case Layout::broadcast:
      return "broadcast";
  }
  return "?";
}

std::string spans_text(Spans s) {
  return std::string("(") + (s.batch ? "b" : "1") + "," + (s.head ? "h" : "1") + "," +
         (s.query ? "q" : "1") + "," + (s.key ? "k" : "1") + ")";
}

// Joins "name=a,b,c" fields; empty ones are omitted.
class Text {
 public:
  template <class T>
  void field(const char* name, const T& value, bool shown = true) {
    if (shown) (text_ << (text_.tellp() > 0 ? " " : "") << name << '=') << value;
  }
  void list(const char* name, const std::vector<std::int64_t>& values) {
    std::string joined;
    for (const std::int64_t n : values) joined += (joined.empty() ? "" : ",") + std::to_string(n);
    field(name, joined, !values.empty());
  }
  std::string str() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

}  // namespace

std::string Case::name() const { return feature + "/" + name_of(dtype) + "/" + shape; }

std::string Case::describe() const {
  Text t;
  t.field("dtype", name_of(dtype));
  t.field("b", batch, !packed());
  t.field("h", heads);
  t.field("hk", kv_heads, kv_heads != heads);
  t.field("sq", sq, !packed());
  t.field("sk", sk, lengths_k.empty());
  t.field("d", head_dim);
  t.field("dv", value_dim, value_dim != head_dim);
  t.list("lengths_q", lengths_q);
  t.list("lengths_k", lengths_k);
  t.field("spare", spare, spare > 0);
  t.list("seqused_q", seqused_q);
  t.list("seqused_k", seqused_k);
  t.list("leftpad_k", leftpad_k);
  t.field("mla", 1, mla);
  t.field("page", page, page > 0);
  t.field("cache_batch_idx", 1, batch_indexed_cache);
  if (cache_dtype) t.field("cache_dtype", name_of(*cache_dtype));
  t.field("scales",
          std::array{"none", "per_tensor", "per_sequence", "per_head", "per_row",
                     "per_page"}[static_cast<std::size_t>(scales)],
          scales != Scales::none);
  t.field("quantized_new", 1, quantized_new);
  t.field("num_splits", splits, splits > 0);
  t.field("decode", 1, decodes());
  t.list("appended", appended);
  t.field("cu_seqlens_k_new", 1, packed_new);
  t.field("rotary_dim", rotary_dim, rotary_dim > 0);
  t.field("rotary_interleaved", 1, rotary_interleaved);
  t.list("rotary_seqlens", rotary_seqlens);
  t.field("layout", layout_name(layout), layout != Layout::compact);
  t.field("values",
          std::array{"normal", "outliers", "non-finite", "large",
                     "small"}[static_cast<std::size_t>(values)],
          values != Values::normal);
  t.field("causal", 1, causal);
  if (window) t.list("window", {window->left, window->right});
  t.field("attention_chunk", attention_chunk, attention_chunk > 0);
  if (mask) t.field("mask", spans_text(*mask));
  if (softmax_scale) t.field("softmax_scale", *softmax_scale);
  t.field("softcap", softcap, softcap > 0);
  t.field("alibi", alibi == Slopes::per_head ? "(h)" : "(b,h)", alibi != Slopes::none);
  if (bias) t.field(bias_masks ? "bias_with_-inf" : "bias", spans_text(*bias));
  if (large_bias != LargeBias::none) {
    t.field("large_bias",
            std::array{"none", "queries", "keys", "mixed"}[static_cast<std::size_t>(large_bias)]);
    t.field("bias_value", bias_value);
  }
  t.field("slope_factor", slope_factor, slope_factor != 1);
  t.field("sinks", 1, sinks);
  t.field("sink_value", sink_value, sink_value != 0);
  t.field("option_dtype", "f32", f32_options);
  t.field("dropout_p", dropout_p, dropout_p > 0);
  t.field("s_dmask", 1, weights);
  t.field("dlse", 1, lse_gradient);
  t.field("deterministic", 1, deterministic);
  t.field("threads", threads);
  t.field("seed", seed);
  return t.str();
}

}  // namespace rocflash::verify
