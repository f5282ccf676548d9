#include "api/check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "api/error.hpp"
#include "api/structs.hpp"
#include "cpu/backend.hpp"
#include "cpu/thread_pool.hpp"
#include "reference/reference.hpp"

namespace rocflash {
namespace {

constexpr int max_threads = 1024;

// Reads tensors, holds all of them to one device and those that are written to memory of their own.
class Checker {
 public:
  Checker(Device device, Data data) : device_(device), data_(data) {}

  std::optional<Tensor> optional(const char* name, const DLTensor* in, Access access) {
    auto t = on_device(read_tensor(name, in, access, data_));
    if (t && data_ == Data::required) apart(*t, access);
    return t;
  }
  Tensor required(const char* name, const DLTensor* in, Access access) {
    if (!in) refuse(name, ": is null, but it is needed");
    return *optional(name, in, access);
  }
  // Lengths shape the call, so their values are needed even where no other data is.
  std::optional<Tensor> lengths(const char* name, const DLTensor* in) {
    auto t = on_device(read_tensor(name, in, Access::read, Data::required));
    if (t) apart(*t, Access::read);
    return t;
  }

 private:
  std::optional<Tensor> on_device(std::optional<Tensor> t) const {
    if (t && t->device != device_) {
      refuse(t->name, ": is on ", device_text(t->device), "; all tensors must be on ",
             device_text(device_), ", where q is");
    }
    return t;
  }

  // A tensor is compared with those read before it; all inputs are read before the first output.
  void apart(const Tensor& t, Access access) {
    for (std::size_t n = 0; n < seen_count_ && access == Access::write; ++n) {
      if (surely_overlap(seen_[n], t))
        refuse(t.name, ": shares memory with ", seen_[n].name,
               "; an output needs memory of its own");
    }
    if (seen_count_ < seen_.size()) seen_[seen_count_++] = t;
  }

  Device device_;
  Data data_;
  std::array<Tensor, 24> seen_;  // more than any call has
  std::size_t seen_count_ = 0;
};

void check_dtype(const Tensor& t, std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), t.dtype) != allowed.end()) return;
  std::string names;
  for (auto it = allowed.begin(); it != allowed.end(); ++it) {
    if (std::find(allowed.begin(), it, *it) == it)
      names += text(names.empty() ? "" : " or ", name_of(*it));
  }
  refuse(t.name, ": dtype ", name_of(t.dtype), "; it must be ", names);
}

void check_ndim(const Tensor& t, int ndim, const char* dims) {
  if (t.ndim != ndim)
    refuse(t.name, ": shape ", t.shape_text(), " has ", t.ndim, " dimensions; it must be ", dims);
}

void check_shape(const Tensor& t, std::initializer_list<std::int64_t> shape, const char* dims) {
  check_ndim(t, static_cast<int>(shape.size()), dims);
  if (!std::equal(shape.begin(), shape.end(), t.shape))
    refuse(t.name, ": shape ", t.shape_text(), "; it must be ", dims, " = ", shape_text(shape));
}

Rows rows_of(const Tensor& t, bool packed) {
  const int last = t.ndim - 1;
  if (t.shape[last] > 1 && t.stride[last] != 1)
    refuse(t.name, ": stride ", t.stride[last], " in its last dimension; it must be 1");
  return {t.data,
          t.dtype,
          packed ? 0 : t.stride[0],
          t.stride[last - 2],
          t.stride[last - 1],
          static_cast<int>(t.shape[last])};
}

const std::int32_t* int_values(const std::optional<Tensor>& t, std::int64_t count,
                               const char* dims) {
  if (!t) return nullptr;
  check_dtype(*t, {DType::i32});
  check_shape(*t, {count}, dims);
  if (count > 1 && t->stride[0] != 1) refuse(t->name, ": stride ", t->stride[0], "; it must be 1");
  return reinterpret_cast<const std::int32_t*>(t->data);
}

void check_cumulative(const char* name, const std::int32_t* cu, std::int64_t batch,
                      std::int64_t rows) {
  if (!cu) return;
  if (cu[0] < 0) refuse(name, ": begins with ", cu[0], "; it must not be negative");
  for (std::int64_t b = 0; b < batch; ++b) {
    if (cu[b + 1] < cu[b])
      refuse(name, ": falls from ", cu[b], " to ", cu[b + 1], " at sequence ", b,
             "; it must not decrease");
  }
  if (cu[batch] > rows)
    refuse(name, ": ends with ", cu[batch], "; the packed tensor has ", rows, " rows");
}

std::int64_t longest(const std::int32_t* cu, std::int64_t batch) {
  std::int32_t most = 0;
  for (std::int64_t b = 0; b < batch; ++b) most = std::max(most, cu[b + 1] - cu[b]);
  return most;
}

std::int64_t check_longest(const char* name, std::int64_t given, const std::int32_t* cu,
                           std::int64_t batch, std::int64_t rows) {
  if (given < 0) refuse(name, ": ", given, "; it must not be negative");
  if (!cu) {
    if (given != 0 && given != rows)
      refuse(name, ": ", given, "; without packed sequences it must be 0 or the length, ", rows);
    return rows;
  }
  const std::int64_t found = longest(cu, batch);
  if (given != 0 && given < found)
    refuse(name, ": ", given, "; the longest sequence has ", found, " rows");
  return given != 0 ? given : found;
}

// seqused and leftpad, once the sequences' rows are known.
void check_used(const Lengths& l) {
  for (std::int64_t b = 0; b < l.batch; ++b) {
    const std::int64_t q_rows = l.cu_q ? l.cu_q[b + 1] - l.cu_q[b] : l.rows_q;
    const std::int64_t k_rows = l.cu_k ? l.cu_k[b + 1] - l.cu_k[b] : l.rows_k;
    if (l.used_q && (l.used_q[b] < 0 || l.used_q[b] > q_rows))
      refuse("seqused_q: ", l.used_q[b], " for sequence ", b, "; it must be 0 to its length, ",
             q_rows);
    if (l.used_k && (l.used_k[b] < 0 || l.used_k[b] > k_rows))
      refuse("seqused_k: ", l.used_k[b], " for sequence ", b, "; it must be 0 to its length, ",
             k_rows);
    const std::int64_t used = l.used_k ? l.used_k[b] : k_rows;
    if (l.leftpad_k && (l.leftpad_k[b] < 0 || l.leftpad_k[b] > used))
      refuse("leftpad_k: ", l.leftpad_k[b], " for sequence ", b,
             "; it must be 0 to its keys in use, ", used);
  }
}

Plane plane_of(const Tensor& t, const Problem& p) {
  check_ndim(t, 4, "(b or 1, h or 1, sq or 1, sk or 1)");
  const std::array<std::int64_t, 4> full{p.batch(), p.heads, p.max_q, p.max_k};
  for (int n = 0; n < 4; ++n) {
    if (t.shape[n] != 1 && t.shape[n] != full[static_cast<std::size_t>(n)])
      refuse(t.name, ": shape ", t.shape_text(), "; size ", t.shape[n], " in dimension ", n,
             " must be 1 or ", full[static_cast<std::size_t>(n)]);
  }
  return {t.data, t.dtype, t.stride[0], t.stride[1], t.stride[2], t.stride[3]};
}

PerHead per_head(const Tensor& t, const Problem& p) {
  check_shape(t, {p.heads}, "(h,)");
  return {t.data, t.dtype, 0, t.stride[0]};
}

bool flag(const char* name, std::int32_t value) {
  if (value != 0 && value != 1) refuse(name, ": ", value, "; it must be 0 or 1");
  return value == 1;
}

Visibility visibility_of(const rocflash_problem& in, const Problem& p) {
  Visibility v;
  if (in.window) {
    const char* side[] = {"left", "right"};
    for (int n = 0; n < 2; ++n) {
      if (in.window[n] < -1)
        refuse("window: ", side[n], " is ", in.window[n], "; it must be -1 (no bound) or more");
    }
    // A window wider than everything is none, and must not overflow when added to positions.
    const std::int64_t everything = p.max_q + p.max_k;
    v.left = in.window[0] >= everything ? -1 : in.window[0];
    v.right = in.window[1] >= everything ? -1 : in.window[1];
  }
  if (flag("causal", in.causal)) v.right = 0;
  if (in.attention_chunk < 0)
    refuse("attention_chunk: ", in.attention_chunk, "; it must not be negative");
  v.chunk = std::min(in.attention_chunk, std::numeric_limits<std::int64_t>::max() / 4);
  return v;
}

Dropout dropout_of(const rocflash_problem& in) {
  if (!(in.dropout_p >= 0.0f && in.dropout_p < 1.0f))
    refuse("dropout_p: ", in.dropout_p, "; it must be in [0, 1)");
  return {in.dropout_p, dropout_threshold(in.dropout_p), in.dropout_seed, in.dropout_offset};
}

void check_sizes(const Tensor& q, const Tensor& k, const Tensor& v, bool packed) {
  const int heads = packed ? 1 : 2, columns = packed ? 2 : 3;
  if (k.shape[columns] != q.shape[columns])
    refuse("k: shape ", k.shape_text(), "; its head size must be that of q, ", q.shape[columns]);
  for (int n = 0; n < heads; ++n) {
    if (!packed && n == 0 && k.shape[0] != q.shape[0])
      refuse("k: shape ", k.shape_text(), "; its batch must be that of q, ", q.shape[0]);
    if (v.shape[n] != k.shape[n])
      refuse("v: shape ", v.shape_text(), "; size ", v.shape[n], " in dimension ", n,
             " must be that of k, ", k.shape[n]);
  }
  if (v.shape[heads] != k.shape[heads])
    refuse("v: shape ", v.shape_text(), "; its heads must be those of k, ", k.shape[heads]);
  for (const Tensor* t : {&q, &k, &v}) {
    if (t->shape[heads] < 1) refuse(t->name, ": shape ", t->shape_text(), "; it must have a head");
    if (t->shape[columns] < 1 || t->shape[columns] > max_head_dim)
      refuse(t->name, ": head size ", t->shape[columns], "; it must be 1 to ", max_head_dim);
  }
  if (q.shape[heads] % k.shape[heads] != 0)
    refuse("k: ", k.shape[heads], " heads; the ", q.shape[heads],
           " heads of q must be a multiple of that");
}

Problem check_problem(const rocflash_problem& in, Checker& check) {
  const Tensor q = check.required("q", in.q, Access::read);
  const Tensor k = check.required("k", in.k, Access::read);
  const Tensor v = check.required("v", in.v, Access::read);
  check_dtype(q, {DType::f32, DType::f16, DType::bf16, DType::f64});
  check_dtype(k, {q.dtype});
  check_dtype(v, {q.dtype});

  if (!in.cu_seqlens_q != !in.cu_seqlens_k)
    refuse(in.cu_seqlens_q ? "cu_seqlens_k" : "cu_seqlens_q", ": is null, but ",
           in.cu_seqlens_q ? "cu_seqlens_q" : "cu_seqlens_k",
           " is given; packed sequences need both");
  const bool packed = in.cu_seqlens_q != nullptr;
  const int ndim = packed ? 3 : 4;
  check_ndim(q, ndim, packed ? "(total_q, h, d) with cu_seqlens_q" : "(b, sq, h, d)");
  check_ndim(k, ndim, packed ? "(total_k, hk, d) with cu_seqlens_k" : "(b, sk, hk, d)");
  check_ndim(v, ndim, packed ? "(total_k, hk, dv) with cu_seqlens_k" : "(b, sk, hk, dv)");
  check_sizes(q, k, v, packed);

  Problem p;
  p.dtype = q.dtype;
  p.heads = q.shape[ndim - 2];
  p.kv_heads = k.shape[ndim - 2];
  p.q = rows_of(q, packed);
  p.k = rows_of(k, packed);
  p.v = rows_of(v, packed);
  p.head_dim = p.q.columns;
  p.value_dim = p.v.columns;

  Lengths& l = p.lengths;
  const auto cu_q = check.lengths("cu_seqlens_q", in.cu_seqlens_q);
  const auto cu_k = check.lengths("cu_seqlens_k", in.cu_seqlens_k);
  if (packed) {
    check_ndim(*cu_q, 1, "(b + 1,)");
    if (cu_q->shape[0] < 1) refuse("cu_seqlens_q: shape (0,); it must be (b + 1,)");
  }
  l.batch = packed ? cu_q->shape[0] - 1 : q.shape[0];
  l.rows_q = q.shape[ndim - 3];
  l.rows_k = k.shape[ndim - 3];
  l.cu_q = int_values(cu_q, l.batch + 1, "(b + 1,)");
  l.cu_k = int_values(cu_k, l.batch + 1, "(b + 1,)");
  l.used_q = int_values(check.lengths("seqused_q", in.seqused_q), l.batch, "(b,)");
  l.used_k = int_values(check.lengths("seqused_k", in.seqused_k), l.batch, "(b,)");
  l.leftpad_k = int_values(check.lengths("leftpad_k", in.leftpad_k), l.batch, "(b,)");
  check_cumulative("cu_seqlens_q", l.cu_q, l.batch, l.rows_q);
  check_cumulative("cu_seqlens_k", l.cu_k, l.batch, l.rows_k);
  p.max_q = check_longest("max_seqlen_q", in.max_seqlen_q, l.cu_q, l.batch, l.rows_q);
  p.max_k = check_longest("max_seqlen_k", in.max_seqlen_k, l.cu_k, l.batch, l.rows_k);
  check_used(l);
  constexpr std::int64_t counter = std::int64_t{1}
                                   << 32;  // positions go into 32-bit words of the dropout counter
  if (p.max_q >= counter || p.max_k >= counter || p.heads >= counter ||
      l.batch >= counter / p.heads)
    refuse("q: ", l.batch, " sequences of ", p.max_q, " queries, ", p.max_k, " keys and ", p.heads,
           " heads; each, and sequences times heads, must be below 2^32");

  p.visibility = visibility_of(in, p);
  if (const auto mask = check.optional("mask", in.mask, Access::read)) {
    check_dtype(*mask, {DType::boolean});
    p.mask = plane_of(*mask, p);
  }
  p.scale = in.softmax_scale ? *in.softmax_scale : static_cast<float>(1.0 / std::sqrt(p.head_dim));
  if (!std::isfinite(p.scale)) refuse("softmax_scale: ", p.scale, "; it must be finite");
  p.softcap = in.softcap;
  if (!(p.softcap >= 0.0f && std::isfinite(p.softcap)))
    refuse("softcap: ", p.softcap, "; it must be 0 (none) or positive and finite");
  if (const auto slopes = check.optional("alibi_slopes", in.alibi_slopes, Access::read)) {
    check_dtype(*slopes, {DType::f32});
    if (slopes->ndim == 2) {
      check_shape(*slopes, {p.batch(), p.heads}, "(b, h)");
      p.alibi = {slopes->data, slopes->dtype, slopes->stride[0], slopes->stride[1]};
    } else {
      p.alibi = per_head(*slopes, p);
    }
  }
  if (const auto bias = check.optional("bias", in.bias, Access::read)) {
    check_dtype(*bias, {DType::f32, p.dtype});
    p.bias = plane_of(*bias, p);
  }
  if (const auto sinks = check.optional("sinks", in.sinks, Access::read)) {
    check_dtype(*sinks, {DType::f32, p.dtype});
    p.sinks = per_head(*sinks, p);
  }
  p.dropout = dropout_of(in);
  p.deterministic = flag("deterministic", in.deterministic);
  return p;
}

// A tensor of rows shaped as q (out, dq) or as k and v.
Rows check_rows(const Tensor& t, const Problem& p, std::int64_t rows, std::int64_t heads,
                int columns, const char* dense, const char* packed, bool judge) {
  if (p.lengths.packed()) {
    check_shape(t, {rows, heads, columns}, packed);
  } else {
    check_shape(t, {p.batch(), rows, heads, columns}, dense);
  }
  // The reference may be asked for more digits than the inputs have.
  judge ? check_dtype(t, {p.dtype, DType::f64, DType::f32}) : check_dtype(t, {p.dtype});
  return rows_of(t, p.lengths.packed());
}

Rows check_query_rows(const Tensor& t, const Problem& p, int columns, bool judge) {
  return check_rows(t, p, p.lengths.rows_q, p.heads, columns, "(b, sq, h, columns)",
                    "(total_q, h, columns)", judge);
}

Rows check_key_rows(const Tensor& t, const Problem& p, int columns, bool judge) {
  return check_rows(t, p, p.lengths.rows_k, p.kv_heads, columns, "(b, sk, hk, columns)",
                    "(total_k, hk, columns)", judge);
}

RowStatistic check_lse(const Tensor& t, const Problem& p) {
  check_dtype(t, {DType::f32});
  if (p.lengths.packed()) {
    check_shape(t, {p.heads, p.lengths.rows_q}, "(h, total_q)");
    return {reinterpret_cast<float*>(t.data), 0, t.stride[0], t.stride[1]};
  }
  check_shape(t, {p.batch(), p.heads, p.lengths.rows_q}, "(b, h, sq)");
  return {reinterpret_cast<float*>(t.data), t.stride[0], t.stride[1], t.stride[2]};
}

const Backend& choose_backend(const rocflash_execution& in, Device device) {
  if (device.type != kDLCPU)
    refuse_unsupported("q: is on ", device_text(device), "; this build computes on the CPU only");
  switch (in.backend) {
    case ROCFLASH_BACKEND_AUTO:
    case ROCFLASH_BACKEND_CPU:
      return cpu_backend();
    case ROCFLASH_BACKEND_REFERENCE:
      return reference_backend();
    case ROCFLASH_BACKEND_PLAIN:
      return plain_backend();
    case ROCFLASH_BACKEND_STANDARD:
      return standard_backend();
    default:
      refuse("backend: ", in.backend,
             "; allowed are 0 (auto), 1 (cpu), 2 (reference), 3 (plain), 4 (standard)");
  }
}

Execution check_execution(const rocflash_execution& in) {
  if (in.num_threads < 0 || in.num_threads > max_threads)
    refuse("num_threads: ", in.num_threads, "; it must be 0 (choose) to ", max_threads);
  if (in.stream) refuse("stream: is set; the CPU has no streams, so it must be null");
  Execution e;
  e.threads = in.num_threads > 0 ? in.num_threads : default_threads();
  return e;
}

rocflash_execution read_execution(const rocflash_execution* in) {
  rocflash_execution none{};
  none.struct_size = sizeof none;
  return in ? read_struct("execution", in) : none;
}

// What forward and backward have in common, up to their own tensors.
struct Opening {
  rocflash_execution execution;
  Device device;
  const Backend* backend;
  bool judge;
};

Opening open(const rocflash_problem& problem, const rocflash_execution* execution) {
  Opening o{read_execution(execution), {}, nullptr, false};
  o.device = read_tensor("q", problem.q, Access::read, Data::may_be_null).value_or(Tensor{}).device;
  o.backend = &choose_backend(o.execution, o.device);
  o.judge = o.backend == &reference_backend();
  return o;
}

void check_backend(const Backend& backend, const Problem& p, bool gradients) {
  if (const std::string why = backend.refusal(p, gradients); !why.empty()) refuse_unsupported(why);
}

}  // namespace

ForwardCall check_forward(const rocflash_problem* problem_in,
                          const rocflash_forward_outputs* outputs_in,
                          const rocflash_execution* execution_in, Data data) {
  const auto in = read_struct("problem", problem_in);
  const auto outputs = read_struct("outputs", outputs_in);
  const Opening o = open(in, execution_in);
  Checker check(o.device, data);
  ForwardCall call{check_problem(in, check), {}, check_execution(o.execution), o.backend};
  const Problem& p = call.problem;
  check_backend(*o.backend, p, false);

  call.outputs.out =
      check_query_rows(check.required("out", outputs.out, Access::write), p, p.value_dim, o.judge);
  if (const auto lse = check.optional("lse", outputs.lse, Access::write))
    call.outputs.lse = check_lse(*lse, p);
  if (const auto weights = check.optional("s_dmask", outputs.s_dmask, Access::write)) {
    check_dtype(*weights, {DType::f32, p.dtype});
    check_shape(*weights, {p.batch(), p.heads, p.max_q, p.max_k}, "(b, h, sq, sk)");
    call.outputs.s_dmask = plane_of(*weights, p);
  }
  return call;
}

BackwardCall check_backward(const rocflash_problem* problem_in,
                            const rocflash_backward_tensors* tensors_in,
                            const rocflash_execution* execution_in, Data data) {
  const auto in = read_struct("problem", problem_in);
  const auto tensors = read_struct("tensors", tensors_in);
  const Opening o = open(in, execution_in);
  Checker check(o.device, data);
  BackwardCall call{check_problem(in, check), {}, check_execution(o.execution), o.backend};
  const Problem& p = call.problem;
  check_backend(*o.backend, p, true);

  if (tensors.dbias)
    refuse_unsupported("dbias: is given; a gradient of the bias is not supported, it must be null");
  BackwardTensors& t = call.tensors;
  t.dout =
      check_query_rows(check.required("dout", tensors.dout, Access::read), p, p.value_dim, o.judge);
  t.out =
      check_query_rows(check.required("out", tensors.out, Access::read), p, p.value_dim, o.judge);
  t.lse = check_lse(check.required("lse", tensors.lse, Access::read), p);
  if (const auto dq = check.optional("dq", tensors.dq, Access::write))
    t.dq = check_query_rows(*dq, p, p.head_dim, o.judge);
  if (const auto dk = check.optional("dk", tensors.dk, Access::write))
    t.dk = check_key_rows(*dk, p, p.head_dim, o.judge);
  if (const auto dv = check.optional("dv", tensors.dv, Access::write))
    t.dv = check_key_rows(*dv, p, p.value_dim, o.judge);
  if (const auto dsinks = check.optional("dsinks", tensors.dsinks, Access::write)) {
    if (!p.sinks) refuse("dsinks: is given, but sinks is null");
    check_dtype(*dsinks, {DType::f32});
    t.dsinks = per_head(*dsinks, p);
  }
  if (!t.dq && !t.dk && !t.dv && !t.dsinks)
    refuse("dq: is null, and so are dk, dv and dsinks; at least one gradient must be asked for");
  return call;
}

void check_workspace(const rocflash_execution* in, std::size_t needed, Execution& execution) {
  const rocflash_execution e = read_execution(in);
  if (needed == 0) return;
  if (e.workspace_size < needed)
    refuse("workspace_size: ", e.workspace_size, "; this call needs ", needed,
           " bytes (the workspace query tells)");
  if (!e.workspace) refuse("workspace: is null, but this call needs ", needed, " bytes");
  if (reinterpret_cast<std::uintptr_t>(e.workspace) % 64 != 0)
    refuse("workspace: its address is ", reinterpret_cast<std::uintptr_t>(e.workspace) % 64,
           " past a multiple of 64; it must be a multiple");
  execution.workspace = static_cast<std::byte*>(e.workspace);
}

}  // namespace rocflash
