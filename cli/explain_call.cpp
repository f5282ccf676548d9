#include "explain_call.hpp"

#include <algorithm>
#include <cmath>

#include "core/calls.hpp"

namespace rocflash::cli {
namespace {

// Selection never reads a tensor: any aligned address will do.
template <class T = std::byte>
T* placeholder() {
  return reinterpret_cast<T*>(std::uintptr_t{1} << 20);
}

// A call before it is explained.
struct Described {
  Problem p;
  ForwardOutputs o;
  BackwardTensors t;
};

struct Option {
  const char* name;
  void (*apply)(Described& call);
};

template <auto Problem::* member>
void give(Described& c) {
  (c.p.*member).data = placeholder();
}
template <auto Lengths::* member>
void give_lengths(Described& c) {
  c.p.lengths.*member = placeholder<const std::int32_t>();
}

// Contiguous tensors of all sequences, [total, heads, columns].
void pack(Described& c) {
  Lengths& l = c.p.lengths;
  l.cu_q = placeholder<const std::int32_t>();
  l.rows_q *= c.p.batch();
  for (Rows* rows : {&c.p.q, &c.o.out, &c.t.dout, &c.t.out, &c.t.dq}) rows->batch_stride = 0;
  if (c.p.k.blocks) return;
  l.cu_k = l.cu_q;
  l.used_k = nullptr;
  l.rows_k *= c.p.batch();
  for (Rows* rows : {&c.p.k, &c.p.v, &c.t.dk, &c.t.dv}) rows->batch_stride = 0;
}

// The gradients of the options that are given: of the bias for each query and key, summed over
// sequences and heads.
void add_option_gradients(Described& c) {
  if (c.p.sinks) c.t.dsinks.data = placeholder();
  if (c.p.alibi) c.t.dalibi.data = placeholder();
  if (c.p.bias)
    c.t.dbias = {
        .data = placeholder(), .dtype = c.p.dtype, .query_stride = c.p.max_k, .key_stride = 1};
}

// In the order in which they are applied.
constexpr Option options[] = {
    {"mask", give<&Problem::mask>},
    {"bias", give<&Problem::bias>},
    {"alibi", give<&Problem::alibi>},
    {"softcap", [](Described& c) { c.p.softcap = 30; }},
    {"sinks", give<&Problem::sinks>},
    {"dropout", [](Described& c) { c.p.dropout.p = 0.1f; }},
    {"chunk", [](Described& c) { c.p.visibility.chunk = 128; }},
    {"deterministic", [](Described& c) { c.p.deterministic = true; }},
    {"varlen", pack},
    {"seqused-q", give_lengths<&Lengths::used_q>},
    {"seqused-k", give_lengths<&Lengths::used_k>},
    {"left-padding", give_lengths<&Lengths::leftpad_k>},
    {"quantized", [](Described& c) { c.p.k.dtype = c.p.v.dtype = DType::e4m3fn; }},
    {"unaligned", [](Described& c) { c.p.q.data += size_of(c.p.q.dtype); }},
    {"latent",  // MLA: the values are the first columns of the keys
     [](Described& c) {
       const int columns = c.p.v.columns;
       c.p.v = c.p.k;
       c.p.v.columns = columns;
     }},
    {"weights", [](Described& c) { c.o.s_dmask.data = placeholder(); }},  // the output s_dmask
    {"option-gradients", add_option_gradients},
};

DType dtype_of(const std::string& name) {
  for (const DType dtype : {DType::f32, DType::f16})
    if (name == name_of(dtype)) return dtype;
  return DType::bf16;
}

Rows rows(DType dtype, std::int64_t length, std::int64_t heads, int columns) {
  return {placeholder(), dtype, length * heads * columns, heads * columns, columns, columns};
}

Problem problem_of(const ExplainedShape& s) {
  Problem p;
  p.dtype = dtype_of(s.dtype);
  p.heads = s.heads;
  p.kv_heads = s.kv_heads;
  p.head_dim = s.head_dim;
  p.value_dim = s.value_dim;
  p.q = rows(p.dtype, s.sq, s.heads, s.head_dim);
  p.k = rows(p.dtype, s.sk, s.kv_heads, s.head_dim);
  p.v = rows(p.dtype, s.sk, s.kv_heads, s.value_dim);
  p.v.data += std::size_t{1} << 20;
  p.lengths = {.batch = s.batch, .rows_q = s.sq, .rows_k = s.sk};
  p.max_q = s.sq;
  p.max_k = s.sk;
  p.scale = static_cast<float>(1.0 / std::sqrt(s.head_dim));
  p.visibility.right = s.causal ? 0 : -1;
  if (!s.window.empty()) p.visibility = {.left = s.window[0], .right = s.causal ? 0 : s.window[1]};
  p.splits = s.splits;
  p.caches = s.batch;
  if (s.page > 0) {
    const std::int64_t pages = (s.sk + s.page - 1) / s.page;
    p.lengths.paged = true;
    p.lengths.rows_k = p.max_k = pages * s.page;
    p.caches = s.batch * pages;
    for (Rows* r : {&p.k, &p.v}) {
      r->blocks = placeholder<const std::int32_t>();
      r->blocks_stride = pages;
      r->block_rows = s.page;
      r->batch_stride = s.page * r->row_stride;
    }
  }
  if (s.op == "decode" || s.op == "append") p.lengths.used_k = placeholder<const std::int32_t>();
  return p;
}

BackwardTensors tensors_of(const ExplainedShape& s, const Problem& p) {
  BackwardTensors t;
  t.dout = t.out = rows(p.dtype, s.sq, s.heads, s.value_dim);
  t.lse = {placeholder<float>(), s.heads * s.sq, s.sq, 1};
  t.dq = rows(p.dtype, s.sq, s.heads, s.head_dim);
  t.dk = rows(p.dtype, s.sk, s.kv_heads, s.head_dim);
  t.dv = rows(p.dtype, s.sk, s.kv_heads, s.value_dim);
  return t;
}

// One new key for each query, and rotary embedding of all columns.
Append append_of(const ExplainedShape& s, const Problem& p) {
  Append a;
  a.k = rows(p.dtype, s.sq, s.kv_heads, s.head_dim);
  a.v = rows(p.dtype, s.sq, s.kv_heads, s.value_dim);
  a.rows = s.sq;
  a.rotary.cos = a.rotary.sin = placeholder();
  a.rotary.dtype = p.dtype;
  a.rotary.dim = s.head_dim / 2 * 2;
  a.rotary.positions = s.sk;
  return a;
}

// The results of `splits` parts, in f32.
CombineCall combine_of(const ExplainedShape& s) {
  CombineCall c;
  c.splits = s.splits;
  c.batch = s.batch;
  c.queries = s.sq;
  c.heads = s.heads;
  c.columns = s.value_dim;
  c.out_dtype = dtype_of(s.dtype);
  const std::int64_t row = s.heads * s.value_dim, rows = s.batch * s.sq, lse = s.heads * s.sq;
  const std::int64_t out_partial[] = {rows * row, s.sq * row, row, s.value_dim, 1},
                     lse_partial[] = {s.batch * lse, lse, s.sq, 1};
  std::ranges::copy(out_partial, c.out_partial_stride);
  std::ranges::copy(lse_partial, c.lse_partial_stride);
  return c;
}

RotateCall rotate_of(const ExplainedShape& s, const Problem& p) {
  RotateCall c;
  c.problem = p;
  c.problem.lengths.rows_k = c.problem.max_k = 0;
  c.rotary = append_of(s, p).rotary;
  c.out = p.q;
  return c;
}

}  // namespace

std::vector<std::string> explained_options() {
  std::vector<std::string> names;
  for (const Option& option : options) names.emplace_back(option.name);
  return names;
}

gpu::Explanation explain(const ExplainedShape& s, gpu::Chip chip) {
  if (s.op == "combine") return gpu::explain(combine_of(s), chip);
  Described c{problem_of(s), {}, {}};
  c.t = tensors_of(s, c.p);
  c.o = {.out = c.t.out, .lse = c.t.lse, .s_dmask = {}};
  for (const Option& option : options)
    if (std::ranges::find(s.with, option.name) != s.with.end()) option.apply(c);
  if (s.op == "rotate") return gpu::explain(rotate_of(s, c.p), chip);
  if (s.op == "backward") return gpu::explain(BackwardCall{c.p, c.t, {}}, chip);
  const ForwardCall forward{c.p, c.o, {}};
  if (s.op == "append") return gpu::explain(DecodeCall{forward, append_of(s, c.p)}, chip);
  return s.op == "decode" ? gpu::explain(DecodeCall{forward, {}}, chip)
                          : gpu::explain(forward, chip);
}

}  // namespace rocflash::cli
