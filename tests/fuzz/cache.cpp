#include "fuzz/cache.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace rocflash::fuzz {
namespace {

// The numbers 0 to count - 1 in random order.
std::vector<int> shuffled(Bytes& bytes, int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  Random random{bytes.raw<std::uint16_t>()};
  for (std::size_t n = all.size(); n > 1; --n) std::swap(all[n - 1], all[random.bits() % n]);
  return all;
}

int sum(const std::vector<int>& of) { return std::accumulate(of.begin(), of.end(), 0); }

}  // namespace

CacheCall::CacheCall(Bytes& bytes, bool exact) {
  constexpr DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
  constexpr Kind kinds[] = {Kind::dense, Kind::paged, Kind::indexed, Kind::paged};
  Bytes* strides = exact ? &bytes : nullptr;
  dtype = cache = bytes.pick(dtypes);
  if (dtype == DType::f32 && bytes.chance(48)) cache = bytes.pick(dtypes);
  kind = bytes.pick(kinds);
  b = bytes.range(0, 3);
  hk = bytes.range(1, 3);
  h = hk * bytes.range(1, 4);
  sq = bytes.chance(64) ? bytes.range(0, 5) : 1;
  d = bytes.range(1, 20);
  dv = bytes.range(1, 20);
  if (bytes.chance(24)) d = 20 + bytes.range(0, 120);
  if (bytes.chance(24)) dv = 20 + bytes.range(0, 120);
  capacity = bytes.range(1, 12);
  if (bytes.chance(48)) capacity = 60 + bytes.range(0, 140);
  queries.assign(static_cast<std::size_t>(b), sq);
  draw_cache(bytes, strides);
  draw_new(bytes, strides);
  const bool varlen = bytes.chance(48);
  if (varlen) {
    cu_q = Tensor(DType::i32, {b + 1});
    cu_q.set(0, 0);
    for (int n = 0, row = 0; n < b; ++n) {
      queries[static_cast<std::size_t>(n)] = bytes.range(0, sq);
      cu_q.set(n + 1, row += queries[static_cast<std::size_t>(n)]);
    }
    q = Tensor(dtype, {sum(queries), h, d}, strides, true);
    out = Tensor(dtype, {sum(queries), h, dv}, strides);
    lse = Tensor(DType::f32, {h, sum(queries)}, strides);
  } else {
    q = Tensor(dtype, {b, sq, h, d}, strides, true);
    out = Tensor(dtype, {b, sq, h, dv}, strides);
    lse = Tensor(DType::f32, {b, h, sq}, strides);
  }
  draw_options(bytes);
  draw_rotary(bytes);
  fill(bytes);
}

// Draws the number of cached keys, the capacity and the cache's layout. Caches are written, so no
// two elements may share an address.
void CacheCall::draw_cache(Bytes& bytes, Bytes* strides) {
  used.resize(static_cast<std::size_t>(b));
  for (int& n : used) n = bytes.range(0, capacity);
  if (kind == Kind::paged) {
    page = bytes.chance(64) ? bytes.range(1, 70) : bytes.range(1, 5);
    const int each = (capacity + page - 1) / page;
    capacity = each * page;
    const std::vector<int> pages = shuffled(bytes, b * each + bytes.range(0, 2));
    table = Tensor(DType::i32, {b, each});
    for (std::int64_t n = 0; n < table.size(); ++n)
      table.set(n, pages[static_cast<std::size_t>(n)]);
    const auto count = static_cast<std::int64_t>(pages.size());
    k = Tensor(cache, {count, page, hk, d}, strides);
    v = Tensor(cache, {count, page, hk, dv}, strides);
    return;
  }
  const int caches = b + (kind == Kind::indexed ? bytes.range(0, 2) : 0);
  k = Tensor(cache, {caches, capacity, hk, d}, strides);
  v = Tensor(cache, {caches, capacity, hk, dv}, strides);
  if (kind == Kind::dense) return;
  const std::vector<int> order = shuffled(bytes, caches);
  index = Tensor(DType::i32, {b});
  for (int n = 0; n < b; ++n) index.set(n, order[static_cast<std::size_t>(n)]);
}

void CacheCall::draw_new(Bytes& bytes, Bytes* strides) {
  appended.assign(static_cast<std::size_t>(b), 0);
  if (bytes.chance(200)) {
    const bool varlen = bytes.chance(80);
    const int most = bytes.range(0, std::min(capacity, 6));
    for (std::size_t n = 0; n < appended.size(); ++n) {
      appended[n] = varlen ? bytes.range(0, most) : most;
      used[n] = std::min(used[n], capacity - appended[n]);
    }
    if (varlen) {
      cu_new = Tensor(DType::i32, {b + 1});
      cu_new.set(0, 0);
      for (int n = 0, row = 0; n < b; ++n)
        cu_new.set(n + 1, row += appended[static_cast<std::size_t>(n)]);
      k_new = Tensor(cache, {sum(appended), hk, d}, strides, true);
      v_new = Tensor(cache, {sum(appended), hk, dv}, strides, true);
    } else {
      k_new = Tensor(cache, {b, most, hk, d}, strides, true);
      v_new = Tensor(cache, {b, most, hk, dv}, strides, true);
    }
  }
  used_k = Tensor(DType::i32, {b});
  for (int n = 0; n < b; ++n) used_k.set(n, used[static_cast<std::size_t>(n)]);
  if (bytes.chance(48)) {
    leftpad = Tensor(DType::i32, {b});
    for (int n = 0; n < b; ++n) leftpad.set(n, bytes.range(0, used[static_cast<std::size_t>(n)]));
  }
}

void CacheCall::draw_options(Bytes& bytes) {
  rocflash_problem& c = problem.s;
  c.struct_size = sizeof c;
  c.causal = bytes.chance(128);
  if (bytes.chance(40)) draw_window(bytes, 20, window, c);
  if (bytes.chance(40))
    alibi = bytes.chance(128) ? Tensor(DType::f32, {b, h}) : Tensor(DType::f32, {h});
  if (bytes.chance(40)) sinks = Tensor(dtype, {h});
  if (bytes.chance(40)) c.softcap = static_cast<float>(bytes.range(1, 200)) / 16;
  if (bytes.chance(64)) c.num_splits = bytes.range(1, 6);
}

void CacheCall::draw_rotary(Bytes& bytes) {
  append.s.struct_size = sizeof append.s;
  if (d < 2 || !bytes.chance(100)) return;
  const bool given = bytes.chance(64);
  if (given) rotary_start = Tensor(DType::i32, {b});
  int positions = 1;
  for (std::size_t n = 0; n < used.size(); ++n) {
    const int first = given ? bytes.range(0, 30) : used[n];
    if (given) rotary_start.set(static_cast<std::int64_t>(n), first);
    positions = std::max(positions, first + std::max({queries[n], appended[n], 1}));
  }
  const int pairs = bytes.range(1, d / 2);
  const DType t = bytes.chance(128) ? DType::f32 : dtype;
  cos = Tensor(t, {positions, pairs});
  sin = Tensor(t, {positions, pairs});
  for (std::int64_t n = 0; n < cos.size(); ++n) {
    const double angle = 0.1 * static_cast<double>(n / pairs) * static_cast<double>(n % pairs + 1);
    cos.set(n, std::cos(angle));
    sin.set(n, std::sin(angle));
  }
  append.s.rotary_interleaved = bytes.chance(128);
}

void CacheCall::fill(Bytes& bytes) {
  Random random{bytes.raw<std::uint32_t>()};
  for (Tensor* t : {&q, &k, &v, &k_new, &v_new, &sinks})
    for (std::int64_t n = 0; n < t->size(); ++n) t->set(n, random.value());
  for (std::int64_t n = 0; n < alibi.size(); ++n) alibi.set(n, random.uniform());
  const auto of = [](Tensor& t) { return t ? &t.dl : nullptr; };
  rocflash_problem& c = problem.s;
  c.q = of(q);
  c.k = of(k);
  c.v = of(v);
  c.cu_seqlens_q = of(cu_q);
  c.seqused_k = of(used_k);
  c.leftpad_k = of(leftpad);
  c.alibi_slopes = of(alibi);
  c.sinks = of(sinks);
  c.block_table = of(table);
  c.cache_batch_idx = of(index);
  append.s.k_new = of(k_new);
  append.s.v_new = of(v_new);
  append.s.cu_seqlens_k_new = of(cu_new);
  append.s.rotary_cos = of(cos);
  append.s.rotary_sin = of(sin);
  append.s.rotary_seqlens = of(rotary_start);
  outputs.s = {sizeof outputs.s, of(out), of(lse), nullptr};
  execution.s.struct_size = sizeof execution.s;
  execution.s.num_threads = bytes.chance(32) ? bytes.range(1, 4) : 1;
}

void CacheCall::corrupt(Bytes& bytes) {
  Tensor* const all[] = {&q,      &k,       &v,     &out,   &lse,          &k_new,
                         &v_new,  &cu_new,  &cos,   &sin,   &rotary_start, &cu_q,
                         &used_k, &leftpad, &table, &index, &alibi};
  Tensor* const ints[] = {&table, &index, &used_k, &leftpad, &cu_new, &rotary_start, &cu_q};
  switch (bytes.range(0, 5)) {
    case 0:
      if (Tensor& t = *bytes.pick(all); t) corrupt_tensor(bytes, t);
      break;
    case 1:
    case 2: {  // lengths and pages out of range, or one page shared by two sequences
      Tensor& t = *bytes.pick(ints);
      if (t.size() == 0) break;
      const auto at = [&] { return bytes.range(0, static_cast<int>(t.size()) - 1); };
      const int n = at();
      t.set(n, bytes.chance(80)    ? bytes.raw<std::int32_t>()
               : bytes.chance(128) ? t.get(at())
                                   : t.get(n) + bytes.range(-3, 3));
      break;
    }
    case 3:
      switch (bytes.range(0, 3)) {
        case 0:
          corrupt_size(bytes, problem);
          break;
        case 1:
          corrupt_size(bytes, append);
          break;
        case 2:
          corrupt_size(bytes, outputs);
          break;
        default:
          corrupt_size(bytes, execution);
      }
      break;
    case 4: {
      const DLTensor** const pointers[] = {&append.s.k_new,
                                           &append.s.v_new,
                                           &append.s.rotary_cos,
                                           &append.s.rotary_sin,
                                           &outputs.s.out,
                                           &problem.s.block_table,
                                           &problem.s.seqused_k,
                                           &problem.s.k,
                                           &append.s.cu_seqlens_k_new,
                                           &problem.s.cu_seqlens_k,
                                           &append.s.rotary_seqlens};
      const DLTensor** one = bytes.pick(pointers);
      *one = bytes.chance(128) ? nullptr : *bytes.pick(pointers);
      break;
    }
    default:
      if (bytes.chance(128))
        append.s.rotary_interleaved = bytes.raw<std::int32_t>();
      else
        problem.s.num_splits = bytes.raw<std::int32_t>();
  }
}

ScoreErrors CacheCall::errors() const {
  const double grown = cos ? 1.5 : 1;  // a rotation may add up the two elements of a pair
  const double qs = grown * q.largest(), ks = std::max(k.largest(), grown * k_new.largest());
  return score_errors({d, capacity, d * qs * ks / std::sqrt(static_cast<double>(d)),
                       static_cast<double>(problem.s.softcap),
                       alibi.largest() * (sq + capacity) + sinks.largest()});
}

double CacheCall::out_bound(double largest) const {
  const double values = std::max(v.largest(), v_new.largest());
  return 2 * (out_error(errors(), capacity, values, dtype) + unit(dtype) * largest + 0x1p-24);
}

double CacheCall::lse_bound() const {
  const ScoreErrors e = errors();
  return 2 * (e.score + 8 * unit(DType::f32) * (e.total + std::log(2.0 + capacity)));
}

void CacheCall::print() const {
  std::fprintf(stderr,
               "decode %s cache %s b=%d h=%d hk=%d sq=%d capacity=%d d=%d dv=%d page=%d causal=%d",
               name_of(dtype), name_of(cache), b, h, hk, sq, capacity, d, dv,
               kind == Kind::paged ? page : 0, problem.s.causal);
  if (problem.s.window)
    std::fprintf(stderr, " window=%d,%d", static_cast<int>(window[0]), static_cast<int>(window[1]));
  std::fprintf(stderr, " softcap=%g splits=%d rotary=%d%s", static_cast<double>(problem.s.softcap),
               problem.s.num_splits, cos ? static_cast<int>(2 * cos.shape[1]) : 0,
               append.s.rotary_interleaved ? " interleaved" : "");
  for (std::size_t n = 0; n < used.size(); ++n)
    std::fprintf(stderr, " %d+%d", used[n], appended[n]);
  std::fprintf(stderr, "%s%s%s%s\n", cu_q ? " varlen" : "", leftpad ? " leftpad" : "",
               alibi ? " alibi" : "", sinks ? " sinks" : "");
}

}  // namespace rocflash::fuzz
