#include "fuzz/problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace rocflash::fuzz {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

ScoreErrors score_errors(const ScoreSizes& z) {
  const double u = unit(DType::f32);
  const double raw = (z.d + 8) * u * z.dot;
  const double total = (z.cap > 0 ? z.cap : z.dot) + z.added;
  const double score = raw + 16 * u * total;
  return {raw, total, score, 2 * score + (z.sk + 64) * u};
}

double out_error(const ScoreErrors& e, int sk, double values, DType dtype) {
  const double u = unit(DType::f32);
  // A device may round weights to bf16 for bf16 problems, as naive attention does.
  const double weight = e.weight + (dtype == DType::bf16 ? unit(dtype) : 0);
  return weight * values + (sk + 8) * u * values;
}

Problem::Problem(Bytes& bytes, bool exact) {
  constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
  Bytes* strides = exact ? &bytes : nullptr;
  dtype = bytes.pick(dtypes);
  b = bytes.range(0, 3);
  hk = bytes.range(1, 2);
  h = hk * bytes.range(1, 3);
  sq = bytes.range(0, 5);
  sk = bytes.range(0, 9);
  d = bytes.range(1, 9);
  dv = bytes.range(1, 9);
  // Sometimes more rows than a tile or more columns than a vector.
  if (bytes.chance(8)) sq = 60 + bytes.range(0, 20);
  if (bytes.chance(12)) sk = 60 + bytes.range(0, 80);
  if (bytes.chance(12)) d = 10 + bytes.range(0, 60);
  if (bytes.chance(12)) dv = 10 + bytes.range(0, 60);
  varlen = bytes.chance(80);
  draw_lengths(bytes);
  if (varlen) {
    q = Tensor(dtype, {total_q, h, d}, strides, true);
    k = Tensor(dtype, {total_k, hk, d}, strides, true);
    v = Tensor(dtype, {total_k, hk, dv}, strides, true);
    dout = Tensor(dtype, {total_q, h, dv}, strides, true);
  } else {
    q = Tensor(dtype, {b, sq, h, d}, strides, true);
    k = Tensor(dtype, {b, sk, hk, d}, strides, true);
    v = Tensor(dtype, {b, sk, hk, dv}, strides, true);
    dout = Tensor(dtype, {b, sq, h, dv}, strides, true);
  }
  draw_options(bytes, strides);
  fill(bytes);
  wants_lse = true;
  wants_s_dmask = bytes.chance(64);
  for (bool& w : wants) w = !bytes.chance(48);
  wants_dsinks = sinks && !bytes.chance(64);
  wants_dbias = bias && !bytes.chance(64);
  wants_dalibi = alibi && !bytes.chance(64);
  if (!wants[0] && !wants[1] && !wants[2] && !wants_dsinks && !wants_dbias && !wants_dalibi)
    wants[0] = true;
  wants_delta = bytes.chance(128);
}

// Draws varlen sequences, used lengths and left padding; sq and sk become the longest lengths.
void Problem::draw_lengths(Bytes& bytes) {
  std::vector<int> q_lengths(static_cast<std::size_t>(b), sq),
      k_lengths(static_cast<std::size_t>(b), sk);
  if (varlen) {
    cu_q = Tensor(DType::i32, {b + 1});
    cu_k = Tensor(DType::i32, {b + 1});
    int q_row = bytes.chance(32) ? bytes.range(0, 2) : 0,
        k_row = bytes.chance(32) ? bytes.range(0, 2) : 0;
    int longest_q = 0, longest_k = 0;
    cu_q.set(0, q_row);
    cu_k.set(0, k_row);
    for (int n = 0; n < b; ++n) {
      const auto at = static_cast<std::size_t>(n);
      q_lengths[at] = bytes.range(0, sq);
      k_lengths[at] = bytes.range(0, sk);
      longest_q = std::max(longest_q, q_lengths[at]);
      longest_k = std::max(longest_k, k_lengths[at]);
      cu_q.set(n + 1, q_row += q_lengths[at]);
      cu_k.set(n + 1, k_row += k_lengths[at]);
    }
    sq = longest_q;
    sk = longest_k;
    total_q = q_row + (bytes.chance(32) ? bytes.range(0, 3) : 0);
    total_k = k_row + (bytes.chance(32) ? bytes.range(0, 3) : 0);
  }
  const auto lengths = [&](Tensor& t, const std::vector<int>& most) {
    t = Tensor(DType::i32, {b});
    for (int n = 0; n < b; ++n) t.set(n, bytes.range(0, most[static_cast<std::size_t>(n)]));
  };
  if (bytes.chance(32)) lengths(used_q, q_lengths);
  if (bytes.chance(32)) lengths(used_k, k_lengths);
  if (bytes.chance(32)) {
    if (used_k)
      for (int n = 0; n < b; ++n)
        k_lengths[static_cast<std::size_t>(n)] = static_cast<int>(used_k.get(n));
    lengths(leftpad, k_lengths);
  }
}

void draw_window(Bytes& bytes, int most, std::int64_t (&window)[2], rocflash_problem& c) {
  for (std::int64_t& side : window) side = bytes.range(-1, most);
  c.window = window;
}

void Problem::draw_options(Bytes& bytes, Bytes* strides) {
  const auto broadcastable = [&](DType t) {
    const int full[] = {b, h, sq, sk};
    std::int64_t size[4];
    for (int n = 0; n < 4; ++n) size[n] = bytes.chance(64) ? 1 : full[n];
    // The last dimension may have any stride too, but the drawn ones are contiguous.
    return Tensor(t, {size[0], size[1], size[2], size[3]}, strides, true);
  };
  const auto option_dtype = [&] { return bytes.chance(64) ? DType::f32 : dtype; };
  c.struct_size = sizeof c;
  c.causal = bytes.chance(80);
  if (bytes.chance(48)) draw_window(bytes, 12, window, c);
  if (bytes.chance(24)) c.attention_chunk = bytes.range(1, 12);
  if (bytes.chance(40)) mask = broadcastable(DType::boolean);
  if (bytes.chance(40)) bias = broadcastable(option_dtype());
  if (bytes.chance(40))
    alibi = bytes.chance(128) ? Tensor(DType::f32, {b, h}) : Tensor(DType::f32, {h});
  if (bytes.chance(48)) sinks = Tensor(option_dtype(), {h});
  if (bytes.chance(48)) {
    scale = static_cast<float>(bytes.range(-100, 100)) / 64;
    c.softmax_scale = &scale;
  }
  if (bytes.chance(48)) c.softcap = static_cast<float>(bytes.range(1, 200)) / 16;
  if (bytes.chance(64)) {
    c.dropout_p = static_cast<float>(bytes.range(1, 230)) / 256;
    c.dropout_seed = bytes.raw<std::uint64_t>();
    c.dropout_offset = bytes.raw<std::uint64_t>();
  }
  c.deterministic = bytes.chance(32);
  c.num_splits = bytes.chance(32) ? bytes.range(1, 5) : 0;
  if (varlen && bytes.chance(32)) c.max_seqlen_q = sq;
  if (varlen && bytes.chance(32)) c.max_seqlen_k = sk;
  if (bytes.chance(64))
    dlse = varlen ? Tensor(DType::f32, {h, total_q}, strides, true)
                  : Tensor(DType::f32, {b, h, sq}, strides, true);
}

void Problem::fill(Bytes& bytes) {
  Random random{bytes.raw<std::uint32_t>()};
  for (Tensor* t : {&q, &k, &v, &dout, &bias, &sinks, &dlse})
    for (std::int64_t n = 0; n < t->size(); ++n) t->set(n, random.value());
  for (std::int64_t n = 0; n < alibi.size(); ++n) alibi.set(n, random.uniform());
  for (std::int64_t n = 0; n < mask.size(); ++n) mask.set(n, random.bits() % 4 != 0);
  if (bytes.chance(48))
    for (std::int64_t n = 0; n < bias.size(); ++n)
      if (random.bits() % 4 == 0) bias.set(n, -infinity);
  // NaN and infinities: such calls must not crash, and are not compared.
  if (bytes.chance(16)) {
    for (Tensor* t : {&q, &k, &v, &dout, &sinks, &dlse}) {
      if (t->size() == 0 || random.bits() % 2 == 0) continue;
      const double extreme[] = {std::nan(""), infinity, -infinity, 3e38, -3e38, 1e-45};
      t->set(static_cast<std::int64_t>(random.bits() % static_cast<std::uint64_t>(t->size())),
             extreme[random.bits() % 6]);
    }
  }
  const auto of = [](Tensor& t) { return t ? &t.dl : nullptr; };
  c.q = of(q);
  c.k = of(k);
  c.v = of(v);
  c.cu_seqlens_q = of(cu_q);
  c.cu_seqlens_k = of(cu_k);
  c.seqused_q = of(used_q);
  c.seqused_k = of(used_k);
  c.leftpad_k = of(leftpad);
  c.mask = of(mask);
  c.bias = of(bias);
  c.alibi_slopes = of(alibi);
  c.sinks = of(sinks);
}

void Problem::print() const {
  std::fprintf(stderr, "%s b=%d h=%d hk=%d sq=%d sk=%d d=%d dv=%d%s causal=%d", name_of(dtype), b,
               h, hk, sq, sk, d, dv, varlen ? " varlen" : "", c.causal);
  if (c.window)
    std::fprintf(stderr, " window=%d,%d", static_cast<int>(window[0]), static_cast<int>(window[1]));
  std::fprintf(stderr, " chunk=%d scale=%g softcap=%g dropout=%g splits=%d",
               static_cast<int>(c.attention_chunk),
               c.softmax_scale ? double{*c.softmax_scale} : 0.0, double{c.softcap},
               double{c.dropout_p}, c.num_splits);
  const auto list = [](const char* name, const Tensor& t) {
    if (!t) return;
    std::fprintf(stderr, " %s=", name);
    for (std::int64_t n = 0; n < t.size(); ++n) std::fprintf(stderr, n ? ",%g" : "%g", t.get(n));
  };
  list("cu_q", cu_q);
  list("cu_k", cu_k);
  list("used_q", used_q);
  list("used_k", used_k);
  list("leftpad", leftpad);
  list("alibi", alibi);
  list("sinks", sinks);
  std::fprintf(stderr, "%s%s%s\n", mask ? " mask" : "", bias ? " bias" : "", dlse ? " dlse" : "");
}

std::vector<Tensor*> Problem::inputs() {
  std::vector<Tensor*> all;
  for (Tensor* t : {&q, &k, &v, &dout, &cu_q, &cu_k, &used_q, &used_k, &leftpad, &mask, &alibi,
                    &bias, &sinks, &dlse}) {
    if (*t) all.push_back(t);
  }
  return all;
}

void Problem::make_outputs(Outputs& o, bool for_reference, Bytes* strides) const {
  const DType t = for_reference ? DType::f64 : dtype;
  const auto query = [&](int columns) {
    return varlen ? Tensor(t, {total_q, h, columns}, strides)
                  : Tensor(t, {b, sq, h, columns}, strides);
  };
  const auto key = [&](int columns) {
    return varlen ? Tensor(t, {total_k, hk, columns}, strides)
                  : Tensor(t, {b, sk, hk, columns}, strides);
  };
  o.out = query(dv);
  if (wants_lse)
    o.lse = varlen ? Tensor(DType::f32, {h, total_q}, strides)
                   : Tensor(DType::f32, {b, h, sq}, strides);
  if (wants_s_dmask) o.s_dmask = Tensor(DType::f32, {b, h, sq, sk}, strides);
  if (wants[0]) o.dq = query(d);
  if (wants[1]) o.dk = key(d);
  if (wants[2]) o.dv = key(dv);
  if (wants_dsinks) o.dsinks = Tensor(DType::f32, {h}, strides);
  if (wants_delta)
    o.delta = varlen ? Tensor(DType::f32, {h, total_q}, strides)
                     : Tensor(DType::f32, {b, h, sq}, strides);
  if (wants_dbias)
    o.dbias = Tensor(for_reference ? DType::f64 : bias.dtype(),
                     {bias.shape[0], bias.shape[1], bias.shape[2], bias.shape[3]}, strides);
  if (wants_dalibi)
    o.dalibi = alibi.dl.ndim == 2 ? Tensor(DType::f32, {b, h}) : Tensor(DType::f32, {h});
}

void Problem::set_pointers(const Outputs& o, rocflash_forward_outputs& f,
                           rocflash_backward_tensors& g) const {
  const auto of = [](const Tensor& t) { return t ? &t.dl : nullptr; };
  f = {sizeof f, of(o.out), of(o.lse), of(o.s_dmask)};
  g = {sizeof g, of(dout),     of(o.out),   of(o.lse),    of(o.dq),    of(o.dk),
       of(o.dv), of(o.dsinks), of(o.dbias), of(o.dalibi), of(o.delta), of(dlse)};
}

bool Problem::comparable() const {
  for (const Tensor* t : {&q, &k, &v, &dout, &sinks, &dlse})
    for (std::int64_t n = 0; n < t->size(); ++n)
      if (!(std::abs(t->get(n)) <= 2)) return false;
  const double s = c.softmax_scale ? std::abs(double{*c.softmax_scale}) : 1;
  return s <= 2 && (c.softcap == 0 || (c.softcap >= 0.05f && c.softcap <= 100)) &&
         c.dropout_p <= 0.95f && c.attention_chunk >= 0;
}

// A first-order bound of f32 rounding errors, doubled. u is f32's unit roundoff, t that of the
// dtype of the results and, between forward and backward, of out.
std::vector<double> Problem::bounds(const Outputs& reference) const {
  const double u = unit(DType::f32), t = unit(dtype);
  const double s = c.softmax_scale ? std::abs(double{*c.softmax_scale}) : 1 / std::sqrt(double(d));
  const double drop = 1 / (1 - double{c.dropout_p});
  const double cap = double{c.softcap};
  double bias_size = 0;
  for (std::int64_t n = 0; n < bias.size(); ++n)
    if (std::isfinite(bias.get(n))) bias_size = std::max(bias_size, std::abs(bias.get(n)));
  const double qs = q.largest(), ks = k.largest(), vs = v.largest(), ds = dout.largest();
  const ScoreErrors e = score_errors(
      {d, sk, d * qs * ks * s, cap, alibi.largest() * (sq + sk) + bias_size + sinks.largest()});
  const auto& [raw, total, score, weight] = e;
  const double slope = cap > 0 ? 2 * raw / cap + 32 * u : 0;
  const double dp = dv * ds * vs * drop + dlse.largest();  // the size of d(loss) / d(weight)
  const double delta = t * dv * ds * vs * drop + (dv + 8) * u * dp;
  const double each =
      (2 * weight + 2 * slope) * dp + (dv + 8) * u * dp + delta;  // error of ds / weight
  const double rows = static_cast<double>(sq) * (h / hk);
  const double terms = static_cast<double>(b) * h * sq;
  const double tiny = 0x1p-24;  // the smallest step of f16
  const auto stored = [&](const Tensor& x, double step) {
    return x ? step * x.largest() + tiny : 0;
  };
  const double lse_size = total + std::log(2.0 + sk);
  const double out = out_error(e, sk, vs * drop, dtype) + stored(reference.out, t);
  std::vector<double> list = {
      out, score + 8 * u * lse_size, weight + tiny,
      (each + (sk + 8) * u * 2 * dp) * ks * s + stored(reference.dq, t),
      rows * (each + (rows + 8) * u * 2 * dp) * qs * s + stored(reference.dk, t),
      rows * (weight + (rows + 8) * u) * ds * drop + stored(reference.dv, t),
      b * static_cast<double>(sq) * (each + (sq + 8) * u * dp) + stored(reference.dsinks, u),
      // A query's weights sum to 1, so its error is at most that of one key with weight 1.
      terms * (each + (terms + 8) * u * 2 * dp) +
          stored(reference.dbias, bias ? unit(bias.dtype()) : 0),
      terms * (sq + sk) * (each + (terms + 8) * u * 2 * dp) + stored(reference.dalibi, u),
      dv * ds * out + delta};
  for (double& x : list) x *= 2;
  return list;
}

}  // namespace rocflash::fuzz
