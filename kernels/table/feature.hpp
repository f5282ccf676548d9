// The features of a problem that kernel selection depends on, and the predicates of the score
// modifiers, which host and kernels share.
#pragma once

#include <cstdint>

#include "core/problem.hpp"

namespace rocflash::kernel {

enum class Feature : std::uint8_t {
  // Score modifiers, as generic kernels apply them (attention/arguments.hpp).
  mask,
  bias,
  alibi,
  softcap,
  zero_scale,
  large_scale,
  // What else changes the weights.
  negative_scale,
  tiny_scale,  // q·k may overflow although the score is finite
  sinks,
  dropout,
  // Mask bounds.
  left_bound,
  right_bound,
  chunk,
  // Sequence lengths.
  varlen_q,
  varlen_k,
  seqused_q,
  seqused_k,
  left_padding,
  long_sequences,  // mask bounds exceed 30 bits
  no_sequences,    // packed queries of batch 0
  no_keys,
  // Rows of q, k and v that do not allow vector loads.
  paged,
  unaligned_rows,
  partial_vectors,   // the head dimension is not a multiple of 16 bytes
  overlapping_rows,  // a row stride below the head dimension: broadcast or reversed rows
  large_strides,
  // The same of out, or of dout and the gradients.
  unaligned_outputs,
  strided_lse,
  // Dtypes and precision.
  mixed_dtypes,  // k or v of another dtype than q
  short_sums,    // outputs or gradients are sums of few products
  // What the call requires.
  attention_weights,  // the output s_dmask
  training,           // backward may follow: it recomputes the weights
  deterministic,
};
inline constexpr int feature_count = static_cast<int>(Feature::deterministic) + 1;

// A set of features, one bit each.
class Features {
 public:
  constexpr Features() = default;
  constexpr Features(Feature feature) : bits_(std::uint64_t{1} << static_cast<int>(feature)) {}

  constexpr bool has(Feature feature) const { return (*this & feature).any(); }
  constexpr bool any() const { return bits_ != 0; }
  constexpr bool none() const { return bits_ == 0; }
  constexpr void add_if(bool present, Feature feature) {
    if (present) *this = *this | feature;
  }

  friend constexpr Features operator|(Features a, Features b) {
    return Features(a.bits_ | b.bits_);
  }
  friend constexpr Features operator&(Features a, Features b) {
    return Features(a.bits_ & b.bits_);
  }
  constexpr Features without(Features other) const { return Features(bits_ & ~other.bits_); }
  friend constexpr bool operator==(Features a, Features b) { return a.bits_ == b.bits_; }

 private:
  constexpr explicit Features(std::uint64_t bits) : bits_(bits) {}
  std::uint64_t bits_ = 0;
};
static_assert(feature_count <= 64);
constexpr Features operator|(Feature a, Feature b) { return Features(a) | Features(b); }

// As messages name them, in the words of the C ABI where it has one.
constexpr const char* name_of(Feature feature) {
  switch (feature) {
    case Feature::mask:
      return "mask";
    case Feature::bias:
      return "bias";
    case Feature::alibi:
      return "ALiBi slopes";
    case Feature::softcap:
      return "softcap";
    case Feature::zero_scale:
      return "a scale of 0";
    case Feature::large_scale:
      return "a scale of 2^96 or more";
    case Feature::negative_scale:
      return "a negative scale";
    case Feature::tiny_scale:
      return "a scale below 2^-96";
    case Feature::sinks:
      return "sinks";
    case Feature::dropout:
      return "dropout";
    case Feature::left_bound:
      return "a window to the left";
    case Feature::right_bound:
      return "a causal mask or a window to the right";
    case Feature::chunk:
      return "chunks";
    case Feature::varlen_q:
      return "packed queries";
    case Feature::varlen_k:
      return "packed keys";
    case Feature::seqused_q:
      return "seqused_q";
    case Feature::seqused_k:
      return "seqused_k";
    case Feature::left_padding:
      return "left padding";
    case Feature::long_sequences:
      return "sequences or chunks of 2^30 rows or more";
    case Feature::no_sequences:
      return "a batch without sequences";
    case Feature::no_keys:
      return "no keys";
    case Feature::paged:
      return "a paged KV cache";
    case Feature::unaligned_rows:
      return "rows that are not aligned to 16 bytes";
    case Feature::partial_vectors:
      return "a head dimension that is not a multiple of 8";
    case Feature::overlapping_rows:
      return "a row stride below the head dimension";
    case Feature::large_strides:
      return "a row stride of 8 MiB or more";
    case Feature::unaligned_outputs:
      return "outputs that do not allow vector stores";
    case Feature::strided_lse:
      return "an lse that is not contiguous in queries";
    case Feature::mixed_dtypes:
      return "k or v of another dtype than q";
    case Feature::short_sums:
      return "f32 sums of few products";
    case Feature::attention_weights:
      return "the output s_dmask";
    case Feature::training:
      return "a backward pass that may follow";
    case Feature::deterministic:
      return "deterministic";
  }
  return "";
}

// With so large a scale, its product with log2(e) could overflow.
inline bool has_large_scale(const Problem& p) { return __builtin_fabsf(p.scale) >= 0x1p96f; }

// Whether generic kernels apply a score modifier, or dropout. The scale counts as a modifier if it
// is 0, since 0 times the -infinity of a masked key is NaN, and if it is large.
template <Feature feature>
bool has_feature(const Problem& p) {
  if constexpr (feature == Feature::zero_scale) return p.scale == 0;
  if constexpr (feature == Feature::large_scale) return has_large_scale(p);
  if constexpr (feature == Feature::softcap) return p.softcap > 0;
  if constexpr (feature == Feature::alibi) return static_cast<bool>(p.alibi);
  if constexpr (feature == Feature::bias) return static_cast<bool>(p.bias);
  if constexpr (feature == Feature::mask) return static_cast<bool>(p.mask);
  if constexpr (feature == Feature::dropout) return p.dropout.on();
}

template <Feature... features>
struct FeatureList {
  static constexpr Features all = (Features(features) | ...);
  static bool any_in(const Problem& p) { return (has_feature<features>(p) || ...); }
  // Whether the problem has any of these features but those of the scale.
  static bool any_besides_scale(const Problem& p) {
    return ((features != Feature::zero_scale && features != Feature::large_scale &&
             has_feature<features>(p)) ||
            ...);
  }
  static Features of(const Problem& p) {
    Features found;
    (found.add_if(has_feature<features>(p), features), ...);
    return found;
  }
};
using ScoreModifiers = FeatureList<Feature::zero_scale, Feature::large_scale, Feature::softcap,
                                   Feature::alibi, Feature::bias, Feature::mask>;
namespace feature_set {
inline constexpr Features score_modifiers = ScoreModifiers::all;
}

inline bool has_score_modifiers(const Problem& p) { return ScoreModifiers::any_in(p); }

}  // namespace rocflash::kernel
