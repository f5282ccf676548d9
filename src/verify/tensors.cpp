#include "verify/tensors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "verify/random.hpp"

namespace rocflash::verify {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Shapes and row ranges that follow from a case.
struct Geometry {
  explicit Geometry(const Case& c) : what(c) {}

  struct Rows {
    std::int64_t begin, end;
  };

  std::int64_t rows(const std::vector<std::int64_t>& lengths, std::int64_t dense) const {
    if (!what.packed()) return dense;
    std::int64_t total = what.spare;
    for (const std::int64_t n : lengths) total += n;
    return total;
  }
  std::int64_t longest(const std::vector<std::int64_t>& lengths, std::int64_t dense) const {
    return what.packed() ? *std::max_element(lengths.begin(), lengths.end()) : dense;
  }
  // Half of the spare rows lie before the first sequence.
  std::vector<std::int64_t> cumulative(const std::vector<std::int64_t>& lengths) const {
    std::vector<std::int64_t> begins{what.spare / 2};
    for (const std::int64_t n : lengths) begins.push_back(begins.back() + n);
    return begins;
  }
  Rows used(const std::vector<std::int64_t>& lengths, std::int64_t dense,
            const std::vector<std::int64_t>& seqused, const std::vector<std::int64_t>& leftpad,
            std::size_t n) const {
    const std::int64_t begin = what.packed() ? cumulative(lengths)[n] : 0;
    const std::int64_t length = what.packed() ? lengths[n] : dense;
    return {begin + (leftpad.empty() ? 0 : leftpad[n]),
            begin + (seqused.empty() ? length : seqused[n])};
  }
  Rows queries(std::size_t n) const { return used(what.lengths_q, what.sq, what.seqused_q, {}, n); }
  Rows keys(std::size_t n) const {
    return used(what.lengths_k, what.sk, what.seqused_k, what.leftpad_k, n);
  }

  Dims tensor(std::int64_t row_count, std::int64_t heads, std::int64_t columns) const {
    return what.packed() ? Dims{row_count, heads, columns}
                         : Dims{what.batch, row_count, heads, columns};
  }
  Dims query_tensor(std::int64_t columns) const {
    return tensor(rows(what.lengths_q, what.sq), what.heads, columns);
  }
  Dims key_tensor(std::int64_t columns) const {
    return tensor(rows(what.lengths_k, what.sk), what.kv_heads, columns);
  }
  Dims statistic() const {
    const std::int64_t n = rows(what.lengths_q, what.sq);
    return what.packed() ? Dims{what.heads, n} : Dims{what.batch, what.heads, n};
  }
  Dims plane(Spans s) const {
    return {s.batch ? what.sequences() : 1, s.head ? what.heads : 1,
            s.query ? longest(what.lengths_q, what.sq) : 1,
            s.key ? longest(what.lengths_k, what.sk) : 1};
  }

  // Dimensions by their meaning, counted from the end because packed tensors lack the first.
  Axes query_axes() const { return what.packed() ? Axes{0, 1, 1} : Axes{1, 2, 0}; }
  Axes key_axes() const { return what.packed() ? Axes{0, 1, 1} : Axes{1, 2, 2}; }
  Axes statistic_axes() const { return what.packed() ? Axes{1, 0, 0} : Axes{2, 1, 0}; }
  static Axes plane_axes() { return {2, 1, 0}; }

  const Case& what;
};

DType option_dtype(const Case& c) { return c.wide_options ? DType::f32 : c.dtype; }

// One source of randomness for each tensor, so that an option more does not change the others.
Random random_for(const Case& c, const char* tensor) { return Random(derive_seed(c.seed, tensor)); }

Buffer vector_of(const std::vector<std::int64_t>& values) {
  Buffer b(DType::i32, Dims{static_cast<std::int64_t>(values.size())});
  b.fill([&](const Dims& index) {
    return static_cast<double>(values[static_cast<std::size_t>(index[0])]);
  });
  return b;
}

std::optional<Buffer> optional_vector(const std::vector<std::int64_t>& values) {
  if (values.empty()) return std::nullopt;
  return vector_of(values);
}

// Fills the rows that `used` answers for each sequence; the others stay poisoned.
template <class Used>
Buffer fill_rows(const Case& c, const char* name, const Dims& shape, Axes axes, Used used) {
  Buffer b(c.dtype, place(shape, c.layout, axes, Role::input));
  Random random = random_for(c, name);
  const std::int64_t heads = shape[shape.size() - 2], columns = shape[shape.size() - 1];
  const bool gradient = name[0] == 'd';
  for (std::int64_t n = 0; n < c.sequences(); ++n) {
    const auto [begin, end] = used(static_cast<std::size_t>(n));
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const double size =
            c.values == Values::outliers && !gradient && random.chance(0.05) ? 10 : 1;
        for (std::int64_t column = 0; column < columns; ++column) {
          b.set(c.packed() ? Dims{row, h, column} : Dims{n, row, h, column},
                size * random.normal());
        }
        if (c.values != Values::non_finite || gradient || !random.chance(0.02)) continue;
        const std::int64_t column = random.integer(0, columns - 1);
        const double odd[] = {infinity, -infinity, std::nan("")};
        b.set(c.packed() ? Dims{row, h, column} : Dims{n, row, h, column},
              odd[random.integer(0, 2)]);
      }
    }
  }
  return b;
}

std::optional<Buffer> make_mask(const Case& c, const Geometry& g) {
  if (!c.mask) return std::nullopt;
  Buffer b(DType::boolean, place(g.plane(*c.mask), c.layout, g.plane_axes(), Role::input));
  Random random = random_for(c, "mask");
  bool whole_row = false;
  b.fill([&](const Dims& index) {
    if (index[3] == 0) whole_row = random.chance(0.1);
    return !whole_row && random.chance(0.7) ? 1.0 : 0.0;
  });
  return b;
}

std::optional<Buffer> make_bias(const Case& c, const Geometry& g) {
  if (!c.bias) return std::nullopt;
  Buffer b(option_dtype(c), place(g.plane(*c.bias), c.layout, g.plane_axes(), Role::input));
  Random random = random_for(c, "bias");
  bool whole_row = false;
  b.fill([&](const Dims& index) {
    if (index[3] == 0) whole_row = random.chance(0.1);
    const double value = random.normal();
    return c.bias_hides && (whole_row || random.chance(0.2)) ? -infinity : value;
  });
  return b;
}

std::optional<Buffer> make_slopes(const Case& c) {
  if (c.alibi == Slopes::none) return std::nullopt;
  Buffer b(DType::f32, c.alibi == Slopes::per_head ? Dims{c.heads} : Dims{c.sequences(), c.heads});
  Random random = random_for(c, "alibi");
  b.fill([&](const Dims&) { return std::exp2(-8 * random.uniform()); });
  return b;
}

std::optional<Buffer> make_sinks(const Case& c) {
  if (!c.sinks) return std::nullopt;
  Buffer b(option_dtype(c), Dims{c.heads});
  Random random = random_for(c, "sinks");
  b.fill([&](const Dims&) { return random.normal(); });
  return b;
}

std::optional<Tensor> view(const std::optional<Buffer>& b) {
  if (!b) return std::nullopt;
  return b->tensor();
}

}  // namespace

Inputs::Inputs(const Case& c)
    : what(c),
      q(fill_rows(c, "q", Geometry(c).query_tensor(c.head_dim), Geometry(c).query_axes(),
                  [&](std::size_t n) { return Geometry(c).queries(n); })),
      k(fill_rows(c, "k", Geometry(c).key_tensor(c.head_dim), Geometry(c).key_axes(),
                  [&](std::size_t n) { return Geometry(c).keys(n); })),
      v(fill_rows(c, "v", Geometry(c).key_tensor(c.value_dim), Geometry(c).key_axes(),
                  [&](std::size_t n) { return Geometry(c).keys(n); })),
      dout(fill_rows(c, "dout", Geometry(c).query_tensor(c.value_dim), Geometry(c).query_axes(),
                     [&](std::size_t n) { return Geometry(c).queries(n); })),
      seqused_q(optional_vector(c.seqused_q)),
      seqused_k(optional_vector(c.seqused_k)),
      leftpad_k(optional_vector(c.leftpad_k)),
      mask(make_mask(c, Geometry(c))),
      alibi(make_slopes(c)),
      bias(make_bias(c, Geometry(c))),
      sinks(make_sinks(c)) {
  if (c.packed()) {
    cu_seqlens_q = vector_of(Geometry(c).cumulative(c.lengths_q));
    cu_seqlens_k = vector_of(Geometry(c).cumulative(c.lengths_k));
  }
}

Problem Inputs::problem() const {
  Random random = random_for(what, "dropout");
  Problem p;
  p.q = q.tensor();
  p.k = k.tensor();
  p.v = v.tensor();
  p.cu_seqlens_q = view(cu_seqlens_q);
  p.cu_seqlens_k = view(cu_seqlens_k);
  p.seqused_q = view(seqused_q);
  p.seqused_k = view(seqused_k);
  p.leftpad_k = view(leftpad_k);
  p.causal = what.causal;
  p.window = what.window;
  p.attention_chunk = what.attention_chunk;
  p.mask = view(mask);
  p.softmax_scale = what.softmax_scale;
  p.softcap = what.softcap;
  p.alibi_slopes = view(alibi);
  p.bias = view(bias);
  p.sinks = view(sinks);
  p.dropout_p = what.dropout_p;
  p.dropout_seed = random.bits();
  p.dropout_offset = random.bits();
  p.deterministic = what.deterministic;
  return p;
}

std::uint64_t Inputs::fingerprint() const {
  std::uint64_t hash = 0;
  const auto add = [&](const Buffer& b) {
    const auto& bytes = b.bytes();
    hash = derive_seed(hash, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  for (const Buffer* b : {&q, &k, &v, &dout}) add(*b);
  for (const auto* b : {&cu_seqlens_q, &cu_seqlens_k, &seqused_q, &seqused_k, &leftpad_k, &mask,
                        &alibi, &bias, &sinks}) {
    if (*b) add(**b);
  }
  return hash;
}

namespace {

Buffer output(const Case& c, bool exact, DType dtype, const Dims& shape, Axes axes) {
  const Layout layout = exact ? Layout::compact : c.layout;
  return {dtype, place(shape, layout, axes, Role::output)};
}

std::optional<Buffer> weights_output(const Case& c, bool exact) {
  if (!c.weights) return std::nullopt;
  return output(c, exact, exact ? DType::f32 : option_dtype(c), Geometry(c).plane({}),
                Geometry::plane_axes());
}

std::optional<Buffer> sinks_output(const Case& c) {
  if (!c.sinks) return std::nullopt;
  return Buffer(DType::f32, Dims{c.heads});
}

}  // namespace

Outputs::Outputs(const Case& c, bool exact)
    : out(output(c, exact, exact ? DType::f64 : c.dtype, Geometry(c).query_tensor(c.value_dim),
                 Geometry(c).query_axes())),
      lse(output(c, exact, DType::f32, Geometry(c).statistic(), Geometry(c).statistic_axes())),
      s_dmask(weights_output(c, exact)),
      dq(output(c, exact, out.dtype(), Geometry(c).query_tensor(c.head_dim),
                Geometry(c).query_axes())),
      dk(output(c, exact, out.dtype(), Geometry(c).key_tensor(c.head_dim), Geometry(c).key_axes())),
      dv(output(c, exact, out.dtype(), Geometry(c).key_tensor(c.value_dim),
                Geometry(c).key_axes())),
      dsinks(sinks_output(c)) {}

ForwardOutputs Outputs::forward() const { return {out.tensor(), lse.tensor(), view(s_dmask)}; }

BackwardTensors Outputs::backward(const Inputs& inputs) const {
  return {inputs.dout.tensor(), out.tensor(), lse.tensor(), dq.tensor(),
          dk.tensor(),          dv.tensor(),  view(dsinks)};
}

std::vector<Outputs::Named> Outputs::all() {
  return {{"out", &out, false},
          {"lse", &lse, false},
          {"s_dmask", s_dmask ? &*s_dmask : nullptr, false},
          {"dq", &dq, true},
          {"dk", &dk, true},
          {"dv", &dv, true},
          {"dsinks", dsinks ? &*dsinks : nullptr, true}};
}

}  // namespace rocflash::verify
