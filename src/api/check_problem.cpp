// Validation of rocflash_problem: q, k and v, lengths, block table and options become one Problem.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "api/check.hpp"
#include "core/error.hpp"

namespace rocflash {
namespace {

constexpr int max_splits = 1024;

std::int64_t max_seqlen(const std::int32_t* cu, std::int64_t batch) {
  std::int32_t most = 0;
  for (std::int64_t b = 0; b < batch; ++b) most = std::max(most, cu[b + 1] - cu[b]);
  return most;
}

std::int64_t check_max_seqlen(const char* name, std::int64_t given, const std::int32_t* cu,
                              std::int64_t batch, std::int64_t rows, bool readable) {
  if (given < 0) refuse(name, " is ", given, "; it must not be negative");
  if (!cu) {
    if (given != 0 && given != rows)
      refuse(name, " is ", given, "; without cu_seqlens it must be 0 or the sequence length, ",
             rows);
    return rows;
  }
  if (!readable) {
    if (given == 0 && batch > 0 && rows > 0)
      refuse(name, " is 0; with cu_seqlens on a GPU it must be the longest sequence length");
    return given;
  }
  const std::int64_t found = max_seqlen(cu, batch);
  if (given != 0 && given < found)
    refuse(name, " is ", given, "; it must be at least the longest sequence length, ", found);
  return given != 0 ? given : found;
}

// seqused and leftpad, against the rows of each sequence.
void check_seqused(const Lengths& l) {
  if (!l.used_q && !l.used_k && !l.leftpad_k) return;
  for (std::int64_t b = 0; b < l.batch; ++b) {
    if (l.used_q && (l.used_q[b] < 0 || l.used_q[b] > l.queries(b)))
      refuse("seqused_q is ", l.used_q[b], " for sequence ", b, "; it must be 0 to its length, ",
             l.queries(b));
    // flash_attn names the block table here too: either it is too small or the length too large.
    if (l.used_k && l.paged && l.used_k[b] > l.rows_k)
      refuse("block_table has a capacity of ", l.rows_k, " keys per sequence; sequence ", b,
             " has ", l.used_k[b]);
    if (l.used_k && (l.used_k[b] < 0 || l.used_k[b] > l.keys(b)))
      refuse("seqused_k is ", l.used_k[b], " for sequence ", b, "; it must be 0 to its length, ",
             l.keys(b));
    const std::int64_t used = l.used_k ? l.used_k[b] : l.keys(b);
    if (l.leftpad_k && (l.leftpad_k[b] < 0 || l.leftpad_k[b] > used))
      refuse("leftpad_k is ", l.leftpad_k[b], " for sequence ", b,
             "; it must be 0 to its number of keys, ", used);
  }
}

Visibility visibility_of(const rocflash_problem& in, const Problem& p) {
  Visibility v;
  const std::int64_t span = p.max_q + p.max_k;
  if (in.window) {
    const char* side[] = {"left", "right"};
    for (int n = 0; n < 2; ++n) {
      if (in.window[n] < -1)
        refuse("window has ", side[n], " bound ", in.window[n], "; it must be -1 (none) or more");
    }
    // Clamped so that adding it to a position cannot overflow. It stays a window even if it masks
    // nothing: rotary positions depend on the option, not on the sequence lengths.
    v.left = std::min(in.window[0], span);
    v.right = std::min(in.window[1], span);
  }
  if (flag("causal", in.causal)) v.right = 0;
  if (in.attention_chunk < 0)
    refuse("attention_chunk is ", in.attention_chunk, "; it must not be negative");
  // Clamped like the window, but to at least 1: 0 means no chunks, also for empty sequences.
  v.chunk = std::min(in.attention_chunk, std::max<std::int64_t>(span, 1));
  return v;
}

Dropout dropout_of(const rocflash_problem& in) {
  if (!(in.dropout_p >= 0.0f && in.dropout_p < 1.0f))
    refuse("dropout_p is ", in.dropout_p, "; it must be in [0, 1)");
  return {in.dropout_p, dropout_threshold(in.dropout_p), in.dropout_seed, in.dropout_offset};
}

// Head dimensions and head counts of q, k and v. A paged k has its own batch size.
void check_sizes(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto from_end = [](const Tensor& t, int n) { return t.shape[t.ndim - n]; };
  const auto heads = [&](const Tensor& t) { return from_end(t, 2); };
  const auto columns = [&](const Tensor& t) { return from_end(t, 1); };
  if (columns(k) != columns(q))
    refuse("k has shape ", k.shape_text(), "; its head dimension must be that of q, ", columns(q));
  for (int n = 0; n < k.ndim - 2; ++n) {
    if (v.shape[n] != k.shape[n])
      refuse("v has shape ", v.shape_text(), "; size ", v.shape[n], " in dimension ", n,
             " must be that of k, ", k.shape[n]);
  }
  if (heads(v) != heads(k))
    refuse("v has shape ", v.shape_text(), "; its number of heads must be that of k, ", heads(k));
  for (const Tensor* t : {&q, &k, &v}) {
    if (heads(*t) < 1)
      refuse(t->name, " has shape ", t->shape_text(), "; it must have at least one head");
    if (columns(*t) < 1 || columns(*t) > max_head_dim)
      refuse(t->name, " has head dimension ", columns(*t), "; it must be 1 to ", max_head_dim);
  }
  if (heads(q) % heads(k) != 0)
    refuse("k has ", heads(k), " heads; the ", heads(q), " heads of q must be a multiple of that");
}

// block_table maps logical blocks to pages of k and v; cache_batch_idx maps sequences to caches.
void check_blocks(const rocflash_problem& in, CallTensors& tensors, const Tensor& k, Problem& p) {
  Lengths& l = p.lengths;
  const auto table = tensors.lengths("block_table", in.block_table);
  const auto index = tensors.lengths("cache_batch_idx", in.cache_batch_idx);
  if (table && index) refuse("cache_batch_idx is given with block_table; one of them must be null");
  Rows& rows = p.k;
  if (table) {
    check_dtype(*table, {DType::i32});
    check_ndim(*table, 2, "(b, pages)");
    if (table->shape[0] != l.batch)
      refuse("block_table has shape ", table->shape_text(), "; it must have one row for each of ",
             l.batch, " sequences");
    if (table->shape[1] > 1 && table->stride[1] != 1)
      refuse("block_table has stride ", table->stride[1], " in its last dimension; it must be 1");
    if (k.shape[1] < 1)
      refuse("k has shape ", k.shape_text(), "; a page must have at least one row");
    rows.blocks = reinterpret_cast<const std::int32_t*>(table->data);
    rows.blocks_stride = table->stride[0];
    rows.block_rows = k.shape[1];
    l.paged = true;
    if (__builtin_mul_overflow(table->shape[1], k.shape[1], &l.rows_k))
      refuse("block_table has ", table->shape[1], " pages of ", k.shape[1],
             " rows; their product must fit in 63 bits");
  } else if (index) {
    rows.blocks = int_values(index, l.batch, "(b,)");
    rows.blocks_stride = 1;
    rows.block_rows = larger(k.shape[1], 1);
  }
  p.v.blocks = rows.blocks;
  p.v.blocks_stride = rows.blocks_stride;
  p.v.block_rows = rows.block_rows;
}

// Every block that holds a key in use must be in range.
void check_block_ids(const Problem& p) {
  if (!p.k.blocks) return;
  const Lengths& l = p.lengths;
  const char* name = l.paged ? "block_table" : "cache_batch_idx";
  for (std::int64_t b = 0; b < l.batch; ++b) {
    const std::int64_t keys = l.used_k ? l.used_k[b] : l.keys(b);
    if (keys > l.rows_k)
      refuse(name, " has a capacity of ", l.rows_k, " keys per sequence; sequence ", b, " has ",
             keys);
    for (std::int64_t n = 0; n * p.k.block_rows < keys; ++n) {
      const std::int32_t id = p.k.blocks[b * p.k.blocks_stride + n];
      if (id < 0 || id >= p.caches)
        refuse(name, " is ", id, " at entry ", n, " of sequence ", b, "; it must be 0 to ",
               p.caches - 1);
    }
  }
}

// The scales of 8-bit keys or values `of`, in one of three shapes.
Descale check_descale(const char* name, const DLTensor* in, const Tensor& of, CallTensors& tensors,
                      const Problem& p) {
  if (!in) return {};
  if (!is_8_bit(of.dtype))
    refuse(name, " is given; ", of.name, " has dtype ", name_of(of.dtype),
           " and no scale, so it must be null");
  // A tensor without dimensions has one element.
  std::int64_t one = 1;
  DLTensor scalar = *in;
  if (in->ndim == 0) {
    scalar.ndim = 1;
    scalar.shape = &one;
    scalar.strides = nullptr;
  }
  const Tensor t = tensors.required(name, &scalar, Access::read);
  check_dtype(t, {DType::f32});
  const std::int64_t caches = p.lengths.packed_k() ? 1 : of.shape[0], rows = of.shape[of.ndim - 3];
  const auto is = [&](int n, std::int64_t size) { return t.shape[n] == 1 || t.shape[n] == size; };
  const bool single = t.ndim == 1 && t.shape[0] == 1,
             per_sequence = t.ndim == 2 && is(0, p.batch()) && is(1, p.kv_heads),
             per_row = t.ndim == 3 && is(0, caches) && is(1, rows) && is(2, p.kv_heads);
  if (!single && !per_sequence && !per_row)
    refuse(name, " has shape ", t.shape_text(),
           "; it must be of one element, (b|1, hk|1) = ", shape_text({p.batch(), p.kv_heads}),
           ", or the shape of ", of.name,
           " without its last dimension, in which any size may be 1, ",
           shape_text({caches, rows, p.kv_heads}));
  Descale d;
  d.data = reinterpret_cast<const float*>(t.data);
  d.per_sequence = per_sequence;
  if (!single) {
    d.batch_stride = t.stride[0];
    d.row_stride = per_row ? t.stride[1] : 0;
    d.head_stride = t.stride[t.ndim - 1];
  }
  return d;
}

// Rows of cu_seqlens_k: of packed keys, those of the tensor; of a KV cache, any number.
void check_cumulative_lengths(const Lengths& l) {
  check_cumulative("cu_seqlens_q", l.cu_q, l.batch, l.rows_q);
  check_cumulative("cu_seqlens_k", l.cu_k, l.batch,
                   l.packed_k() ? l.rows_k : std::numeric_limits<std::int32_t>::max());
}

}  // namespace

void check_host_values(const Problem& p) {
  const Lengths& l = p.lengths;
  check_cumulative_lengths(l);
  const auto check_longest = [&](const char* name, const std::int32_t* cu, std::int64_t most) {
    if (const std::int64_t found = cu ? max_seqlen(cu, l.batch) : 0; found > most)
      refuse(name, " has a sequence of ", found, " rows; this plan was created for at most ", most);
  };
  check_longest("cu_seqlens_q", l.cu_q, p.max_q);
  check_longest("cu_seqlens_k", l.cu_k, p.max_k);
  check_seqused(l);
  check_block_ids(p);
}

PerScore per_score(const Tensor& t, const Problem& p) {
  check_ndim(t, 4, "(b or 1, h or 1, sq or 1, sk or 1)");
  const std::array<std::int64_t, 4> full{p.batch(), p.heads, p.max_q, p.max_k};
  for (int n = 0; n < 4; ++n) {
    if (t.shape[n] != 1 && t.shape[n] != full[static_cast<std::size_t>(n)])
      refuse(t.name, " has shape ", t.shape_text(), "; size ", t.shape[n], " in dimension ", n,
             " must be 1 or ", full[static_cast<std::size_t>(n)]);
  }
  return {t.data, t.dtype, t.stride[0], t.stride[1], t.stride[2], t.stride[3]};
}

PerHead per_head(const Tensor& t, const Problem& p) {
  check_shape(t, {p.heads}, "(h,)");
  return {t.data, t.dtype, 0, t.stride[0]};
}

PerHead slopes_of(const Tensor& t, const Problem& p) {
  if (t.ndim != 2) return per_head(t, p);
  check_shape(t, {p.batch(), p.heads}, "(b, h)");
  // A batch stride of 0 means broadcast over the batch; strides of an empty tensor are arbitrary.
  return {t.data, t.dtype, t.empty() ? 1 : t.stride[0], t.stride[1]};
}

Problem check_problem(const rocflash_problem& in, CallTensors& tensors, Access cache) {
  const Tensor q = tensors.required("q", in.q, Access::read);
  const Tensor k = tensors.required("k", in.k, cache);
  const Tensor v = tensors.required_within(k, "v", in.v, cache);
  check_dtype(q, {DType::f32, DType::f16, DType::bf16, DType::f64});
  // f32 queries may attend to an f16 or bf16 KV cache.
  const bool half_cache =
      q.dtype == DType::f32 && (k.dtype == DType::f16 || k.dtype == DType::bf16);
  const bool other_cache = half_cache || is_8_bit(k.dtype);
  // Which one is wrong is not known: most often it is q, which a caller forgot to convert.
  if (k.dtype == v.dtype && k.dtype != q.dtype && !other_cache)
    refuse("q has dtype ", name_of(q.dtype), ", but k and v have dtype ", name_of(k.dtype),
           "; all must have the same (f32 queries may also have f16 or bf16 keys and values)");
  check_dtype(k, {other_cache ? k.dtype : q.dtype});
  check_dtype(v, {k.dtype});

  if (!in.cu_seqlens_q && in.cu_seqlens_k)
    refuse("cu_seqlens_q is null and cu_seqlens_k is given; packed keys require packed queries");
  const bool packed_q = in.cu_seqlens_q != nullptr;
  const bool packed_k = in.cu_seqlens_k != nullptr && !in.block_table;
  check_ndim(q, packed_q ? 3 : 4, packed_q ? "(total_q, h, d) with cu_seqlens_q" : "(b, sq, h, d)");
  const char* k_dims = in.block_table ? "(num_pages, page, hk, d) with block_table"
                       : packed_k     ? "(total_k, hk, d) with cu_seqlens_k"
                                      : "(b, sk, hk, d)";
  check_ndim(k, packed_k ? 3 : 4, k_dims);
  check_ndim(v, packed_k ? 3 : 4, k_dims);
  check_sizes(q, k, v);

  Problem p;
  p.dtype = q.dtype;
  p.q = rows_of(q, packed_q);
  p.k = rows_of(k, packed_k);
  p.v = rows_of(v, packed_k);
  p.heads = q.shape[q.ndim - 2];
  p.kv_heads = k.shape[k.ndim - 2];
  p.head_dim = p.q.columns;
  p.value_dim = p.v.columns;

  Lengths& l = p.lengths;
  const auto cu_q = tensors.lengths("cu_seqlens_q", in.cu_seqlens_q);
  const auto cu_k = tensors.lengths("cu_seqlens_k", in.cu_seqlens_k);
  if (packed_q) {
    check_ndim(*cu_q, 1, "(b + 1,)");
    if (cu_q->shape[0] < 1) refuse("cu_seqlens_q has shape (0,); it must be (b + 1,)");
  }
  l.batch = packed_q ? cu_q->shape[0] - 1 : q.shape[0];
  l.rows_q = q.shape[q.ndim - 3];
  l.rows_k = k.shape[k.ndim - 3];
  check_blocks(in, tensors, k, p);
  if (!packed_k && !p.k.blocks && k.shape[0] != l.batch)
    refuse("k has shape ", k.shape_text(), "; its batch size must be that of q, ", l.batch);
  l.cu_q = int_values(cu_q, l.batch + 1, "(b + 1,)");
  l.cu_k = int_values(cu_k, l.batch + 1, "(b + 1,)");
  l.used_q = int_values(tensors.lengths("seqused_q", in.seqused_q), l.batch, "(b,)");
  l.used_k = int_values(tensors.lengths("seqused_k", in.seqused_k), l.batch, "(b,)");
  l.leftpad_k = int_values(tensors.lengths("leftpad_k", in.leftpad_k), l.batch, "(b,)");
  const bool readable = tensors.on_host();
  if (readable) check_cumulative_lengths(l);
  p.max_q = check_max_seqlen("max_seqlen_q", in.max_seqlen_q, l.cu_q, l.batch, l.rows_q, readable);
  p.max_k = check_max_seqlen("max_seqlen_k", in.max_seqlen_k, l.cu_k, l.batch, l.rows_k, readable);
  p.caches = packed_k ? 1 : k.shape[0];
  p.k_descale = check_descale("k_descale", in.k_descale, k, tensors, p);
  p.v_descale = check_descale("v_descale", in.v_descale, v, tensors, p);
  if (readable) {
    check_seqused(l);
    check_block_ids(p);
  }
  // Positions and bh are 32-bit words of the Philox counter.
  constexpr std::int64_t counter = std::int64_t{1} << 32;
  if (p.max_q >= counter || p.max_k >= counter || p.heads >= counter ||
      l.batch >= counter / p.heads)
    refuse("q has ", l.batch, " sequences of ", p.max_q, " queries, ", p.max_k, " keys and ",
           p.heads, " heads; each, and sequences times heads, must be below 2^32");

  p.visibility = visibility_of(in, p);
  if (const auto mask = tensors.optional("mask", in.mask, Access::read)) {
    check_dtype(*mask, {DType::boolean});
    p.mask = per_score(*mask, p);
  }
  p.scale = in.softmax_scale ? *in.softmax_scale : static_cast<float>(1.0 / std::sqrt(p.head_dim));
  if (!std::isfinite(p.scale)) refuse("softmax_scale is ", p.scale, "; it must be finite");
  p.softcap = in.softcap;
  if (!(p.softcap >= 0.0f && std::isfinite(p.softcap)))
    refuse("softcap is ", p.softcap, "; it must be 0 (none) or positive and finite");
  if (const auto slopes = tensors.optional("alibi_slopes", in.alibi_slopes, Access::read)) {
    check_dtype(*slopes, {DType::f32});
    p.alibi = slopes_of(*slopes, p);
  }
  if (const auto bias = tensors.optional("bias", in.bias, Access::read)) {
    check_dtype(*bias, {DType::f32, p.dtype});
    p.bias = per_score(*bias, p);
  }
  if (const auto sinks = tensors.optional("sinks", in.sinks, Access::read)) {
    check_dtype(*sinks, {DType::f32, p.dtype});
    p.sinks = per_head(*sinks, p);
  }
  p.dropout = dropout_of(in);
  p.deterministic = flag("deterministic", in.deterministic);
  if (in.num_splits < 0 || in.num_splits > max_splits)
    refuse("num_splits is ", in.num_splits, "; it must be 0 (automatic) to ", max_splits);
  p.splits = in.num_splits;
  return p;
}

}  // namespace rocflash
