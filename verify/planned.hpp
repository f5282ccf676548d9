// Calls through plans. Each plan is created from tensors at other addresses than those of its run.
#pragma once

#include <rocflash/rocflash.hpp>

#include <cstddef>

namespace rocflash::verify {

// A tensor of the same alignment elsewhere, which is never accessed.
inline Tensor moved(const Tensor& t) {
  constexpr std::size_t distance = std::size_t{1} << 30;
  const bool lengths = t.dtype() == DType::i32 && t.device().device_type == kDLCPU;
  if (!t.data() || lengths) return t;
  return {static_cast<std::byte*>(t.data()) + distance, t.dtype(), t.shape(), t.strides(),
          t.device()};
}

inline Problem moved(Problem p) {
  for (Tensor* t : {&p.q, &p.k, &p.v}) *t = moved(*t);
  for (auto* t : {&p.cu_seqlens_q, &p.cu_seqlens_k, &p.seqused_q, &p.seqused_k, &p.leftpad_k,
                  &p.mask, &p.alibi_slopes, &p.bias, &p.sinks, &p.block_table, &p.cache_batch_idx,
                  &p.k_descale, &p.v_descale})
    if (*t) *t = moved(**t);
  return p;
}

inline ForwardOutputs moved(ForwardOutputs o) {
  o.out = moved(o.out);
  for (auto* t : {&o.lse, &o.s_dmask})
    if (*t) *t = moved(**t);
  return o;
}

inline BackwardTensors moved(BackwardTensors b) {
  for (Tensor* t : {&b.dout, &b.out, &b.lse}) *t = moved(*t);
  for (auto* t : {&b.dq, &b.dk, &b.dv, &b.dsinks, &b.dbias, &b.dalibi_slopes, &b.delta, &b.dlse})
    if (*t) *t = moved(**t);
  return b;
}

inline Append moved(Append a) {
  for (auto* t :
       {&a.k_new, &a.v_new, &a.cu_seqlens_k_new, &a.rotary_cos, &a.rotary_sin, &a.rotary_seqlens})
    if (*t) *t = moved(**t);
  return a;
}

enum class By { call, plan };

inline void forward(const Problem& p, const ForwardOutputs& o, const Execution& e, By by) {
  if (by == By::call) return rocflash::forward(p, o, e);
  Plan(moved(p), moved(o), e).run(plan_arguments(p, o, e));
}

inline void decode(const Problem& p, const Append& a, const ForwardOutputs& o, const Execution& e,
                   By by) {
  if (by == By::call) return rocflash::decode(p, a, o, e);
  Plan(moved(p), moved(a), moved(o), e).run(plan_arguments(p, a, o, e));
}

inline void backward(const Problem& p, const BackwardTensors& b, const Execution& e, By by) {
  if (by == By::call) return rocflash::backward(p, b, e);
  Plan(moved(p), moved(b), e).run(plan_arguments(p, b, e));
}

}  // namespace rocflash::verify
