// A GEMM on the target's MFMA, WMMA or dot product instructions. One wave computes a 16x16
// tile; B is given transposed, so that both operands are read along k.
#include "device.h"

using f16x2 = __attribute__((ext_vector_type(2))) f16;
using f16x4 = __attribute__((ext_vector_type(4))) f16;
using f16x8 = __attribute__((ext_vector_type(8))) f16;
using f16x16 = __attribute__((ext_vector_type(16))) f16;
using f32x4 = __attribute__((ext_vector_type(4))) float;
using f32x8 = __attribute__((ext_vector_type(8))) float;

GLOBAL BOUNDS(64) void gemm(const f16* a, const f16* b, float* c, i32 n, i32 k) {
  const u32 l = lane(), column = l % 16, group = l / 16;
  const u32 tile_row = __builtin_amdgcn_workgroup_id_y() * 16, tile_column = bid() * 16;
  const f16* x = a + (tile_row + column) * u32(k);
  const f16* y = b + (tile_column + column) * u32(k);
#if defined(__gfx906__)
  for (u32 r = 0; r < 4; ++r) {
    const u32 row = tile_row + group * 4 + r;
    float sum = 0;
    for (i32 i = 0; i < k; i += 2) {
      const auto p = *reinterpret_cast<const f16x2*>(a + row * u32(k) + i);
      const auto q = *reinterpret_cast<const f16x2*>(y + i);
      sum = __builtin_amdgcn_fdot2(p, q, sum, false);
    }
    c[row * u32(n) + tile_column + column] = sum;
  }
#elif defined(__GFX9__)
  f32x4 d = {};
  for (i32 i = 0; i < k; i += 16) {
    const auto p = *reinterpret_cast<const f16x4*>(x + i + group * 4);
    const auto q = *reinterpret_cast<const f16x4*>(y + i + group * 4);
    d = __builtin_amdgcn_mfma_f32_16x16x16f16(p, q, d, 0, 0, 0);
  }
  for (u32 v = 0; v < 4; ++v) c[(tile_row + 4 * group + v) * u32(n) + tile_column + column] = d[v];
#elif defined(__GFX11__)
  f32x8 d = {};
  for (i32 i = 0; i < k; i += 16) {
    const auto p = *reinterpret_cast<const f16x16*>(x + i);
    const auto q = *reinterpret_cast<const f16x16*>(y + i);
    d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(p, q, d);
  }
  for (u32 v = 0; v < 8; ++v) c[(tile_row + 2 * v + group) * u32(n) + tile_column + column] = d[v];
#elif defined(__GFX12__)
  f32x8 d = {};
  for (i32 i = 0; i < k; i += 16) {
    const auto p = *reinterpret_cast<const f16x8*>(x + i + group * 8);
    const auto q = *reinterpret_cast<const f16x8*>(y + i + group * 8);
    d = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(p, q, d);
  }
  for (u32 v = 0; v < 8; ++v) c[(tile_row + 8 * group + v) * u32(n) + tile_column + column] = d[v];
#else
  for (u32 r = 0; r < 8; ++r) {
    const u32 row = tile_row + group * 8 + r;
    float sum = 0;
    for (i32 i = 0; i < k; i += 2) {
      const auto p = *reinterpret_cast<const f16x2*>(a + row * u32(k) + i);
      const auto q = *reinterpret_cast<const f16x2*>(y + i);
      sum = __builtin_amdgcn_fdot2(p, q, sum, false);
    }
    c[row * u32(n) + tile_column + column] = sum;
  }
#endif
}
