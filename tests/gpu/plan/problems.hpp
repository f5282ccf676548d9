// Problems for tests of launch plans: contiguous tensors at addresses that are never dereferenced.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "gpu/dispatch/select.hpp"
#include "gpu/plan/decode.hpp"
#include "gpu/plan/forward.hpp"
#include "gpu/plan/plan.hpp"

namespace rocflash::gpu {

using Names = std::vector<std::string>;

inline std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

inline Rows rows(std::uintptr_t address, std::int64_t length, std::int64_t heads, int columns,
                 DType dtype) {
  return {at(address), dtype, length * heads * columns, heads * columns, columns, columns};
}

struct Sizes {
  int d = 128, dv = 128;
  std::int64_t b = 2, sq = 1000, sk = 900, h = 8, hk = 8;
};

inline Problem dense_problem(DType dtype, const Sizes& s) {
  Problem p;
  p.dtype = dtype;
  p.heads = s.h;
  p.kv_heads = s.hk;
  p.head_dim = s.d;
  p.value_dim = s.dv;
  p.q = rows(0x10000, s.sq, s.h, s.d, dtype);
  p.k = rows(0x20000, s.sk, s.hk, s.d, dtype);
  p.v = rows(0x30000, s.sk, s.hk, s.dv, dtype);
  p.lengths = {.batch = s.b, .rows_q = s.sq, .rows_k = s.sk};
  p.max_q = s.sq;
  p.max_k = s.sk;
  return p;
}

inline Rows output(DType dtype, const Sizes& s) { return rows(0x40000, s.sq, s.h, s.dv, dtype); }

// All gradients of q, k and v.
inline BackwardTensors gradients(DType dtype, const Sizes& s) {
  BackwardTensors t;
  t.dout = rows(0x50000, s.sq, s.h, s.dv, dtype);
  t.out = output(dtype, s);
  t.lse = {reinterpret_cast<float*>(0x60000), s.h * s.sq, s.sq, 1};
  t.dq = rows(0x70000, s.sq, s.h, s.d, dtype);
  t.dk = rows(0x80000, s.sk, s.hk, s.d, dtype);
  t.dv = rows(0x90000, s.sk, s.hk, s.dv, dtype);
  return t;
}

// The decode kernel of a problem and its splits, whether or not decode is faster than forward.
inline DecodeSelection decode_of(const Problem& p, Chip chip) { return select_decode(p, {}, chip); }
inline std::int32_t num_splits(const Problem& p, Chip chip) { return decode_of(p, chip).splits; }

// Forward or decode, whether or not the other is faster.
inline void plan_forward(Plan& plan, const Problem& p, const ForwardOutputs& o, Chip chip) {
  plan_forward(plan, select_forward(p, o, chip), p, o, chip);
}
inline void plan_decode(Plan& plan, const Problem& p, const ForwardOutputs& o, std::byte* workspace,
                        Chip chip) {
  plan_decode(plan, select_decode(p, o, chip), p, o, workspace, chip);
}

// The names of the kernels of a plan, in launch order.
inline Names names_of(const Plan& plan) {
  Names names;
  for (const Launch& launch : plan.launches())
    names.emplace_back(kernel::kernel_name(launch.kernel));
  return names;
}

}  // namespace rocflash::gpu
