#include "verify/tensors.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "verify/geometry.hpp"
#include "verify/random.hpp"
#include "verify/scalar.hpp"

namespace rocflash::verify {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

DType option_dtype(const Case& c) { return c.f32_options ? DType::f32 : c.dtype; }

// One generator per tensor, so that an additional option does not change the other tensors.
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

// Fills the used rows; unused rows stay poisoned.
template <class Used, class IndexOf, class StoredOf>
void fill_rows(Buffer& b, const Case& c, const char* name, Used used, IndexOf index_of,
               StoredOf stored_of) {
  Random random = random_for(c, name);
  const bool gradient = name[0] == 'd';
  const double usual = name[0] == 'q' || name[0] == 'k' ? magnitude(c) : 1;
  const std::int64_t heads = b.shape()[b.shape().size() - 2],
                     columns = b.shape()[b.shape().size() - 1];
  for (std::size_t n = 0; n < static_cast<std::size_t>(c.sequences()); ++n) {
    const auto [begin, end] = used(n);
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t h = 0; h < heads; ++h) {
        Dims at = index_of(n, row, h, 0);
        std::int64_t& column = at[at.size() - 1];
        const double size =
            c.values == Values::outliers && !gradient && random.chance(0.05) ? 10 : usual;
        for (column = 0; column < columns; ++column)
          b.set(at, stored_of(n, row, h, size * random.normal()));
        if (c.values != Values::non_finite || gradient || !random.chance(0.02)) continue;
        column = random.integer(0, columns - 1);
        const double non_finite[] = {infinity, -infinity, std::nan("")};
        // Other 8-bit dtypes saturate infinity to scores whose weights only double resolves.
        const bool has_infinity = !is_8_bit(b.dtype()) || b.dtype() == DType::e5m2;
        b.set(at, non_finite[has_infinity ? random.integer(0, 2) : 2]);
      }
    }
  }
}

template <class Used, class IndexOf>
void fill_rows(Buffer& b, const Case& c, const char* name, Used used, IndexOf index_of) {
  fill_rows(b, c, name, used, index_of, [](auto, auto, auto, double x) { return x; });
}

// Scales of the rows in use and of those to append; others stay poisoned. int8 covers about ±4.
std::optional<Buffer> make_descale(const Case& c, const char* name) {
  if (c.scales == Scales::none) return std::nullopt;
  const Geometry g(c);
  const Dims shape = g.scale_tensor();
  Buffer b(DType::f32, shape.size() == 3 ? lay_out(shape, c.layout, {1, 2, 0}, Role::input)
                                         : lay_out(shape, Layout::compact, {}, Role::input));
  Random random = random_for(c, name);
  const double usual = c.cache_dtype == DType::i8 ? 4.0 / 127 : 0.25;
  for (std::size_t n = 0; n < static_cast<std::size_t>(c.sequences()); ++n) {
    const auto [begin, end] = g.used_keys(n);
    const std::int64_t all = end + (c.appended.empty() ? 0 : c.appended[n]);
    for (std::int64_t row = begin; row < all; ++row)
      for (std::int64_t h = 0; h < c.kv_heads; ++h)
        b.set(g.scale_index(n, row, h), usual * std::exp2(2 * random.uniform() - 1));
  }
  return b;
}

Buffer make_queries(const Case& c, const char* name, int columns) {
  const Geometry g(c);
  // Rotated queries have different values per position and cannot share memory.
  const Role role = c.rotary_dim > 0 ? Role::output : Role::input;
  Buffer b(c.dtype, lay_out(g.query_tensor(columns), c.layout, g.query_axes(), role));
  fill_rows(
      b, c, name, [&](auto n) { return g.used_queries(n); },
      [&](auto... at) { return g.query_index(at...); });
  return b;
}

Buffer make_keys(const Case& c, const char* name, int columns) {
  const Geometry g(c);
  Buffer b(c.cache_dtype.value_or(c.dtype),
           lay_out(g.key_tensor(columns), c.layout, g.key_axes(),
                   c.appended.empty() ? Role::input : Role::output));
  const auto descale = make_descale(c, name[0] == 'k' || c.mla ? "k_descale" : "v_descale");
  fill_rows(
      b, c, name, [&](auto n) { return g.used_keys(n); },
      [&](auto... at) { return g.key_index(at...); },
      [&](auto n, auto row, auto h, double x) { return stored_value(c, descale, n, row, h, x); });
  return b;
}

std::optional<Buffer> make_new(const Case& c, const char* name, int columns) {
  if (c.appended.empty()) return std::nullopt;
  const Geometry g(c);
  const bool quantizes = c.cache_dtype && is_8_bit(*c.cache_dtype) && !c.quantized_new;
  Buffer b(quantizes ? c.dtype : c.cache_dtype.value_or(c.dtype),
           lay_out(g.new_tensor(columns), c.layout, g.new_axes(), Role::input));
  fill_rows(
      b, c, name, [&](auto n) { return g.used_new(n); },
      [&](auto... at) { return g.new_index(at...); });
  return b;
}

// Angles grow with the position and decrease with the column, as in models.
std::optional<Buffer> make_rotary(const Case& c, double (*function)(double)) {
  if (c.rotary_dim == 0) return std::nullopt;
  constexpr double base = 10000;
  Buffer b(option_dtype(c), Dims{Geometry(c).positions(), c.rotary_dim / 2});
  b.fill([&](const Dims& at) {
    const double share = 2.0 * static_cast<double>(at[1]) / c.rotary_dim;
    return function(static_cast<double>(at[0]) * std::pow(base, -share));
  });
  return b;
}

std::optional<Buffer> make_block_table(const Case& c) {
  if (c.page == 0) return std::nullopt;
  const Geometry g(c);
  Buffer b(DType::i32, Dims{c.sequences(), g.pages_per_sequence()});
  b.fill([&](const Dims& at) {
    return static_cast<double>(g.page(static_cast<std::size_t>(at[0]), at[1]));
  });
  return b;
}

std::optional<Buffer> make_cache_index(const Case& c) {
  if (!c.batch_indexed_cache) return std::nullopt;
  const Geometry g(c);
  Buffer b(DType::i32, Dims{c.batch});
  b.fill([&](const Dims& at) {
    return static_cast<double>(g.cache(static_cast<std::size_t>(at[0])));
  });
  return b;
}

std::optional<Buffer> make_mask(const Case& c, const Geometry& g) {
  if (!c.mask) return std::nullopt;
  Buffer b(DType::boolean, lay_out(g.per_score(*c.mask), c.layout, g.score_axes(), Role::input));
  Random random = random_for(c, "mask");
  bool fully_masked = false;
  b.fill([&](const Dims& index) {
    if (index[3] == 0) fully_masked = b.shape()[2] > 1 && random.chance(0.1);
    return !fully_masked && random.chance(0.7) ? 1.0 : 0.0;
  });
  return b;
}

double clamp_to_dtype(double x, DType t) {
  return std::isfinite(x) ? std::clamp(x, -largest_finite(t), largest_finite(t)) : x;
}

// The bias at `index`: a large value or `ordinary`, as LargeBias says.
double large_bias(const Case& c, const Dims& index, std::int64_t keys, double ordinary,
                  std::int64_t kind) {
  const double value = clamp_to_dtype(static_cast<double>(c.bias_value), option_dtype(c));
  const std::int64_t key = index[3];
  switch (c.large_bias) {
    case LargeBias::none:
      return ordinary;
    case LargeBias::queries:
      return kind == 0 ? value : ordinary;
    case LargeBias::keys:
      return key < keys / 3 ? value : ordinary;
    case LargeBias::mixed:
      if (kind == 0) return value;
      if (kind == 1) return key % 5 == 2 ? value : ordinary;
      if (kind == 2) return key % 3 == 0 ? -value : value;
      return ordinary;
  }
  return ordinary;
}

std::optional<Buffer> make_bias(const Case& c, const Geometry& g) {
  if (!c.bias) return std::nullopt;
  Buffer b(option_dtype(c), lay_out(g.per_score(*c.bias), c.layout, g.score_axes(), Role::input));
  Random random = random_for(c, "bias");
  bool fully_masked = false;
  b.fill([&](const Dims& index) {
    if (index[3] == 0) fully_masked = b.shape()[2] > 1 && random.chance(0.1);
    const double value = random.normal();
    if (c.bias_masks && (fully_masked || random.chance(0.2))) return -infinity;
    return large_bias(c, index, b.shape()[3], value, (index[0] + index[1] + index[2]) % 4);
  });
  return b;
}

std::optional<Buffer> make_slopes(const Case& c) {
  if (c.alibi == Slopes::none) return std::nullopt;
  Buffer b(DType::f32, c.alibi == Slopes::per_head ? Dims{c.heads} : Dims{c.sequences(), c.heads});
  Random random = random_for(c, "alibi");
  b.fill([&](const Dims&) {
    return static_cast<double>(c.slope_factor) * std::exp2(-8 * random.uniform());
  });
  return b;
}

std::optional<Buffer> make_sinks(const Case& c) {
  if (!c.sinks) return std::nullopt;
  Buffer b(option_dtype(c), Dims{c.heads});
  Random random = random_for(c, "sinks");
  b.fill([&](const Dims& index) {
    const double ordinary = random.normal();
    if (c.sink_value == 0) return ordinary;
    const auto value = static_cast<double>(index[0] % 2 == 0 ? c.sink_value : -c.sink_value);
    return clamp_to_dtype(value, option_dtype(c));
  });
  return b;
}

// Unused rows stay poisoned.
std::optional<Buffer> make_dlse(const Case& c) {
  if (!c.lse_gradient || !c.has_backward()) return std::nullopt;
  const Geometry g(c);
  Buffer b(DType::f32, lay_out(g.lse(), c.layout, g.lse_axes(), Role::input));
  Random random = random_for(c, "dlse");
  for (std::size_t n = 0; n < static_cast<std::size_t>(c.sequences()); ++n)
    for (std::int64_t row = 0; row < g.used_queries(n).second; ++row)
      for (std::int64_t h = 0; h < c.heads; ++h) b.set(g.lse_index(n, row, h), random.normal());
  return b;
}

std::optional<Tensor> view(const std::optional<Buffer>& b) {
  if (!b) return std::nullopt;
  return b->tensor();
}

}  // namespace

Inputs::Inputs(const Case& c)
    : what(c),
      q(make_queries(c, "q", c.head_dim)),
      k(make_keys(c, "k", c.head_dim)),
      v(make_keys(c, "v", c.value_dim)),
      dout(make_queries(c, "dout", c.value_dim)),
      seqused_q(optional_vector(c.seqused_q)),
      seqused_k(optional_vector(c.seqused_k)),
      leftpad_k(optional_vector(c.leftpad_k)),
      block_table(make_block_table(c)),
      cache_batch_idx(make_cache_index(c)),
      k_descale(make_descale(c, "k_descale")),
      v_descale(make_descale(c, "v_descale")),
      mask(make_mask(c, Geometry(c))),
      alibi(make_slopes(c)),
      bias(make_bias(c, Geometry(c))),
      sinks(make_sinks(c)),
      dlse(make_dlse(c)),
      k_new(make_new(c, "k_new", c.head_dim)),
      v_new(make_new(c, "v_new", c.value_dim)),
      rotary_cos(make_rotary(c, std::cos)),
      rotary_sin(make_rotary(c, std::sin)),
      rotary_seqlens(optional_vector(c.rotary_seqlens)) {
  if (c.packed()) cu_seqlens_q = vector_of(Geometry(c).cumulative(c.lengths_q));
  if (!c.lengths_k.empty()) cu_seqlens_k = vector_of(Geometry(c).cumulative(c.lengths_k));
  if (c.packed_new) cu_seqlens_k_new = vector_of(Geometry(c).cumulative(c.appended));
}

double stored_value(const Case& c, const std::optional<Buffer>& descale, std::size_t sequence,
                    std::int64_t row, std::int64_t head, double x) {
  const DType dtype = c.cache_dtype.value_or(c.dtype);
  if (!is_8_bit(dtype)) return x;
  const double scale = descale ? descale->get(Geometry(c).scale_index(sequence, row, head)) : 1.0;
  const auto quotient = static_cast<double>(static_cast<float>(x) / static_cast<float>(scale));
  return std::clamp(quotient, -largest_finite(dtype), largest_finite(dtype));
}

Tensor first_columns(const Tensor& whole, std::int64_t columns) {
  Dims shape = whole.shape();
  shape[shape.size() - 1] = columns;
  return {whole.data(), whole.dtype(), shape, whole.strides(), whole.device()};
}

Problem Inputs::problem() const {
  Random random = random_for(what, "dropout");
  Problem p;
  p.q = q.tensor();
  p.k = k.tensor();
  p.v = what.mla ? first_columns(p.k, what.value_dim) : v.tensor();
  p.cu_seqlens_q = view(cu_seqlens_q);
  p.cu_seqlens_k = view(cu_seqlens_k);
  p.seqused_q = view(seqused_q);
  p.seqused_k = view(seqused_k);
  p.leftpad_k = view(leftpad_k);
  if (what.packed()) {
    p.max_seqlen_q = Geometry(what).longest_q();
    p.max_seqlen_k = Geometry(what).longest_k();
  }
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
  p.num_splits = what.splits;
  p.block_table = view(block_table);
  p.cache_batch_idx = view(cache_batch_idx);
  p.k_descale = view(k_descale);
  p.v_descale = what.mla ? p.k_descale : view(v_descale);
  return p;
}

Append Inputs::append() const {
  return {.k_new = view(k_new),
          .v_new = what.mla && k_new ? first_columns(k_new->tensor(), what.value_dim) : view(v_new),
          .cu_seqlens_k_new = view(cu_seqlens_k_new),
          .rotary_cos = view(rotary_cos),
          .rotary_sin = view(rotary_sin),
          .rotary_seqlens = view(rotary_seqlens),
          .rotary_interleaved = what.rotary_interleaved};
}

std::uint64_t Inputs::fingerprint() const {
  std::uint64_t hash = 0;
  const auto add = [&](const Buffer& b) {
    const std::byte* bytes = b.bytes().data();
    std::uint64_t word = 0;  // a partial last word keeps bytes of the preceding one
    for (std::size_t n = 0; n < b.bytes().size(); n += sizeof word) {
      std::memcpy(&word, bytes + n, std::min(sizeof word, b.bytes().size() - n));
      hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
  };
  for (const Buffer* b : {&q, &dout}) add(*b);
  for (const Buffer* b : {&k, &v}) {
    if (what.appended.empty()) add(*b);
  }
  for (const auto* b : {&cu_seqlens_q,
                        &cu_seqlens_k,
                        &seqused_q,
                        &seqused_k,
                        &leftpad_k,
                        &block_table,
                        &cache_batch_idx,
                        &k_descale,
                        &v_descale,
                        &mask,
                        &alibi,
                        &bias,
                        &sinks,
                        &dlse,
                        &k_new,
                        &v_new,
                        &cu_seqlens_k_new,
                        &rotary_cos,
                        &rotary_sin,
                        &rotary_seqlens}) {
    if (*b) add(**b);
  }
  return hash;
}

namespace {

Buffer output(const Case& c, bool exact, DType dtype, const Dims& shape, Axes axes) {
  const Layout layout = exact ? Layout::compact : c.layout;
  return {dtype, lay_out(shape, layout, axes, Role::output)};
}

std::optional<Buffer> weights_output(const Case& c, bool exact) {
  if (!c.weights) return std::nullopt;
  return output(c, exact, exact ? DType::f32 : option_dtype(c), Geometry(c).per_score({}),
                Geometry::score_axes());
}

// With a broadcast bias (Layout::broadcast) every element has a separate gradient.
std::optional<Buffer> bias_output(const Case& c, bool exact) {
  if (!c.bias) return std::nullopt;
  return output(c, exact, exact ? DType::f64 : option_dtype(c), Geometry(c).per_score(*c.bias),
                Geometry::score_axes());
}

std::optional<Buffer> slopes_output(const Case& c) {
  if (c.alibi == Slopes::none) return std::nullopt;
  return Buffer(DType::f32,
                c.alibi == Slopes::per_head ? Dims{c.heads} : Dims{c.sequences(), c.heads});
}

// On GPUs delta is in the workspace if it is not requested: half of the seeds request it. Its last
// stride must be 1.
std::optional<Buffer> delta_output(const Case& c) {
  if (c.seed % 2 != 0) return std::nullopt;
  return output(c, true, DType::f32, Geometry(c).lse(), Geometry(c).lse_axes());
}

std::optional<Buffer> sinks_output(const Case& c) {
  if (!c.sinks) return std::nullopt;
  return Buffer(DType::f32, Dims{c.heads});
}

}  // namespace

Outputs::Outputs(const Case& c, bool exact)
    : gradients(c.has_backward()),
      out(output(c, exact, exact ? DType::f64 : c.dtype, Geometry(c).query_tensor(c.value_dim),
                 Geometry(c).query_axes())),
      lse(output(c, exact, DType::f32, Geometry(c).lse(), Geometry(c).lse_axes())),
      s_dmask(weights_output(c, exact)),
      dq(output(c, exact, out.dtype(), Geometry(c).query_tensor(c.head_dim),
                Geometry(c).query_axes())),
      dk(output(c, exact, out.dtype(), Geometry(c).key_tensor(c.head_dim), Geometry(c).key_axes())),
      dv(output(c, exact, out.dtype(), Geometry(c).key_tensor(c.value_dim),
                Geometry(c).key_axes())),
      dsinks(sinks_output(c)),
      dbias(bias_output(c, exact)),
      dalibi_slopes(slopes_output(c)),
      delta(delta_output(c)) {}

ForwardOutputs Outputs::forward() const { return {out.tensor(), lse.tensor(), view(s_dmask)}; }

BackwardTensors Outputs::backward(const Inputs& inputs) const {
  return {inputs.dout.tensor(), out.tensor(), lse.tensor(),     dq.tensor(),
          dk.tensor(),          dv.tensor(),  view(dsinks),     view(dbias),
          view(dalibi_slopes),  view(delta),  view(inputs.dlse)};
}

std::vector<Outputs::Named> Outputs::all() {
  return {{"out", &out, false},
          {"lse", &lse, false},
          {"s_dmask", s_dmask ? &*s_dmask : nullptr, false},
          {"dq", gradients ? &dq : nullptr, true},
          {"dk", gradients ? &dk : nullptr, true},
          {"dv", gradients ? &dv : nullptr, true},
          {"dsinks", gradients && dsinks ? &*dsinks : nullptr, true},
          {"dbias", gradients && dbias ? &*dbias : nullptr, true},
          {"dalibi_slopes", gradients && dalibi_slopes ? &*dalibi_slopes : nullptr, true},
          {"delta", gradients && delta ? &*delta : nullptr, true}};
}

}  // namespace rocflash::verify
