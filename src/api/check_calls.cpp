// Validation of each entry point: its problem, outputs, gradients and execution.
#include <algorithm>

#include "api/backends.hpp"
#include "api/check.hpp"
#include "api/structs.hpp"
#include "core/error.hpp"
#include "cpu/thread_pool.hpp"
#include "reference/reference.hpp"

namespace rocflash {
namespace {

// A tensor with the rows of q (out, dq) or of k and v (dk, dv).
Rows check_rows(const Tensor& t, const Problem& p, bool packed,
                std::initializer_list<std::int64_t> shape, const char* dims, bool is_reference) {
  check_shape(t, shape, dims);
  // The reference backend also writes results wider than its inputs.
  is_reference ? check_dtype(t, {p.dtype, DType::f64, DType::f32}) : check_dtype(t, {p.dtype});
  return rows_of(t, packed);
}

Rows check_query_rows(const Tensor& t, const Problem& p, int columns, bool is_reference) {
  const std::int64_t rows = p.lengths.rows_q;
  if (p.lengths.packed_q())
    return check_rows(t, p, true, {rows, p.heads, columns}, "(total_q, h, columns)", is_reference);
  return check_rows(t, p, false, {p.batch(), rows, p.heads, columns}, "(b, sq, h, columns)",
                    is_reference);
}

Rows check_key_rows(const Tensor& t, const Problem& p, int columns, bool is_reference) {
  const std::int64_t rows = p.lengths.rows_k;
  if (p.lengths.packed_k())
    return check_rows(t, p, true, {rows, p.kv_heads, columns}, "(total_k, hk, columns)",
                      is_reference);
  return check_rows(t, p, false, {p.batch(), rows, p.kv_heads, columns}, "(b, sk, hk, columns)",
                    is_reference);
}

// One float per (batch, head, query): lse, delta, dlse.
RowStatistic check_row_statistic(const Tensor& t, const Problem& p) {
  check_dtype(t, {DType::f32});
  if (p.lengths.packed_q()) {
    check_shape(t, {p.heads, p.lengths.rows_q}, "(h, total_q)");
    return {reinterpret_cast<float*>(t.data), 0, t.stride[0], t.stride[1]};
  }
  check_shape(t, {p.batch(), p.heads, p.lengths.rows_q}, "(b, h, sq)");
  return {reinterpret_cast<float*>(t.data), t.stride[0], t.stride[1], t.stride[2]};
}

// Has the shape of bias. Gradients are summed over broadcast dimensions.
PerScore check_dbias(const Tensor& t, const DLTensor* bias, const Problem& p, bool is_reference) {
  if (!bias) refuse("dbias is given; without bias it must be null");
  is_reference ? check_dtype(t, {p.bias.dtype, DType::f64, DType::f32})
               : check_dtype(t, {p.bias.dtype});
  check_shape(t, {bias->shape[0], bias->shape[1], bias->shape[2], bias->shape[3]},
              "the shape of bias");
  PerScore found = per_score(t, p);
  // A stride of 0 marks a broadcast dimension; strides of an empty tensor are arbitrary.
  if (t.empty()) found.batch_stride = found.head_stride = found.query_stride = found.key_stride = 1;
  return found;
}

ForwardOutputs check_outputs(const rocflash_forward_outputs& in, CallTensors& tensors,
                             const Problem& p, bool is_reference) {
  ForwardOutputs o;
  o.out = check_query_rows(tensors.required("out", in.out, Access::write), p, p.value_dim,
                           is_reference);
  if (const auto lse = tensors.optional("lse", in.lse, Access::write))
    o.lse = check_row_statistic(*lse, p);
  if (const auto weights = tensors.optional("s_dmask", in.s_dmask, Access::write)) {
    check_dtype(*weights, {DType::f32, p.dtype});
    check_shape(*weights, {p.batch(), p.heads, p.max_q, p.max_k}, "(b, h, sq, sk)");
    o.s_dmask = per_score(*weights, p);
  }
  return o;
}

// Null means all defaults.
rocflash_execution read_execution(const rocflash_execution* in) {
  rocflash_execution none{};
  none.struct_size = sizeof none;
  return in ? read_struct("execution", in) : none;
}

Resources check_resources(const rocflash_execution& in, Device device) {
  if (in.num_threads < 0 || in.num_threads > max_threads)
    refuse("num_threads is ", in.num_threads, "; it must be 0 (automatic) to ", max_threads);
  Resources r;
  r.workspace = static_cast<std::byte*>(in.workspace);
  r.workspace_size = in.workspace_size;
  if (device.type != kDLCPU) {
    r.stream = in.stream;  // null is the default stream
    return r;
  }
  if (in.stream) refuse("stream is given; for CPU tensors it must be null");
  r.threads = in.num_threads > 0 ? in.num_threads : default_threads();
  return r;
}

// Execution options, device and backend of a call.
struct CallContext {
  CallContext(const DLTensor* q, const rocflash_execution* given, Data data, TensorRecord* record)
      : execution(read_execution(given)),
        device(read_tensor("q", q, Access::read, Data::may_be_null).value_or(Tensor{}).device),
        backend(select_backend(execution, device)),
        tensors(device, data, record) {}

  bool is_reference() const { return &backend == &reference_backend(); }

  rocflash_execution execution;
  Device device;
  const Backend& backend;
  CallTensors tensors;
};

// Throws if the backend does not support the validated call.
template <class Call>
Checked<Call> check_supported(const CallContext& context, Call call) {
  if (const std::string why = context.backend.refusal(call); !why.empty()) refuse_unsupported(why);
  return {std::move(call), context.backend};
}

}  // namespace

Checked<ForwardCall> check_forward(const rocflash_problem* problem_in,
                                   const rocflash_forward_outputs* outputs_in,
                                   const rocflash_execution* execution_in, Data data,
                                   TensorRecord* record) {
  const auto in = read_struct("problem", problem_in);
  const auto outputs = read_struct("outputs", outputs_in);
  CallContext context(in.q, execution_in, data, record);
  ForwardCall call;
  call.problem = check_problem(in, context.tensors, Access::read);
  call.resources = check_resources(context.execution, context.device);
  call.outputs = check_outputs(outputs, context.tensors, call.problem, context.is_reference());
  return check_supported(context, call);
}

Checked<DecodeCall> check_decode(const rocflash_problem* problem_in,
                                 const rocflash_append* append_in,
                                 const rocflash_forward_outputs* outputs_in,
                                 const rocflash_execution* execution_in, Data data,
                                 TensorRecord* record) {
  const auto in = read_struct("problem", problem_in);
  const auto outputs = read_struct("outputs", outputs_in);
  rocflash_append append{};
  if (append_in) append = read_struct("append", append_in);
  CallContext context(in.q, execution_in, data, record);
  DecodeCall call;
  call.problem = check_problem(in, context.tensors, append.k_new ? Access::write : Access::read);
  call.problem.inference = true;
  call.resources = check_resources(context.execution, context.device);
  call.append = check_append(append, context.tensors, call.problem);
  call.outputs = check_outputs(outputs, context.tensors, call.problem, context.is_reference());
  return check_supported(context, call);
}

Checked<BackwardCall> check_backward(const rocflash_problem* problem_in,
                                     const rocflash_backward_tensors* tensors_in,
                                     const rocflash_execution* execution_in, Data data,
                                     TensorRecord* record) {
  const auto in = read_struct("problem", problem_in);
  const auto given = read_struct("tensors", tensors_in);
  CallContext context(in.q, execution_in, data, record);
  CallTensors& tensors = context.tensors;
  BackwardCall call;
  call.problem = check_problem(in, tensors, Access::read);
  call.resources = check_resources(context.execution, context.device);
  const Problem& p = call.problem;
  if (p.k.blocks)
    refuse_unsupported(
        p.lengths.paged ? "block_table" : "cache_batch_idx",
        " is given; backward through a KV cache is not supported, so it must be null");
  if (p.k.dtype != p.dtype)
    refuse_unsupported("k has dtype ", name_of(p.k.dtype),
                       "; for backward it must have the dtype of q, ", name_of(p.dtype));
  BackwardTensors& t = call.tensors;
  const bool is_reference = context.is_reference();
  t.dout = check_query_rows(tensors.required("dout", given.dout, Access::read), p, p.value_dim,
                            is_reference);
  t.out = check_query_rows(tensors.required("out", given.out, Access::read), p, p.value_dim,
                           is_reference);
  t.lse = check_row_statistic(tensors.required("lse", given.lse, Access::read), p);
  if (const auto dq = tensors.optional("dq", given.dq, Access::write))
    t.dq = check_query_rows(*dq, p, p.head_dim, is_reference);
  if (const auto dk = tensors.optional("dk", given.dk, Access::write))
    t.dk = check_key_rows(*dk, p, p.head_dim, is_reference);
  if (const auto dv = tensors.optional("dv", given.dv, Access::write))
    t.dv = check_key_rows(*dv, p, p.value_dim, is_reference);
  if (const auto dsinks = tensors.optional("dsinks", given.dsinks, Access::write)) {
    if (!p.sinks) refuse("dsinks is given; without sinks it must be null");
    check_dtype(*dsinks, {DType::f32});
    t.dsinks = per_head(*dsinks, p);
  }
  if (const auto dbias = tensors.optional("dbias", given.dbias, Access::write))
    t.dbias = check_dbias(*dbias, in.bias, p, is_reference);
  if (const auto slopes = tensors.optional("dalibi_slopes", given.dalibi_slopes, Access::write)) {
    if (!p.alibi) refuse("dalibi_slopes is given; without alibi_slopes it must be null");
    check_dtype(*slopes, {DType::f32});
    if (in.alibi_slopes->ndim != slopes->ndim)
      refuse("dalibi_slopes has shape ", slopes->shape_text(),
             "; it must be the shape of alibi_slopes");
    t.dalibi = slopes_of(*slopes, p);
  }
  if (const auto delta = tensors.optional("delta", given.delta, Access::write)) {
    call.delta = check_row_statistic(*delta, p);
    if (p.lengths.rows_q > 1 && call.delta.query_stride != 1)
      refuse("delta has a last stride of ", call.delta.query_stride, "; it must be 1");
    call.delta.query_stride = 1;
  }
  if (const auto dlse = tensors.optional("dlse", given.dlse, Access::read))
    call.dlse = check_row_statistic(*dlse, p);
  if (!t.dq && !t.dk && !t.dv && !t.dsinks && !t.dbias && !t.dalibi)
    refuse(
        "dq is null, and so are dk, dv, dsinks, dbias and dalibi_slopes; at least one gradient "
        "is required");
  return check_supported(context, call);
}

void check_host_values(const ForwardCall& c) { check_host_values(c.problem); }
void check_host_values(const BackwardCall& c) { check_host_values(c.problem); }
void check_host_values(const DecodeCall& c) {
  check_host_values(c.problem);
  check_host_values(c.problem, c.append);
}

Checked<CombineCall> check_combine(const DLTensor* out_partial_in, const DLTensor* lse_partial_in,
                                   const DLTensor* out_in, const DLTensor* lse_in,
                                   const rocflash_execution* execution_in, Data data) {
  const rocflash_execution execution = read_execution(execution_in);
  if (!out_partial_in) refuse("out_partial is null; it is required");
  const Device device = read_tensor("out_partial", out_partial_in, Access::read, data)->device;
  CallTensors tensors(device, data);
  const Tensor out_partial = tensors.required("out_partial", out_partial_in, Access::read);
  const Tensor lse_partial = tensors.required("lse_partial", lse_partial_in, Access::read);
  const Tensor out = tensors.required("out", out_in, Access::write);
  const auto lse = tensors.optional("lse", lse_in, Access::write);
  check_dtype(out_partial, {DType::f32});
  check_dtype(lse_partial, {DType::f32});
  check_dtype(out, {DType::f32, DType::f16, DType::bf16});
  check_ndim(out_partial, 5, "(splits, b, sq, h, dv)");
  const auto& shape = out_partial.shape;
  check_shape(lse_partial, {shape[0], shape[1], shape[3], shape[2]}, "(splits, b, h, sq)");
  check_shape(out, {shape[1], shape[2], shape[3], shape[4]}, "(b, sq, h, dv)");
  if (lse) {
    check_dtype(*lse, {DType::f32});
    check_shape(*lse, {shape[1], shape[3], shape[2]}, "(b, h, sq)");
  }
  CombineCall call;
  call.splits = shape[0];
  call.batch = shape[1];
  call.queries = shape[2];
  call.heads = shape[3];
  call.columns = shape[4];
  call.out_partial = reinterpret_cast<const float*>(out_partial.data);
  call.lse_partial = reinterpret_cast<const float*>(lse_partial.data);
  call.out = out.data;
  call.out_dtype = out.dtype;
  call.lse = lse ? reinterpret_cast<float*>(lse->data) : nullptr;
  std::copy_n(out_partial.stride, 5, call.out_partial_stride);
  std::copy_n(lse_partial.stride, 4, call.lse_partial_stride);
  std::copy_n(out.stride, 4, call.out_stride);
  if (lse) std::copy_n(lse->stride, 3, call.lse_stride);
  call.resources = check_resources(execution, device);
  return {call, select_backend(execution, device)};
}

Checked<RotateCall> check_rotate(const DLTensor* x_in, const DLTensor* cos_in,
                                 const DLTensor* sin_in, const DLTensor* cu_in,
                                 const DLTensor* first_in, std::int32_t interleaved,
                                 const DLTensor* out_in, const rocflash_execution* execution_in,
                                 Data data) {
  const rocflash_execution execution = read_execution(execution_in);
  if (!x_in) refuse("x is null; it is required");
  if (!out_in) refuse("out is null; it is required");
  const Tensor x = *read_tensor("x", x_in, Access::read, data);
  const Tensor out = *read_tensor("out", out_in, Access::write, data);
  CallTensors tensors(x.device, data);
  tensors.required("out", out_in, Access::write);
  // In place: the same data and strides. Any other overlap is rejected.
  const bool in_place = out.data == x.data && out.ndim == x.ndim &&
                        std::equal(x.shape, x.shape + x.ndim, out.shape) &&
                        std::equal(x.stride, x.stride + x.ndim, out.stride);
  if (!in_place) tensors.required("x", x_in, Access::read);
  check_dtype(x, {DType::f32, DType::f16, DType::bf16});
  check_dtype(out, {x.dtype});
  const bool packed = cu_in != nullptr;
  const char* dims = packed ? "(total, h, d) with cu_seqlens" : "(b, s, h, d)";
  check_ndim(x, packed ? 3 : 4, dims);
  packed ? check_shape(out, {x.shape[0], x.shape[1], x.shape[2]}, "the shape of x")
         : check_shape(out, {x.shape[0], x.shape[1], x.shape[2], x.shape[3]}, "the shape of x");
  RotateCall call;
  Problem& p = call.problem;
  p.dtype = x.dtype;
  p.q = rows_of(x, packed);
  p.heads = p.kv_heads = x.shape[x.ndim - 2];
  p.head_dim = p.value_dim = p.q.columns;
  if (p.head_dim < 1 || p.head_dim > max_head_dim)
    refuse("x has shape ", x.shape_text(), "; it must have 1 to ", max_head_dim, " columns");
  p.visibility.right = 0;  // each query has its own position
  const auto cu = tensors.lengths("cu_seqlens", cu_in);
  if (cu && (cu->ndim != 1 || cu->shape[0] < 1))
    refuse("cu_seqlens has shape ", cu->shape_text(), "; it must be (b + 1,)");
  p.lengths.batch = packed ? cu->shape[0] - 1 : x.shape[0];
  p.lengths.rows_q = x.shape[packed ? 0 : 1];
  p.lengths.cu_q = int_values(cu, p.lengths.batch + 1, "(b + 1,)");
  if (tensors.on_host()) check_cumulative("cu_seqlens", p.lengths.cu_q, p.batch(), x.shape[0]);
  const Tensor cos = tensors.required("cos", cos_in, Access::read);
  const Tensor sin = tensors.required("sin", sin_in, Access::read);
  call.rotary = check_rotary_tables(cos, sin, x.dtype, p.head_dim);
  call.rotary.interleaved = flag("interleaved", interleaved);
  call.rotary.first = int_values(tensors.lengths("first", first_in), p.batch(), "(b,)");
  const auto check_position = [&](std::int64_t b, std::int64_t first, std::int64_t rows) {
    if (first < 0) refuse("first is ", first, " for sequence ", b, "; it must not be negative");
    if (rows > 0 && rows > call.rotary.positions - first)
      refuse("cos has ", call.rotary.positions, " positions; sequence ", b, " requires ",
             first + rows);
  };
  if (tensors.on_host()) {
    for (std::int64_t b = 0; b < p.batch(); ++b)
      check_position(b, call.rotary.first ? call.rotary.first[b] : 0, p.lengths.queries(b));
  } else if (!packed && !first_in && p.batch() > 0) {
    check_position(0, 0, p.lengths.rows_q);
  }
  call.out = rows_of(out, packed);
  call.resources = check_resources(execution, x.device);
  return {call, select_backend(execution, x.device)};
}

}  // namespace rocflash
