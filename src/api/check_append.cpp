// Validation of keys and values that decode appends to the KV cache, before any byte is written.
#include <algorithm>
#include <limits>
#include <vector>

#include "api/check.hpp"
#include "core/error.hpp"

namespace rocflash {
namespace {

// Rows [begin, end) of one page, or of one cache, that an append will write.
struct Written {
  std::int64_t block, begin, end, sequence;
  bool operator<(const Written& other) const {
    return block != other.block ? block < other.block : begin < other.begin;
  }
};

void check_capacity(const Problem& p, const Append& a) {
  const Lengths& l = p.lengths;
  std::vector<Written> written;
  for (std::int64_t b = 0; b < l.batch; ++b) {
    const std::int64_t before = keys_before(p, b);
    const std::int64_t free_rows =
        smaller(l.rows_k, std::numeric_limits<std::int32_t>::max()) - before;  // may be negative
    const std::int64_t after = before + smaller(a.count(b), larger(free_rows, 0));
    if (a.count(b) > free_rows) {
      refuse(l.paged ? "block_table" : "k_new", " exceeds the KV cache: sequence ", b, " has ",
             before, " keys and ", a.count(b), " new ones; its capacity is ", l.rows_k);
    }
    if (!p.k.blocks) continue;
    const std::int64_t size = p.k.block_rows;
    for (std::int64_t row = before; row < after; row = (row / size + 1) * size) {
      const std::int64_t id = p.k.blocks[b * p.k.blocks_stride + row / size];
      if (id < 0 || id >= p.caches) {
        refuse(l.paged ? "block_table" : "cache_batch_idx", " is ", id, " at entry ", row / size,
               " of sequence ", b, "; it must be 0 to ", p.caches - 1);
      }
      written.push_back({id, row % size, std::min(size, row % size + after - row), b});
    }
  }
  std::sort(written.begin(), written.end());
  for (std::size_t n = 1; n < written.size(); ++n) {
    const Written &one = written[n - 1], &two = written[n];
    if (one.block == two.block && two.begin < one.end) {
      refuse(l.paged ? "block_table" : "cache_batch_idx", " maps sequences ", one.sequence, " and ",
             two.sequence, " to row ", two.begin, " of ", l.paged ? "page " : "cache ", one.block,
             "; new keys must not overlap");
    }
  }
}

Rotary check_rotary(const rocflash_append& in, CallTensors& tensors, const Problem& p) {
  Rotary r;
  if (!in.rotary_cos != !in.rotary_sin)
    refuse(
        in.rotary_cos ? "rotary_sin is null and rotary_cos" : "rotary_cos is null and rotary_sin",
        " is given; both or neither must be given");
  if (!in.rotary_cos) {
    if (in.rotary_seqlens) refuse("rotary_seqlens is given; without rotary_cos it must be null");
    if (in.rotary_interleaved != 0)
      refuse("rotary_interleaved is ", in.rotary_interleaved, "; without rotary_cos it must be 0");
    return r;
  }
  const Tensor cos = tensors.required("rotary_cos", in.rotary_cos, Access::read);
  const Tensor sin = tensors.required("rotary_sin", in.rotary_sin, Access::read);
  r = check_rotary_tables(cos, sin, p.dtype, p.head_dim);
  r.interleaved = flag("rotary_interleaved", in.rotary_interleaved);
  r.first = int_values(tensors.lengths("rotary_seqlens", in.rotary_seqlens), p.batch(), "(b,)");
  return r;
}

bool same_scales(const Descale& a, const Descale& b) {
  return a.data == b.data && a.per_sequence == b.per_sequence && a.batch_stride == b.batch_stride &&
         a.row_stride == b.row_stride && a.head_stride == b.head_stride;
}

void check_positions(const Problem& p, const Append& a) {
  const Rotary& r = a.rotary;
  for (std::int64_t b = 0; b < p.batch(); ++b) {
    const std::int64_t first = r.first ? r.first[b] : keys_before(p, b);
    if (first < 0)
      refuse("rotary_seqlens is ", first, " for sequence ", b, "; it must not be negative");
    const std::int64_t queries =
        p.visibility.bounded() ? p.lengths.queries(b) : smaller(p.lengths.queries(b), 1);
    const std::int64_t last = first + larger(a.count(b), queries);
    if (last > r.positions)
      refuse("rotary_cos has ", r.positions, " positions; sequence ", b, " requires ", last);
  }
}

}  // namespace

void check_host_values(const Problem& p, const Append& a) {
  if (a.k) {
    check_cumulative("cu_seqlens_k_new", a.cu, p.batch(), a.rows);
    check_capacity(p, a);
  }
  if (a.rotary.dim > 0) check_positions(p, a);
}

Rotary check_rotary_tables(const Tensor& cos, const Tensor& sin, DType dtype, int columns) {
  check_dtype(cos, {DType::f32, dtype});
  check_dtype(sin, {cos.dtype});
  check_ndim(cos, 2, "(positions, rotary_dim / 2)");
  check_shape(sin, {cos.shape[0], cos.shape[1]}, text("the shape of ", cos.name).c_str());
  for (const Tensor* t : {&cos, &sin}) {
    if (t->shape[1] > 1 && t->stride[1] != 1)
      refuse(t->name, " has stride ", t->stride[1], " in its last dimension; it must be 1");
  }
  if (cos.shape[1] < 1 || 2 * cos.shape[1] > columns)
    refuse(cos.name, " has shape ", cos.shape_text(), ", which rotates ", 2 * cos.shape[1],
           " columns; it must rotate 2 to ", columns);
  Rotary r;
  r.cos = cos.data;
  r.sin = sin.data;
  r.dtype = cos.dtype;
  r.cos_stride = cos.stride[0];
  r.sin_stride = sin.stride[0];
  r.positions = cos.shape[0];
  r.dim = static_cast<int>(2 * cos.shape[1]);
  return r;
}

Append check_append(const rocflash_append& in, CallTensors& tensors, const Problem& p) {
  Append a;
  if (!in.k_new != !in.v_new)
    refuse(in.k_new ? "v_new is null and k_new" : "k_new is null and v_new",
           " is given; both or neither must be given");
  if (in.cu_seqlens_k_new && !in.k_new)
    refuse("cu_seqlens_k_new is given; without k_new it must be null");
  if (in.k_new) {
    if (p.lengths.cu_k)
      refuse("cu_seqlens_k is given with k_new; packed keys cannot grow, so it must be null");
    const bool packed = in.cu_seqlens_k_new != nullptr;
    const Tensor k = tensors.required("k_new", in.k_new, Access::read);
    const Tensor v = tensors.required("v_new", in.v_new, Access::read);
    if (p.values_within_keys() && p.k.data && !is_column_prefix(v, k))
      refuse(
          "v_new has its own memory; since v is the first columns of k, v_new must be the first "
          "columns of k_new");
    // A quantized cache takes rows of its own dtype as they are, and quantizes those of q's.
    is_8_bit(p.k.dtype) ? check_dtype(k, {p.k.dtype, p.dtype}) : check_dtype(k, {p.k.dtype});
    check_dtype(v, {k.dtype});
    if (p.values_within_keys() && k.dtype != p.k.dtype && !same_scales(p.k_descale, p.v_descale))
      refuse("v_descale is not k_descale; since v is the first columns of k, new keys of dtype ",
             name_of(k.dtype), " are quantized once, so both must be the same tensor");
    const char* dims =
        packed ? "(total_new, hk, columns) with cu_seqlens_k_new" : "(b, s_new, hk, columns)";
    check_ndim(k, packed ? 3 : 4, dims);
    a.rows = k.shape[packed ? 0 : 1];
    if (packed) {
      check_shape(k, {a.rows, p.kv_heads, p.head_dim}, dims);
      check_shape(v, {a.rows, p.kv_heads, p.value_dim}, dims);
      a.cu = int_values(tensors.lengths("cu_seqlens_k_new", in.cu_seqlens_k_new), p.batch() + 1,
                        "(b + 1,)");
    } else {
      check_shape(k, {p.batch(), a.rows, p.kv_heads, p.head_dim}, dims);
      check_shape(v, {p.batch(), a.rows, p.kv_heads, p.value_dim}, dims);
    }
    a.k = rows_of(k, packed);
    a.v = rows_of(v, packed);
    if (!tensors.on_host() && !p.lengths.used_k && a.rows > 0 && p.batch() > 0) {
      refuse("k_new has ", a.rows, " rows; without seqused_k all ", p.lengths.rows_k,
             " rows of k are in use, so it must have 0");
    }
  }
  a.rotary = check_rotary(in, tensors, p);
  if (a.k && a.rotary.dim > 0 && is_8_bit(a.k.dtype))
    refuse("rotary_cos is given and k_new has dtype ", name_of(a.k.dtype),
           ", whose rows are copied as they are; it must be null");
  if (tensors.on_host()) check_host_values(p, a);
  if (a.k && a.rotary.dim > 0 && p.values_within_keys() && p.k.data)
    refuse(
        "rotary_cos is given and v is the first columns of k, which it would rotate; it must be "
        "null, and k_new rotated beforehand");
  return a;
}

}  // namespace rocflash
