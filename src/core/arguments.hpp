// The arguments of a call that a plan leaves open: the addresses of its tensors, its dropout seed
// and offset, and the workspace. `bind_arguments` writes them into a validated call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/calls.hpp"
#include "core/names.hpp"

namespace rocflash::core {

// Up to dlse in the order of rocflash_plan_arguments, whose newer tensors are at its end.
enum class Argument : std::uint8_t {
  q,
  k,
  v,
  cu_seqlens_q,
  cu_seqlens_k,
  seqused_q,
  seqused_k,
  leftpad_k,
  mask,
  alibi_slopes,
  bias,
  sinks,
  block_table,
  cache_batch_idx,
  k_new,
  v_new,
  cu_seqlens_k_new,
  rotary_cos,
  rotary_sin,
  rotary_seqlens,
  out,
  lse,
  s_dmask,
  dout,
  dq,
  dk,
  dv,
  dsinks,
  dbias,
  dalibi_slopes,
  delta,
  dlse,
  k_descale,
  v_descale,
  dropout_seed,
  dropout_offset,
  workspace,
};
inline constexpr int argument_count = static_cast<int>(Argument::workspace) + 1;
inline constexpr int tensor_argument_count = static_cast<int>(Argument::dropout_seed);

// Addresses of tensors and the workspace, and the two numbers of dropout.
struct ArgumentValues {
  std::array<std::uint64_t, argument_count> value{};

  std::uint64_t& operator[](Argument a) { return value[static_cast<std::size_t>(a)]; }
  std::uint64_t operator[](Argument a) const { return value[static_cast<std::size_t>(a)]; }
};

// Writes the addresses into the tensors that are present.
class ArgumentBinder {
 public:
  explicit ArgumentBinder(const ArgumentValues& values) : values_(values) {}

  void bind(Problem& p) const {
    set(p.q.data, Argument::q);
    set(p.k.data, Argument::k);
    set(p.v.data, Argument::v);
    Lengths& l = p.lengths;
    set(l.cu_q, Argument::cu_seqlens_q);
    set(l.cu_k, Argument::cu_seqlens_k);
    set(l.used_q, Argument::seqused_q);
    set(l.used_k, Argument::seqused_k);
    set(l.leftpad_k, Argument::leftpad_k);
    const Argument blocks = l.paged ? Argument::block_table : Argument::cache_batch_idx;
    set(p.k.blocks, blocks);
    set(p.v.blocks, blocks);
    set(p.mask.data, Argument::mask);
    set(p.alibi.data, Argument::alibi_slopes);
    set(p.bias.data, Argument::bias);
    set(p.sinks.data, Argument::sinks);
    set(p.k_descale.data, Argument::k_descale);
    set(p.v_descale.data, Argument::v_descale);
    p.dropout.seed = values_[Argument::dropout_seed];
    p.dropout.offset = values_[Argument::dropout_offset];
  }
  void bind(ForwardOutputs& o) const {
    set(o.out.data, Argument::out);
    set(o.lse.data, Argument::lse);
    set(o.s_dmask.data, Argument::s_dmask);
  }
  void bind(Append& a) const {
    set(a.k.data, Argument::k_new);
    set(a.v.data, Argument::v_new);
    set(a.cu, Argument::cu_seqlens_k_new);
    set(a.rotary.cos, Argument::rotary_cos);
    set(a.rotary.sin, Argument::rotary_sin);
    set(a.rotary.first, Argument::rotary_seqlens);
  }
  void bind(BackwardTensors& t) const {
    set(t.dout.data, Argument::dout);
    set(t.out.data, Argument::out);
    set(t.lse.data, Argument::lse);
    set(t.dq.data, Argument::dq);
    set(t.dk.data, Argument::dk);
    set(t.dv.data, Argument::dv);
    set(t.dsinks.data, Argument::dsinks);
    set(t.dbias.data, Argument::dbias);
    set(t.dalibi.data, Argument::dalibi_slopes);
  }
  void bind(RowStatistic& statistic, Argument a) const { set(statistic.data, a); }

 private:
  template <class Element>
  void set(Element*& address, Argument a) const {
    if (address) address = reinterpret_cast<Element*>(values_[a]);
  }

  const ArgumentValues& values_;
};

inline void bind_arguments(ForwardCall& c, const ArgumentValues& values) {
  const ArgumentBinder binder(values);
  binder.bind(c.problem);
  binder.bind(c.outputs);
}
inline void bind_arguments(DecodeCall& c, const ArgumentValues& values) {
  bind_arguments(static_cast<ForwardCall&>(c), values);
  ArgumentBinder(values).bind(c.append);
}
inline void bind_arguments(BackwardCall& c, const ArgumentValues& values) {
  const ArgumentBinder binder(values);
  binder.bind(c.problem);
  binder.bind(c.tensors);
  binder.bind(c.delta, Argument::delta);
  binder.bind(c.dlse, Argument::dlse);
}

}  // namespace rocflash::core
