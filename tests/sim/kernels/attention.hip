// Unmasked attention forward, head dim 128, bf16, one wave per 32 queries: S^T = K Q^T so that P is
// already in the layout of the second product's operand. It benchmarks the simulator only.
#include "device.h"

using bf16x4 = __attribute__((ext_vector_type(4))) short;
using f32x16 = __attribute__((ext_vector_type(16))) float;

constexpr int kDim = 128;

DEVICE inline float other_half(float x) {
  return __builtin_bit_cast(
      float, __builtin_amdgcn_ds_bpermute(i32((lane() ^ 32) * 4), __builtin_bit_cast(i32, x)));
}
DEVICE inline short narrow(float x) { return __builtin_bit_cast(short, (__bf16)x); }

GLOBAL BOUNDS(64) void attention_forward(const short* q, const short* k, const short* v, float* out,
                                         i32 keys, float scale_log2) {
  const u32 l = lane();
  const u32 column = l % 32, half = l / 32;
  const u32 query = bid() * 32 + column;
  bf16x4 qf[kDim / 8];
  for (int c = 0; c < kDim / 8; ++c) {
    qf[c] = *reinterpret_cast<const bf16x4*>(q + query * kDim + c * 8 + half * 4);
  }
  f32x16 o[kDim / 32] = {};
  float largest = -1e30f, sum = 0;
  for (i32 key = 0; key < keys; key += 32) {
    f32x16 s = {};
#pragma unroll
    for (int c = 0; c < kDim / 8; ++c) {
      const auto kf =
          *reinterpret_cast<const bf16x4*>(k + (key + column) * kDim + c * 8 + half * 4);
      s = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(kf, qf[c], s, 0, 0, 0);
    }
    float m = largest;
#pragma unroll
    for (int i = 0; i < 16; ++i) m = __builtin_fmaxf(m, s[i] * scale_log2);
    m = __builtin_fmaxf(m, other_half(m));
    const float shrink = __builtin_amdgcn_exp2f(largest - m);
    largest = m;
    float part = 0;
    bf16x4 p[4];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float e = __builtin_amdgcn_exp2f(s[i] * scale_log2 - m);
      part += e;
      p[i / 4][i % 4] = narrow(e);
    }
    sum = sum * shrink + part + other_half(part);
#pragma unroll
    for (int t = 0; t < kDim / 32; ++t) {
      o[t] *= shrink;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        bf16x4 vf;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          vf[e] = v[(key + 8 * c + 4 * half + e) * kDim + t * 32 + column];
        o[t] = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(vf, p[c], o[t], 0, 0, 0);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kDim / 32; ++t) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      out[query * kDim + t * 32 + 8 * (i / 4) + 4 * half + i % 4] = o[t][i] / sum;
    }
  }
}
