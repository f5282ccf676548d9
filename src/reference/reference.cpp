#include "reference/reference.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "core/combine.hpp"
#include "core/lse.hpp"
#include "core/unused.hpp"
#include "core/workspace.hpp"

namespace rocflash {
namespace {

// Arithmetic of the reference: double precision, never rounded.
struct Exact {
  using Real = double;
  static constexpr bool takes_saved = false;
  static Real round(Real x, DType) { return x; }
};

// Arithmetic of naive attention: the result of each operation is rounded to the tensors' dtype.
struct Naive {
  using Real = float;
  // Backward uses the given out and lse, rounded as they are, like every backward of this ABI.
  static constexpr bool takes_saved = true;
  static Real round(Real x, DType t) {
    if (t == DType::f16) return static_cast<Real>(static_cast<_Float16>(x));
    if (t == DType::bf16) return float_from_bf16(bf16_from_float(x));
    return x;
  }
};

// The smallest normal and the largest finite value of a dtype.
struct FiniteRange {
  double least, most;
};
constexpr FiniteRange finite_range(DType t) {
  if (t == DType::f16) return {0x1p-14, 0x1.ffcp15};
  if (t == DType::bf16) return {0x1p-126, 0x1.fep127};
  return {0x1p-126, 0x1.fffffep127};
}

template <class Arithmetic>
class Attention {
  using Real = typename Arithmetic::Real;
  using Row = std::vector<Real>;
  static constexpr Real infinity = std::numeric_limits<Real>::infinity();

 public:
  explicit Attention(const Problem& problem) : p_(problem) {}

  void forward(const ForwardOutputs& o) const {
    clear_unused(p_, o);
    for (std::int64_t b = 0; b < p_.batch(); ++b) {
      for (std::int64_t h = 0; h < p_.heads; ++h) {
        const Head head = load_head(b, h);
        for (std::int64_t i = 0; i < head.sq; ++i) {
          const Weights w = weights(head, i);
          Row out(at(p_.value_dim), 0);
          for (std::int64_t j = 0; j < head.sk; ++j) {
            if (contributes(w, j)) add(out, w.p[at(j)], head.v.row(j));
          }
          // Also without a visible key: a sink of +inf or NaN.
          if (std::isnan(w.lse)) out.assign(out.size(), w.lse);
          store(o.out.row(b, head.q_row + i, h), o.out.dtype, out);
          if (o.lse) o.lse.at(b, h, head.q_row + i) = static_cast<float>(w.lse);
          for (std::int64_t j = 0; j < head.sk && o.s_dmask; ++j) {
            const auto p = static_cast<double>(w.p[at(j)]);
            store_double(o.s_dmask.row(b, h, i), o.s_dmask.dtype, j * o.s_dmask.key_stride,
                         w.keep[at(j)] ? p : -p);
          }
        }
      }
    }
  }

  void backward(const BackwardTensors& t, const RowStatistic& delta,
                const RowStatistic& dlse) const {
    clear_unused(p_, t, delta);
    Row dsinks(at(p_.heads), 0);
    ScoreSum dbias(t.dbias ? t.dbias_sizes(p_) : ScoreSizes{});
    Row dalibi(at(larger(p_.batch(), 1) * p_.heads), 0);
    for (std::int64_t b = 0; b < p_.batch(); ++b) {
      for (std::int64_t g = 0; g < p_.kv_heads; ++g) {
        const Sequence s = p_.lengths.sequence(b);
        Matrix dk(s.sk, p_.head_dim), dv(s.sk, p_.value_dim);
        for (std::int64_t h = g * p_.gqa_group(); h < (g + 1) * p_.gqa_group(); ++h) {
          const Gradients of_head = gradients(load_head(b, h), t, delta, dlse, dbias);
          add_head(dk, of_head.dk, static_cast<Real>(p_.scale));
          add_head(dv, of_head.dv, dropout_scale());
          dsinks[at(h)] += of_head.dsink;
          dalibi[at((t.dalibi.batch_stride ? b * p_.heads : 0) + h)] += of_head.dslope;
        }
        store(t.dk, dk, b, s.k_row, g);
        store(t.dv, dv, b, s.k_row, g);
      }
    }
    for (std::int64_t h = 0; h < p_.heads && t.dsinks; ++h) {
      store_double(t.dsinks.data, t.dsinks.dtype, h * t.dsinks.head_stride,
                   static_cast<double>(dsinks[at(h)]));
    }
    for (std::int64_t b = 0; b < (t.dalibi.batch_stride ? p_.batch() : 1) && t.dalibi; ++b) {
      for (std::int64_t h = 0; h < p_.heads; ++h)
        store_double(t.dalibi.data, t.dalibi.dtype,
                     b * t.dalibi.batch_stride + h * t.dalibi.head_stride,
                     static_cast<double>(dalibi[at(b * p_.heads + h)]));
    }
    if (t.dbias) dbias.store(t.dbias);
  }

 private:
  struct Matrix {
    Matrix(std::int64_t row_count, int column_count)
        : rows(row_count), columns(column_count), data(at(row_count * column_count), 0) {}
    Real* row(std::int64_t i) { return data.data() + i * columns; }
    const Real* row(std::int64_t i) const { return data.data() + i * columns; }
    std::int64_t rows;
    int columns;
    Row data;
  };

  // A sum for each element of a bias with broadcast dimensions.
  struct ScoreSum {
    explicit ScoreSum(ScoreSizes s)
        : sizes(s), data(Attention::at(s.batch * s.heads * s.queries * s.keys), 0) {}
    Real& at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      const auto index = [](std::int64_t n, std::int64_t size) { return size == 1 ? 0 : n; };
      return data[Attention::at(
          ((index(b, sizes.batch) * sizes.heads + index(h, sizes.heads)) * sizes.queries +
           index(i, sizes.queries)) *
              sizes.keys +
          index(j, sizes.keys))];
    }
    void store(const PerScore& to) {
      for (std::int64_t b = 0; b < sizes.batch; ++b)
        for (std::int64_t h = 0; h < sizes.heads; ++h)
          for (std::int64_t i = 0; i < sizes.queries; ++i)
            for (std::int64_t j = 0; j < sizes.keys; ++j)
              store_double(to.row(b, h, i), to.dtype, j * to.key_stride,
                           static_cast<double>(at(b, h, i, j)));
    }
    ScoreSizes sizes;
    Row data;
  };

  // One head of one sequence. k includes the softmax scale and v the dropout scale, as in a
  // framework; k without the power of two of a large scale, `excess_`.
  struct Head : Sequence {
    std::int64_t b, h;
    Matrix q, k, v;
  };

  // The softmax of one query.
  struct Weights {
    Row score;               // after softcap, ALiBi and bias; -inf if masked
    Row slope;               // d(score) / d(scale * q.k): 1, or the derivative of softcap
    Row p;                   // normalized, before dropout
    std::vector<bool> keep;  // by dropout
    Real lse = infinity;
    Real sink = 0;  // weight of the sink
  };

  struct Gradients {
    Matrix dk, dv;
    Real dsink = 0, dslope = 0;
  };

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  Real round(Real x) const { return Arithmetic::round(x, p_.dtype); }
  // Finite intermediates that exceed the dtype are not rounded: a baseline that overflows would
  // allow any error.
  Real round_finite(Real x) const {
    const Real rounded = round(x);
    return std::isinf(rounded) && !std::isinf(x) ? x : rounded;
  }
  // Likewise for subnormals of the dtype, and below.
  double round_normal(double x) const {
    const FiniteRange range = finite_range(p_.dtype);
    const bool normal = std::abs(x) >= range.least && std::abs(x) <= range.most;
    return normal ? static_cast<double>(round(static_cast<Real>(x))) : x;
  }
  Real dropout_scale() const { return Real{1} / (Real{1} - static_cast<Real>(p_.dropout.p)); }

  // A weight of exactly 0 (masked or dropped) contributes nothing, even to an infinite value.
  static bool contributes(const Weights& w, std::int64_t j) {
    return w.keep[at(j)] && w.p[at(j)] != 0;
  }

  static void add(Row& sum, Real factor, const Real* row) {
    for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += factor * row[c];
  }
  static Real dot(const Real* x, const Real* y, int n) {
    Real sum = 0;
    for (int c = 0; c < n; ++c) sum += x[c] * y[c];
    return sum;
  }

  static void store(void* base, DType dtype, const Row& row) {
    for (std::size_t c = 0; c < row.size(); ++c)
      store_double(base, dtype, static_cast<std::int64_t>(c), static_cast<double>(row[c]));
  }
  static void store(const Rows& to, const Matrix& m, std::int64_t b, std::int64_t row,
                    std::int64_t h) {
    for (std::int64_t j = 0; j < m.rows && to; ++j)
      for (int c = 0; c < m.columns; ++c)
        store_double(to.row(b, row + j, h), to.dtype, c, static_cast<double>(m.row(j)[c]));
  }
  Matrix load(const Rows& from, std::int64_t b, std::int64_t row, std::int64_t count,
              std::int64_t h, Real factor, const Descale& descale = {}) const {
    Matrix m(count, from.columns);
    for (std::int64_t i = 0; i < count; ++i) {
      const float scale = descale.at(from, b, row + i, h);
      for (int c = 0; c < m.columns; ++c) {
        const double stored = load_as_double(from.row(b, row + i, h), from.dtype, c);
        // By definition the value of a quantized element is rounded to f32.
        const double value =
            descale ? static_cast<double>(static_cast<float>(stored) * scale) : stored;
        m.row(i)[c] = round_finite(static_cast<Real>(value) * factor);
      }
    }
    return m;
  }
  Head load_head(std::int64_t b, std::int64_t h) const {
    const Sequence s = p_.lengths.sequence(b);
    return {s,
            b,
            h,
            load(p_.q, b, s.q_row, s.sq, h, 1),
            load(p_.k, b, s.k_row, s.sk, p_.kv_head(h), static_cast<Real>(p_.scale) / excess_,
                 p_.k_descale),
            load(p_.v, b, s.k_row, s.sk, p_.kv_head(h), dropout_scale(), p_.v_descale)};
  }

  bool is_visible(const Head& head, std::int64_t i, std::int64_t j) const {
    if (!visible_keys(p_.visibility, i, head.sq, head.sk).contains(j)) return false;
    return !p_.mask || load_as_double(p_.mask.row(head.b, head.h, i), p_.mask.dtype,
                                      j * p_.mask.key_stride) != 0;
  }

  static Real distance(const Head& head, std::int64_t i, std::int64_t j) {
    return static_cast<Real>(std::abs(i + head.sk - head.sq - j));
  }

  Real score(const Head& head, std::int64_t i, std::int64_t j, Real& slope) const {
    Real s = round_finite(dot(head.q.row(i), head.k.row(j), p_.head_dim));
    if (p_.softcap > 0) {
      // A cap of 1e38 takes ordinary scores into the subnormals of f32, and the excess of the scale
      // may take them beyond its range.
      const auto cap = static_cast<double>(p_.softcap), excess = static_cast<double>(excess_);
      const double t = round_normal(std::tanh(round_normal(static_cast<double>(s) * excess / cap)));
      slope = static_cast<Real>(1 - t * t);
      s = round_finite(static_cast<Real>(cap * t));
    } else {
      s *= excess_;
    }
    if (p_.alibi)
      s = round_finite(s - static_cast<Real>(p_.alibi.at(head.b, head.h)) * distance(head, i, j));
    if (p_.bias) {
      const auto bias = static_cast<Real>(
          load_as_double(p_.bias.row(head.b, head.h, i), p_.bias.dtype, j * p_.bias.key_stride));
      // -inf masks the key, whatever its score
      s = bias == -infinity ? bias : round_finite(s + bias);
    }
    return s;
  }

  Weights weights(const Head& head, std::int64_t i) const {
    const auto n = at(head.sk);
    Weights w{Row(n, -infinity), Row(n, 1), Row(n, 0), std::vector<bool>(n, true)};
    const Real sink = p_.sinks ? static_cast<Real>(p_.sinks.at(0, head.h)) : -infinity;
    Real highest = sink;
    for (std::int64_t j = 0; j < head.sk; ++j) {
      w.keep[at(j)] = !p_.dropout.on() || p_.dropout.keeps(head.b * p_.heads + head.h, i, j);
      if (!is_visible(head, i, j)) continue;
      w.score[at(j)] = score(head, i, j, w.slope[at(j)]);
      const bool higher = !(w.score[at(j)] <= highest);  // true for NaN, which then stays
      if (higher && !std::isnan(highest)) highest = w.score[at(j)];
    }
    if (highest == -infinity) return w;  // fully masked row: all weights 0, lse +inf

    Real sum = 0;
    for (std::size_t j = 0; j < n; ++j) {
      if (w.score[j] != -infinity) sum += w.p[j] = std::exp(w.score[j] - highest);
    }
    w.sink = std::exp(sink - highest);
    sum += w.sink;
    for (std::size_t j = 0; j < n; ++j) {
      if (w.score[j] != -infinity)
        w.p[j] = round(w.p[j] / sum);  // a NaN sum does not affect masked keys
    }
    w.sink /= sum;
    w.lse = highest + std::log(sum);
    return w;
  }

  // Gradients of one head. Stores dq and delta, adds to dbias, and returns what is summed over
  // heads or sequences.
  Gradients gradients(const Head& head, const BackwardTensors& t, const RowStatistic& delta,
                      const RowStatistic& dlse, ScoreSum& dbias) const {
    Gradients g{Matrix(head.sk, p_.head_dim), Matrix(head.sk, p_.value_dim)};
    const Matrix dout = load(t.dout, head.b, head.q_row, head.sq, head.h, 1);
    const Matrix out = load(t.out, head.b, head.q_row, head.sq, head.h, 1);
    for (std::int64_t i = 0; i < head.sq; ++i) {
      Weights w = weights(head, i);
      if (Arithmetic::takes_saved) take_lse(head, i, t, w);
      Row dp(at(head.sk), 0);  // d(loss) / d(weight)
      Real mean = 0;           // delta: the mean of dp under the weights, minus dlse
      bool some = false;       // whether any weight is nonzero
      for (std::int64_t j = 0; j < head.sk; ++j) {
        some |= w.p[at(j)] != 0;
        if (!contributes(w, j)) continue;
        dp[at(j)] = round(dot(dout.row(i), head.v.row(j), p_.value_dim));
        mean += w.p[at(j)] * dp[at(j)];
        for (int c = 0; c < p_.value_dim; ++c) g.dv.row(j)[c] += w.p[at(j)] * dout.row(i)[c];
      }
      // Like out, even if no weight contributes.
      if (std::isnan(w.lse)) mean = w.lse;
      if (Arithmetic::takes_saved && some) mean = dot(dout.row(i), out.row(i), p_.value_dim);
      // lse grows with each score by its weight, and so does its gradient.
      if (dlse) mean -= lse_gradient(head, i, t, dlse);
      if (delta)
        delta.at(head.b, head.h, head.q_row + i) = static_cast<float>(mean / dropout_scale());
      Row dq(at(p_.head_dim), 0);
      for (std::int64_t j = 0; j < head.sk; ++j) {
        if (w.p[at(j)] == 0) continue;
        const Real of_score = round(w.p[at(j)] * (dp[at(j)] - mean));
        if (t.dbias) dbias.at(head.b, head.h, i, j) += of_score;
        if (t.dalibi) g.dslope -= of_score * distance(head, i, j);
        const Real ds = round(of_score * w.slope[at(j)]);
        // An infinite q or k under a saturated softcap has no gradient.
        if (ds == 0) continue;
        add(dq, ds, head.k.row(j));
        for (int c = 0; c < p_.head_dim; ++c) g.dk.row(j)[c] += ds * head.q.row(i)[c];
      }
      for (Real& x : dq) x *= excess_;
      if (t.dq) store(t.dq.row(head.b, head.q_row + i, head.h), t.dq.dtype, dq);
      if (w.sink != 0) g.dsink -= w.sink * mean;
    }
    return g;
  }

  // The lse of a fully masked row is constant.
  static Real lse_gradient(const Head& head, std::int64_t i, const BackwardTensors& t,
                           const RowStatistic& dlse) {
    const std::int64_t row = head.q_row + i;
    const bool constant = t.lse.at(head.b, head.h, row) == std::numeric_limits<float>::infinity();
    return constant ? Real{0} : static_cast<Real>(dlse.at(head.b, head.h, row));
  }

  // Weights from the lse of forward instead of the row's own sum. An lse so large that f32 rounds
  // the logarithm of the sum away does not determine the weights: such a row keeps its own if the
  // call has all of its keys.
  void take_lse(const Head& head, std::int64_t i, const BackwardTensors& t, Weights& w) const {
    const auto lse = static_cast<Real>(t.lse.at(head.b, head.h, head.q_row + i));
    if (std::abs(lse) >= Real{unresolved_lse} && !std::isinf(lse) &&
        covers_lse(static_cast<float>(w.lse), static_cast<float>(lse)))
      return;
    for (std::size_t j = 0; j < w.p.size(); ++j) {
      if (w.score[j] != -infinity) w.p[j] = round(std::exp(w.score[j] - lse));
    }
    if (p_.sinks) w.sink = std::exp(static_cast<Real>(p_.sinks.at(0, head.h)) - lse);
  }

  // A framework computes the gradient of each repeated KV head, rounds it, and adds them.
  void add_head(Matrix& sum, const Matrix& head, Real factor) const {
    for (std::size_t n = 0; n < sum.data.size(); ++n)
      sum.data[n] = round(sum.data[n] + round(round(head.data[n]) * factor));
  }

  const Problem& p_;
  // Naive attention has k times the scale in f32, where the infinite products of a large scale
  // would make NaN of scores that a softcap makes finite.
  const Real excess_ = std::abs(p_.scale) >= 0x1p64f ? Real{0x1p64} : Real{1};
};

// Both are for verification, not for speed: one thread, own memory, no limits.
template <class Arithmetic>
class ReferenceBackend final : public Backend {
 public:
  constexpr ReferenceBackend() = default;

  std::string refusal(const ForwardCall& c) const override { return refusal(c.problem); }
  std::string refusal(const DecodeCall& c) const override { return refusal(c.problem); }
  std::string refusal(const BackwardCall& c) const override { return refusal(c.problem); }

  Size workspace(const ForwardCall&) const override { return 0; }
  Size workspace(const DecodeCall& c) const override {
    return AppendedProblem::bytes(c.problem, c.append);
  }
  Size workspace(const BackwardCall&) const override { return 0; }

  void run(const ForwardCall& c) const override {
    Attention<Arithmetic>(c.problem).forward(c.outputs);
  }
  void run(const DecodeCall& c) const override {
    check_workspace(c.resources, workspace(c), c.problem);
    const AppendedProblem after(c.problem, c.append, c.resources.workspace);
    for (std::int64_t row = 0; row < append_rows(c.problem, c.append); ++row)
      append_row(c.problem, c.append, after, row);
    Attention<Arithmetic>(after.problem).forward(c.outputs);
  }
  void run(const BackwardCall& c) const override {
    Attention<Arithmetic>(c.problem).backward(c.tensors, c.delta, c.dlse);
  }
  void run(const CombineCall& c) const override {
    for (std::int64_t row = 0; row < combine_rows(c); ++row) combine_row(c, row);
  }
  void run(const RotateCall& c) const override {
    for (std::int64_t row = 0; row < query_rows(c.problem); ++row)
      rotate_query(c.problem, c.rotary, c.out, row);
  }

 private:
  static std::string refusal(const Problem& p) {
    if (p.dtype == DType::f64 && !std::is_same_v<Arithmetic, Exact>)
      return "q has dtype f64; for the naive backend it must be f32, f16 or bf16";
    return {};
  }
};

constinit const ReferenceBackend<Exact> reference;
constinit const ReferenceBackend<Naive> naive;

}  // namespace

const Backend& reference_backend() { return reference; }

const Backend& naive_backend() { return naive; }

}  // namespace rocflash
