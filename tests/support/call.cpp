#include "support/call.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace rocflash::test {
namespace {

HostTensor cumulative(const std::vector<std::int64_t>& lengths) {
  HostTensor cu(DType::i32, {static_cast<std::int64_t>(lengths.size()) + 1});
  std::int64_t sum = 0;
  cu.set_flat(0, 0);
  for (std::size_t n = 0; n < lengths.size(); ++n)
    cu.set_flat(static_cast<std::int64_t>(n) + 1, static_cast<double>(sum += lengths[n]));
  return cu;
}

std::vector<std::int64_t> shape_of(const std::vector<std::int64_t>& rows, std::int64_t heads,
                                   std::int64_t columns) {
  std::vector<std::int64_t> shape = rows;
  shape.push_back(heads);
  shape.push_back(columns);
  return shape;
}

}  // namespace

Call::Call(Size s, DType t, std::uint64_t seed) : size(s), dtype(t), random(seed) {
  build({s.b, s.sq}, {s.b, s.sk});
}

Call::Call(Size s, std::vector<std::int64_t> lengths_q, std::vector<std::int64_t> lengths_k,
           DType t, std::uint64_t seed)
    : size(s), dtype(t), random(seed) {
  size.b = static_cast<std::int64_t>(lengths_q.size());
  size.sq = *std::max_element(lengths_q.begin(), lengths_q.end());
  size.sk = *std::max_element(lengths_k.begin(), lengths_k.end());
  cu_q = cumulative(lengths_q);
  cu_k = cumulative(lengths_k);
  build({std::accumulate(lengths_q.begin(), lengths_q.end(), std::int64_t{0})},
        {std::accumulate(lengths_k.begin(), lengths_k.end(), std::int64_t{0})});
}

void Call::build(std::vector<std::int64_t> q_rows, std::vector<std::int64_t> k_rows) {
  const auto query = [&](std::int64_t columns) {
    return HostTensor(dtype, shape_of(q_rows, size.h, columns));
  };
  const auto key = [&](std::int64_t columns) {
    return HostTensor(dtype, shape_of(k_rows, size.hk, columns));
  };
  q = query(size.d);
  k = key(size.d);
  v = key(size.dv);
  out = query(size.dv);
  dout = query(size.dv);
  dq = query(size.d);
  dk = key(size.d);
  dv = key(size.dv);
  lse = packed() ? HostTensor(DType::f32, {size.h, q_rows[0]})
                 : HostTensor(DType::f32, {size.b, size.h, size.sq});
  for (HostTensor* t : {&q, &k, &v, &dout}) t->fill_normal(random);
  set_pointers();
}

void Call::set_pointers() {
  const auto of = [](const HostTensor& t) { return t ? &t.dl : nullptr; };
  problem.struct_size = sizeof problem;
  forward_outputs.struct_size = sizeof forward_outputs;
  backward_tensors.struct_size = sizeof backward_tensors;
  execution.struct_size = sizeof execution;
  problem.q = of(q);
  problem.k = of(k);
  problem.v = of(v);
  problem.cu_seqlens_q = of(cu_q);
  problem.cu_seqlens_k = of(cu_k);
  problem.seqused_q = of(used_q);
  problem.seqused_k = of(used_k);
  problem.leftpad_k = of(leftpad);
  problem.mask = of(mask);
  problem.alibi_slopes = of(alibi);
  problem.bias = of(bias);
  problem.sinks = of(sinks);
  forward_outputs.out = of(out);
  forward_outputs.lse = of(lse);
  forward_outputs.s_dmask = of(s_dmask);
  backward_tensors.dout = of(dout);
  backward_tensors.out = of(out);
  backward_tensors.lse = of(lse);
  backward_tensors.dq = of(dq);
  backward_tensors.dk = of(dk);
  backward_tensors.dv = of(dv);
  backward_tensors.dsinks = of(dsinks);
  backward_tensors.dbias = of(dbias);
  backward_tensors.dalibi_slopes = of(dalibi);
  backward_tensors.delta = of(delta);
  backward_tensors.dlse = of(dlse);
}

Call& Call::with_mask() {
  mask = HostTensor(DType::boolean, {size.b, size.h, size.sq, size.sk});
  for (std::int64_t n = 0; n < mask.size(); ++n) mask.set_flat(n, random() % 4 != 0);
  set_pointers();
  return *this;
}

Call& Call::with_alibi(bool per_batch) {
  alibi = per_batch ? HostTensor(DType::f32, {size.b, size.h}) : HostTensor(DType::f32, {size.h});
  for (std::int64_t n = 0; n < alibi.size(); ++n)
    alibi.set_flat(n, 0.5 / static_cast<double>(n + 1));
  set_pointers();
  return *this;
}

Call& Call::with_bias(std::vector<std::int64_t> shape) {
  if (shape.empty()) shape = {size.b, size.h, size.sq, size.sk};
  bias = HostTensor(dtype, std::move(shape));
  bias.fill_normal(random);
  set_pointers();
  return *this;
}

Call& Call::with_option_gradients() {
  if (bias) dbias = HostTensor(bias.dtype(), bias.shape());
  if (alibi) dalibi = HostTensor(alibi.dtype(), alibi.shape());
  set_pointers();
  return *this;
}

Call& Call::with_sinks() {
  sinks = HostTensor(dtype, {size.h});
  sinks.fill_normal(random);
  dsinks = HostTensor(DType::f32, {size.h});
  set_pointers();
  return *this;
}

Call& Call::with_window(std::int64_t left, std::int64_t right) {
  window[0] = left;
  window[1] = right;
  problem.window = window;
  return *this;
}

Call& Call::with_scale(float value) {
  scale = value;
  problem.softmax_scale = &scale;
  return *this;
}

Call& Call::with_dropout(float p, std::uint64_t seed, std::uint64_t offset) {
  problem.dropout_p = p;
  problem.dropout_seed = seed;
  problem.dropout_offset = offset;
  return *this;
}

Call& Call::with_s_dmask() {
  s_dmask = HostTensor(DType::f32, {size.b, size.h, size.sq, size.sk});
  set_pointers();
  return *this;
}

Call& Call::with_delta() {
  delta = HostTensor(DType::f32, lse.shape());
  set_pointers();
  return *this;
}

Call& Call::with_dlse() {
  dlse = HostTensor(DType::f32, lse.shape());
  dlse.fill_normal(random);
  set_pointers();
  return *this;
}

Call& Call::with_lengths(HostTensor& tensor, std::initializer_list<double> lengths) {
  tensor = HostTensor(DType::i32, {size.b});
  tensor.assign(lengths);
  set_pointers();
  return *this;
}

Call& Call::backend(rocflash_backend which, int threads) {
  execution.backend = which;
  execution.num_threads = threads;
  return *this;
}

void* Call::allocate_workspace(std::size_t bytes) {
  workspace.resize(bytes + 64);
  const auto at = reinterpret_cast<std::uintptr_t>(workspace.data());
  return workspace.data() + (64 - at % 64) % 64;
}

template <class Tensors>
rocflash_status Call::run(WorkspaceFunction<Tensors> workspace_of, Function<Tensors> function,
                          const Tensors& tensors) {
  std::size_t bytes = 0;
  const rocflash_status status = workspace_of(&problem, &tensors, &execution, &bytes);
  if (status != ROCFLASH_OK) return status;
  execution.workspace = allocate_workspace(bytes);
  execution.workspace_size = bytes;
  return function(&problem, &tensors, &execution);
}

rocflash_status Call::forward() {
  return run(rocflash_forward_workspace, rocflash_forward, forward_outputs);
}

rocflash_status Call::backward() {
  return run(rocflash_backward_workspace, rocflash_backward, backward_tensors);
}

void Call::expect_forward() { ASSERT_EQ(forward(), ROCFLASH_OK) << rocflash_last_error(); }
void Call::expect_backward() { ASSERT_EQ(backward(), ROCFLASH_OK) << rocflash_last_error(); }

std::vector<const HostTensor*> Call::outputs() const {
  std::vector<const HostTensor*> all;
  for (const HostTensor* t :
       {&out, &lse, &s_dmask, &dq, &dk, &dv, &dsinks, &dbias, &dalibi, &delta}) {
    if (*t) all.push_back(t);
  }
  return all;
}

}  // namespace rocflash::test
