// Weights and gradients of a tile of scores, without matrix instructions: what all kernels of backward
// in f32 arithmetic share.
//
//   weight    p = exp(score - lse)
//   gradient  ds = p · (dp - delta) · slope,  dp = dout·v of the key, delta = dout·out of the query,
//                                             slope = d(score) / d(scale q·k), 1 without a softcap
//
// Dropout's scale is left out of both and multiplied to the sums at the end.
#pragma once

#include <cstdint>

#include "arch/arch.hpp"
#include "attention/exact.hpp"
#include "attention/score.hpp"
#include "attention/sequence.hpp"
#include "backward/few_keys.hpp"
#include "backward/gradient.hpp"
#include "wide/powers.hpp"
#include "wide/products.hpp"

namespace rocflash::kernel {

enum class Owner { queries, keys };
template <bool owns_queries>
struct ChooseView {
  using Type = QueryView;
};
template <>
struct ChooseView<false> {
  using Type = KeyView;
};
// What a tile gives for each score, beside the weight.
enum class GradientOf { product, score };

template <Owner owner, GradientOf gradient_of, WideTile tile>
class WideGradients {
 public:
  static constexpr bool owns_queries = owner == Owner::queries;
  using Unit = ExactPowers;
  using Scores = Patch<tile.owned, tile.streamed, tile.threads>;
  using OwnCarrier = ColumnCarrier<tile.owned, tile.depth, tile.threads>;
  using Carrier = ColumnCarrier<tile.streamed, tile.depth, tile.threads>;
  static constexpr int numbers = OwnCarrier::numbers + Carrier::numbers;
  static constexpr int queries = owns_queries ? tile.owned : tile.streamed;
  static_assert(Scores::own_quads == 1);
  using Memory = Turns<numbers>;

  // In shared memory.
  struct Shared {
    std::int32_t seen_begin[tile.owned], seen_end[tile.owned];  // by each owned row
    float lse[queries], delta[queries];
  };

  // Of one sequence and head.
  WideGradients(const BackwardArguments& a, const SequenceView& sequence, std::int64_t head,
                ROCFLASH_SHARED Shared& shared)
      : a_(a),
        sequence_(sequence),
        head_(head),
        shared_(shared),
        shape_(a.problem, sequence, head),
        q_(query_rows(a.problem.q, a.problem.head_dim)),
        dout_(query_rows(a.tensors.dout, a.problem.value_dim)),
        k_(key_rows(a.problem.k, a.problem.head_dim)),
        v_(key_rows(a.problem.v, a.problem.value_dim)) {
    const Problem& p = a.problem;
    // Products that may leave float's range are those of operands with a share of the scale each.
    const bool shares = products_overflow(p);
    const ScaleShares of_scale(p.scale);
    share_ = shares ? of_scale.share : 1.0f;
    scale_ = shares ? of_scale.rest : p.scale;
  }

  const RowSource& q() const { return q_; }
  const RowSource& dout() const { return dout_; }
  const RowSource& k() const { return k_; }

  // What each owned row from `first` on sees, or is seen by. Shared memory must not be in use. (Apart from
  // the rest: chunks divide 64-bit numbers, and need many registers.)
  static void look(const Visibility& visibility, const SequenceView& sequence, std::int32_t first,
                   ROCFLASH_SHARED Shared& shared) {
    const int n = arch::renewed_thread();
    if (n >= tile.owned) return;
    using View = typename ChooseView<owns_queries>::Type;
    const View view(visibility, sequence, first + n);
    shared.seen_begin[n] = view.begin;
    shared.seen_end[n] = view.end;
  }
  // The owned rows start at `first`, behind `look`.
  void own(std::int32_t first) {
    first_owned_ = first;
    own_products_.aim(owns_queries ? q_ : k_, first);
    own_values_.aim(owns_queries ? dout_ : v_, first);
    if constexpr (owns_queries) load_statistics<true>(first);
  }

  // Weights after dropout, and gradients, of the tile whose streamed rows start at `first`. `edge`: not
  // all of them are seen. Without `with_gradients`, weights alone.
  template <bool with_gradients>
  void compute(std::int32_t first, bool edge, Memory& memory, Scores& weights, Scores& gradients) {
    if constexpr (!owns_queries) load_statistics<with_gradients>(first);
    Carrier carrier;
    weights = {};
    carrier.aim(owns_queries ? k_ : q_, first);
    add_products(weights, own_products_, owns_queries ? q_ : k_, carrier, owns_queries ? k_ : q_,
                 share_, memory);
    gradients = {};
    if constexpr (with_gradients) {
      carrier.aim(owns_queries ? v_ : dout_, first);
      add_products(gradients, own_values_, owns_queries ? dout_ : v_, carrier,
                   owns_queries ? v_ : dout_, 1.0f, memory);
    }
    const Problem& p = arch::again(a_.problem);
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
        shape_.template shape<4, Unit>(query, at, key, scale_, [&](int n, float x) {
          if constexpr (gradient_of == GradientOf::product) slopes[n] = x;
        });
        const int statistic = owns_queries ? Scores::own_row(i + u) : Scores::own_column(u);
        const float lse = shared_.lse[statistic];
        const float delta = with_gradients ? shared_.delta[statistic] : 0.0f;
        std::uint32_t kept = 0xf;
        if (drops)
          kept = shape_.kept(query, key(0) / dropout_keys * dropout_keys) >> key(0) % dropout_keys;
        ROCFLASH_UNROLL
        for (int n = 0; n < 4; ++n) {
          bool seen = at(n) != -infinity;
          if (edge) {
            const int own = Scores::own_row(owns_queries ? i + u : i + n);
            const std::int32_t begin = shared_.seen_begin[own], end = shared_.seen_end[own];
            seen &= static_cast<std::uint32_t>((owns_queries ? key(n) : query.index) - begin) <
                    static_cast<std::uint32_t>(end - begin);
          }
          const float weight = seen ? Unit::fine_exp(at(n) - lse) : 0.0f;
          const bool keeps = (kept >> n & 1) != 0;
          float& dp = owns_queries ? d[u][n] : d[n][u];
          // A weight of 0 leaves no trace, whatever it would be multiplied with.
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
  // The head in vector registers: scalar ones are too few for its division beside all else.
  RowSource key_rows(const Rows& rows, int width) const {
    return {rows,
            width,
            a_.problem.dtype,
            sequence_.batch,
            sequence_.k_row,
            sequence_.sk,
            a_.problem.kv_head(arch::in_lanes(head_))};
  }
  template <bool with_delta>
  void load_statistics(std::int32_t first) {
    const int n = arch::renewed_thread();
    if (n >= queries) return;
    const bool in_use = first + n < sequence_.sq;
    const std::int64_t row = sequence_.q_row + first + n;
    const BackwardArguments& a = arch::again(a_);
    shared_.lse[n] = in_use ? arch::load(&a.tensors.lse.at(sequence_.batch, head_, row)) : infinity;
    if constexpr (with_delta)
      shared_.delta[n] = in_use ? arch::load(&a.delta.at(sequence_.batch, head_, row)) : 0.0f;
  }

  const BackwardArguments& a_;
  const SequenceView& sequence_;
  std::int64_t head_;
  ROCFLASH_SHARED Shared& shared_;
  ScoreShape shape_;
  RowSource q_, dout_, k_, v_;
  float share_, scale_;
  std::int32_t first_owned_ = 0;
  OwnCarrier own_products_, own_values_;
};

// Puts a tile into shared memory as lines of what is streamed.
template <int owned, int streamed, int threads>
void store_lines(const Patch<owned, streamed, threads>& tile, SharedFloat* lines) {
  using Tile = Patch<owned, streamed, threads>;
  ROCFLASH_UNROLL
  for (int i = 0; i < Tile::own_rows; i += 4) {
    ROCFLASH_UNROLL
    for (int n = 0; n < 4; ++n) {
      *(SharedFloat4*)(lines + Tile::own_column(n) * line_length(owned) + Tile::own_row(i)) =
          Float4{tile.at(i, n), tile.at(i + 1, n), tile.at(i + 2, n), tile.at(i + 3, n)};
    }
  }
}

// Of one score, computed alone.
inline ScoreTerms exact_terms(const BackwardArguments& arguments, const SequenceView& sequence,
                              std::int64_t head, std::int32_t query, std::int32_t key) {
  // Loaded again for each pair: the caller's loops would keep all of it in scalar registers.
  const BackwardArguments& a = arch::again(arguments);
  using Scores = ExactScores<DType::f32, ExactPowers, true, false>;
  const Problem& p = a.problem;
  const Scores scores{p, sequence, head, 0};
  QueryView view;
  view.index = query;
  float slope = 1;
  const float score = scores.score(view, key, [&](int, float x) { slope = x; });
  const std::int64_t row = sequence.q_row + query;
  const float lse = arch::load(&a.tensors.lse.at(sequence.batch, head, row));
  const float weight = score == -infinity ? 0.0f : ExactPowers::fine_exp(score - lse);
  if (weight == 0) return {};
  const bool kept = !p.dropout.on() || scores.shape.keeps(view, key);
  float dp = 0;
  if (kept) {
    const BackwardArguments& b = arch::again(arguments);
    const DType dtype = b.problem.dtype;
    const std::byte* dout = row_address(b.tensors.dout, dtype, sequence.batch, row, head);
    const std::byte* v = scores.row_of(b.problem.v, key);
    for (int column = 0; column < b.problem.value_dim; ++column)
      dp = __builtin_fmaf(number_at(dout, dtype, column), number_at(v, dtype, column), dp);
  }
  return {weight, dp, slope, kept, is_all_of(weight, lse)};
}

// Weight and gradient of one score, for sums that are not finite.
struct ExactPair {
  float weight = 0, gradient = 0;
};
inline ExactPair exact_pair(const BackwardArguments& a, const SequenceView& sequence,
                            std::int64_t head, std::int32_t query, std::int32_t key) {
  const ScoreTerms terms = exact_terms(a, sequence, head, query, key);
  if (terms.weight == 0) return {};
  const float delta =
      arch::load(&arch::again(a).delta.at(sequence.batch, head, sequence.q_row + query));
  return {terms.kept ? terms.weight : 0.0f, terms.weight * (terms.dp - delta) * terms.slope};
}

}  // namespace rocflash::kernel
