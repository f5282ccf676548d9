// P and dS of a tile on the FP32 path: shared by its backward kernels.
//
//   p    exp(score − lse)
//   ds   p · (dp − delta) · slope,  dp = dO·V, delta = rowsum(dO·O),
//                                   slope = d(score) / d(scale q·k), 1 without a softcap
//
// The dropout scale is left out of both and applied to the sums in the epilogue.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/exact_recompute.hpp"
#include "attention/score_mod.hpp"
#include "attention/sequence.hpp"
#include "backward/single_key_rows.hpp"
#include "fp32/exp_log.hpp"
#include "fp32/products.hpp"

namespace rocflash::kernel {

enum class Owner { queries, keys };
template <bool owns_queries>
struct SelectView {
  using Type = QueryView;
};
template <>
struct SelectView<false> {
  using Type = KeyView;
};
// The gradient of a tile: with respect to scale·q·k, or to the score after score modifiers.
enum class GradientOf { product, score };

template <Owner owner, GradientOf gradient_of, Fp32Tile tile>
class Fp32Gradients {
 public:
  static constexpr bool owns_queries = owner == Owner::queries;
  using Unit = ExactLogDomain;
  using Scores = ThreadTile<tile.owned, tile.streamed, tile.threads>;
  using OwnedStaging = Fp32ColumnStaging<tile.owned, tile.depth, tile.threads>;
  using StreamedStaging = Fp32ColumnStaging<tile.streamed, tile.depth, tile.threads>;
  static constexpr int floats = OwnedStaging::floats + StreamedStaging::floats;
  static constexpr int queries = owns_queries ? tile.owned : tile.streamed;
  static_assert(Scores::own_quads == 1);
  using Memory = DoubleBuffer<floats>;

  // In shared memory.
  struct Shared {
    std::int32_t visible_begin[tile.owned], visible_end[tile.owned];  // by each owned row
    float base[queries], share[queries], delta[queries];
  };

  // Of one (batch, head) slice.
  Fp32Gradients(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
                ROCFLASH_SHARED Shared& shared)
      : a_(a),
        sequence_(sequence),
        head_(head),
        shared_(shared),
        score_mod_(a.problem, sequence, head),
        q_(query_rows(a.problem.q, a.problem.head_dim)),
        dout_(query_rows(a.tensors.dout, a.problem.value_dim)),
        k_(key_rows(a.problem.k, a.problem.head_dim)),
        v_(key_rows(a.problem.v, a.problem.value_dim)) {
    const Problem& p = a.problem;
    // Where Q·Kᵀ may overflow f32, both operands are multiplied with a factor of the scale.
    const bool shares = products_overflow(p);
    const ScaleShares of_scale(p.scale);
    share_ = shares ? of_scale.share : 1.0f;
    scale_ = shares ? of_scale.rest : p.scale;
  }

  const RowSource& q() const { return q_; }
  const RowSource& dout() const { return dout_; }
  const RowSource& k() const { return k_; }

  // Stores the mask bounds of the owned rows from `first` on; no other wave may be reading them. (A
  // function of its own: chunked attention divides 64-bit integers, which takes many registers.)
  static void store_mask_bounds(const Visibility& visibility, const SequenceView& sequence,
                                std::int32_t first, ROCFLASH_SHARED Shared& shared) {
    const int n = arch::opaque_thread();
    if (n >= tile.owned) return;
    using View = typename SelectView<owns_queries>::Type;
    const View view(visibility, sequence, first + n);
    shared.visible_begin[n] = view.begin;
    shared.visible_end[n] = view.end;
  }
  // Selects the owned rows from `first` on, after `store_mask_bounds`.
  void own(std::int32_t first) {
    first_owned_ = first;
    own_products_.select_rows(owns_queries ? q_ : k_, first);
    own_values_.select_rows(owns_queries ? dout_ : v_, first);
    if constexpr (owns_queries) load_statistics<true>(first);
  }

  // P after dropout, and gradients, of the tile whose streamed rows start at `first`. `edge`: the
  // tile needs a mask. Without `with_gradients`, P alone.
  template <bool with_gradients>
  void compute(std::int32_t first, bool edge, Memory& memory, Scores& weights, Scores& gradients) {
    if constexpr (!owns_queries) load_statistics<with_gradients>(first);
    StreamedStaging staging;
    weights = {};
    staging.select_rows(owns_queries ? k_ : q_, first);
    add_products(weights, own_products_, owns_queries ? q_ : k_, staging, owns_queries ? k_ : q_,
                 share_, memory);
    gradients = {};
    if constexpr (with_gradients) {
      staging.select_rows(owns_queries ? v_ : dout_, first);
      add_products(gradients, own_values_, owns_queries ? dout_ : v_, staging,
                   owns_queries ? v_ : dout_, 1.0f, memory);
    }
    const Problem& p = arch::reload_kernargs(a_.problem);
    const bool drops = p.dropout.on();
    ROCFLASH_UNROLL
    for (int i = 0; i < Scores::own_rows; i += 4) {
      float s[4][4], d[4][4];
      ROCFLASH_UNROLL
      for (int n = 0; n < 16; ++n) {
        s[n / 4][n % 4] = weights.at(i + n / 4, n % 4);
        d[n / 4][n % 4] = gradients.at(i + n / 4, n % 4);
      }
      // Four keys of one query at a time.
      ROCFLASH_UNROLL
      for (int u = 0; u < 4; ++u) {
        const auto at = [&](int n) -> float& { return owns_queries ? s[u][n] : s[n][u]; };
        const auto key = [&](int n) {
          return owns_queries ? first + Scores::own_column(n)
                              : first_owned_ + Scores::own_row(i + n);
        };
        QueryView query;
        query.index =
            owns_queries ? first_owned_ + Scores::own_row(i + u) : first + Scores::own_column(u);
        float slopes[4] = {1, 1, 1, 1};
        score_mod_.template apply_scaled<4, Unit>(
            OneQuery{query.index}, key, at, scale_, [&](int n, float x) {
              if constexpr (gradient_of == GradientOf::product) slopes[n] *= x;
            });
        const int statistic = owns_queries ? Scores::own_row(i + u) : Scores::own_column(u);
        const float base = shared_.base[statistic], share = shared_.share[statistic];
        const float delta = with_gradients ? shared_.delta[statistic] : 0.0f;
        std::uint32_t kept = 0xf;
        if (drops)
          kept = score_mod_.kept(query.index, key(0) / dropout_keys * dropout_keys) >>
                 key(0) % dropout_keys;
        ROCFLASH_UNROLL
        for (int n = 0; n < 4; ++n) {
          bool visible = at(n) != -infinity;
          if (edge) {
            const int own = Scores::own_row(owns_queries ? i + u : i + n);
            const std::int32_t begin = shared_.visible_begin[own], end = shared_.visible_end[own];
            visible &= static_cast<std::uint32_t>((owns_queries ? key(n) : query.index) - begin) <
                       static_cast<std::uint32_t>(end - begin);
          }
          const float weight = visible ? Unit::fine_exp(at(n) - base) * share : 0.0f;
          const bool keeps = (kept >> n & 1) != 0;
          float& dp = owns_queries ? d[u][n] : d[n][u];
          // p = 0 gives 0, even where the other factors are not finite.
          dp = weight == 0 ? 0.0f : weight * ((keeps ? dp : 0.0f) - delta) * slopes[n];
          at(n) = keeps ? weight : 0.0f;
        }
      }
      ROCFLASH_UNROLL
      for (int n = 0; n < 16; ++n) {
        weights.set(i + n / 4, n % 4, s[n / 4][n % 4]);
        gradients.set(i + n / 4, n % 4, d[n / 4][n % 4]);
      }
    }
  }

 private:
  RowSource query_rows(const Rows& rows, int width) const {
    return {rows, width, a_.problem.dtype, sequence_.batch, sequence_.q_row, sequence_.sq, head_};
  }
  // The head in VGPRs: the SGPRs do not suffice for its division.
  RowSource key_rows(const Rows& rows, int width) const {
    return {rows,
            width,
            a_.problem.dtype,
            sequence_.batch,
            sequence_.k_row,
            sequence_.sk,
            a_.problem.kv_head(arch::to_vgpr(head_))};
  }
  template <bool with_delta>
  void load_statistics(std::int32_t first) {
    const int n = arch::opaque_thread();
    if (n >= queries) return;
    const bool in_use = first + n < sequence_.sq;
    const std::int64_t row = sequence_.q_row + first + n;
    const BackwardArguments& a = arch::reload_kernargs(a_);
    shared_.base[n] = infinity;
    shared_.share[n] = 1;
    if (in_use) {
      const RowSoftmax softmax(a, sequence_.batch, head_, row);
      shared_.base[n] = softmax.base;
      shared_.share[n] = softmax.share;
    }
    if constexpr (with_delta)
      shared_.delta[n] = in_use ? arch::load(&a.delta.at(sequence_.batch, head_, row)) : 0.0f;
  }

  const BackwardArguments& a_;
  const SequenceView& sequence_;
  std::int64_t head_;
  ROCFLASH_SHARED Shared& shared_;
  ScoreMod score_mod_;
  RowSource q_, dout_, k_, v_;
  float share_, scale_;
  std::int32_t first_owned_ = 0;
  OwnedStaging own_products_, own_values_;
};

// Stores a tile to shared memory, one line per streamed row.
template <int owned, int streamed, int threads>
void store_lines(const ThreadTile<owned, streamed, threads>& tile, SharedFloat* lines) {
  using Tile = ThreadTile<owned, streamed, threads>;
  ROCFLASH_UNROLL
  for (int i = 0; i < Tile::own_rows; i += 4) {
    ROCFLASH_UNROLL
    for (int n = 0; n < 4; ++n) {
      *(SharedFloat4*)(lines + Tile::own_column(n) * line_length(owned) + Tile::own_row(i)) =
          Float4{tile.at(i, n), tile.at(i + 1, n), tile.at(i + 2, n), tile.at(i + 3, n)};
    }
  }
}

// Terms of one score, computed exactly.
inline ScoreTerms exact_terms(const BackwardArguments& arguments, const SequenceView& sequence,
                              std::int64_t head, std::int32_t query, std::int32_t key) {
  // Reloaded for each pair: the caller's loops would keep all arguments in SGPRs.
  const BackwardArguments& a = arch::reload_kernargs(arguments);
  using Scores = ExactScores<DType::f32, ExactLogDomain, true, false>;
  const Problem& p = a.problem;
  const Scores scores{p, sequence, head, 0};
  QueryView view;
  view.index = query;
  float slope = 1;
  const float score = scores.score(view, key, [&](int, float x) { slope *= x; });
  const std::int64_t row = sequence.q_row + query;
  const RowSoftmax softmax(a, sequence.batch, head, row);
  const float weight =
      score == -infinity ? 0.0f : ExactLogDomain::fine_exp(score - softmax.base) * softmax.share;
  if (weight == 0) return {};
  const bool kept = !p.dropout.on() || scores.score_mod.keeps(query, key);
  float dp = 0;
  if (kept) {
    const BackwardArguments& b = arch::reload_kernargs(arguments);
    const DType dtype = b.problem.dtype;
    const std::byte* dout = row_address(b.tensors.dout, dtype, sequence.batch, row, head);
    const std::byte* v = scores.row_of(b.problem.v, key);
    for (int column = 0; column < b.problem.value_dim; ++column)
      dp = __builtin_fmaf(load_element(dout, dtype, column), load_element(v, dtype, column), dp);
  }
  return {weight, dp, slope, kept, is_all_of(weight, softmax)};
}

// P and gradient of one score, for non-finite sums.
struct ExactPair {
  float weight = 0, gradient = 0;
};
inline ExactPair exact_pair(const BackwardArguments& a, const SequenceView& sequence,
                            std::int64_t head, std::int32_t query, std::int32_t key) {
  const ScoreTerms terms = exact_terms(a, sequence, head, query, key);
  if (terms.weight == 0) return {};
  const float delta =
      arch::load(&arch::reload_kernargs(a).delta.at(sequence.batch, head, sequence.q_row + query));
  return {terms.kept ? terms.weight : 0.0f, terms.weight * (terms.dp - delta) * terms.slope};
}

}  // namespace rocflash::kernel
