// Kernels with typical access patterns: all have the same arguments, two inputs, an output and
// a count. Compiled at several optimization levels for every target.
#include "device.h"

using bf16 = __bf16;
#define ROCFLASH_FN DEVICE inline
#include "elementwise_functions.h"

// Finite numbers of moderate size whatever the bits.
DEVICE inline float tame(u32 x) {
  return __builtin_bit_cast(float, (x & 0x807fffffu) | ((x >> 23 & 15) + 120) << 23);
}

#define ROCFLASH_OP(name, expression)                             \
  GLOBAL void name(const u32* a, const u32* b, u32* out, u32 n) { \
    const u32 i = gid();                                          \
    if (i >= n) return;                                           \
    const u32 x = a[i], y = b[i];                                 \
    const i32 sx = i32(x), sy = i32(y);                           \
    const float fx = tame(x), fy = tame(y);                       \
    (void)sx, (void)sy, (void)fx, (void)fy;                       \
    out[i] = expression;                                          \
  }
#include "elementwise_ops.h"
#undef ROCFLASH_OP

// --- through LDS -----------------------------------------------------------------------------

GLOBAL BOUNDS(256) void block_sum(const u32* a, const u32*, u32* out, u32 n) {
  SHARED static u32 part[256];
  const u32 t = tid();
  part[t] = gid() < n ? a[gid()] : 0;
  sync();
  for (u32 step = 128; step > 0; step /= 2) {
    if (t < step) part[t] += part[t + step];
    sync();
  }
  out[gid()] = part[0];
}

GLOBAL BOUNDS(256) void block_scan(const u32* a, const u32*, u32* out, u32) {
  SHARED static u32 buffer[2][256];
  const u32 t = tid();
  u32 from = 0;
  buffer[0][t] = a[gid()];
  sync();
  for (u32 step = 1; step < 256; step *= 2) {
    const u32 to = 1 - from;
    buffer[to][t] = buffer[from][t] + (t >= step ? buffer[from][t - step] : 0);
    from = to;
    sync();
  }
  out[gid()] = buffer[from][t];
}

GLOBAL BOUNDS(256) void transpose16(const u32* a, const u32*, u32* out, u32) {
  SHARED static u32 tile[16][17];
  const u32 r = tid() / 16, c = tid() % 16;
  tile[r][c] = a[gid()];
  sync();
  out[gid()] = tile[c][r];
}

GLOBAL BOUNDS(256) void transpose_halves(const u32* a, const u32*, u32* out, u32) {
  SHARED static u16 tile[512];
  const u32 t = tid();
  tile[t] = u16(a[gid()]);
  tile[256 + t] = u16(a[gid()] >> 16);
  sync();
  out[gid()] = u32(tile[255 - t]) | u32(tile[511 - t]) << 16;
}

GLOBAL BOUNDS(256) void wide_lds(const u32* a, const u32* b, u32* out, u32) {
  struct alignas(16) Four {
    u32 v[4];
  };
  SHARED static Four cell[256];
  const u32 t = tid();
  cell[t] = Four{{a[gid()], b[gid()], t, a[gid()] ^ b[gid()]}};
  sync();
  const Four f = cell[(t * 7 + 3) & 255];
  out[gid()] = f.v[0] + f.v[1] * 3 + f.v[2] * 5 + f.v[3] * 7;
}

GLOBAL BOUNDS(256) void byte_lds(const u32* a, const u32*, u32* out, u32) {
  SHARED static u8 cell[256];
  const u32 t = tid();
  cell[t] = u8(a[gid()]);
  sync();
  u32 r = 0;
  for (u32 k = 0; k < 4; ++k) r |= u32(cell[(t + 64 * k) & 255]) << (8 * k);
  out[gid()] = r;
}

GLOBAL BOUNDS(256) void histogram(const u32* a, const u32*, u32* out, u32) {
  SHARED static u32 bin[256];
  const u32 t = tid();
  bin[t] = 0;
  sync();
  __hip_atomic_fetch_add(&bin[a[gid()] & 255], 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  sync();
  out[gid()] = bin[t];
}

// --- between lanes ---------------------------------------------------------------------------

DEVICE inline u32 shuffle(u32 v, u32 from) {
  return u32(__builtin_amdgcn_ds_bpermute(i32(from * 4), i32(v)));
}

GLOBAL BOUNDS(256) void reverse_in_32(const u32* a, const u32*, u32* out, u32) {
  out[gid()] = shuffle(a[gid()], lane() ^ 31);
}

GLOBAL BOUNDS(256) void sum_of_32(const u32* a, const u32*, u32* out, u32) {
  u32 v = a[gid()];
  for (u32 step = 1; step < 32; step *= 2) v += shuffle(v, lane() ^ step);
  out[gid()] = v;
}

GLOBAL BOUNDS(256) void row_rotate_dpp(const u32* a, const u32*, u32* out, u32) {
  const i32 v = i32(a[gid()]);
  i32 s = __builtin_amdgcn_update_dpp(0, v, 0x121, 15, 15, false);  // row_ror:1
  s += __builtin_amdgcn_update_dpp(7, v, 0x111, 15, 15, false);     // row_shr:1
  s += __builtin_amdgcn_update_dpp(0, v, 0xb1, 15, 15, true);       // quad_perm 1,0,3,2
  s ^= __builtin_amdgcn_update_dpp(0, v, 0x140, 15, 15, true);      // row_mirror
  s += __builtin_amdgcn_update_dpp(0, v, 0x141, 15, 15, true);      // row_half_mirror
  out[gid()] = u32(s);
}

GLOBAL BOUNDS(256) void swizzle_lds(const u32* a, const u32*, u32* out, u32) {
  const i32 v = i32(a[gid()]);
  const i32 x = __builtin_amdgcn_ds_swizzle(v, 0x041f);         // xor 1
  const i32 y = __builtin_amdgcn_ds_swizzle(v, 0x8000 | 0x1b);  // quad reversed
  out[gid()] = u32(x) + 3 * u32(y);
}

GLOBAL BOUNDS(256) void first_lane(const u32* a, const u32*, u32* out, u32) {
  out[gid()] = u32(__builtin_amdgcn_readfirstlane(i32(a[gid()] + tid() / 64))) * 0 +
               u32(__builtin_amdgcn_readlane(i32(a[gid()]), 5));
}

GLOBAL BOUNDS(256) void votes(const u32* a, const u32*, u32* out, u32) {
  const bool odd = (a[gid()] & 1) != 0;
#if __AMDGCN_WAVEFRONT_SIZE == 64 || defined(ROCFLASH_WAVE64) || defined(__GFX9__)
  const u64 mask = __builtin_amdgcn_ballot_w64(odd);
  out[gid()] = u32(lane() < 32 ? mask : mask >> 32);
#else
  out[gid()] = __builtin_amdgcn_ballot_w32(odd);
#endif
}

// --- atomics and memory ----------------------------------------------------------------------

GLOBAL void atomic_totals(const u32* a, const u32* b, u32* out, u32 n) {
  const u32 i = gid();
  if (i >= n) return;
  __hip_atomic_fetch_add(&out[0], a[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_max(&out[1], a[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_min(&out[2], b[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_or(&out[3], b[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_xor(&out[4], a[i], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_add(reinterpret_cast<u64*>(out + 6), u64(a[i]) << 8, __ATOMIC_RELAXED,
                         __HIP_MEMORY_SCOPE_AGENT);
}

GLOBAL void compare_and_swap_sum(const u32* a, const u32*, u32* out, u32 n) {
  const u32 i = gid();
  if (i >= n) return;
  u32 expected = out[0];
  while (!__hip_atomic_compare_exchange_strong(&out[0], &expected, expected + (a[i] & 0xff),
                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                               __HIP_MEMORY_SCOPE_AGENT)) {
  }
}

GLOBAL void narrow_memory(const u32* a, const u32* b, u32* out, u32) {
  const u32 i = gid();
  const auto* bytes = reinterpret_cast<const i8*>(a);
  const auto* halves = reinterpret_cast<const u16*>(b);
  auto* to = reinterpret_cast<u16*>(out);
  to[2 * i] = u16(bytes[4 * i + 1] + bytes[4 * i + 2]);
  reinterpret_cast<u8*>(to)[4 * i + 2] = u8(halves[2 * i]);
  reinterpret_cast<u8*>(to)[4 * i + 3] = u8(halves[2 * i + 1] >> 8);
}

GLOBAL void vector_memory(const u32* a, const u32* b, u32* out, u32) {
  using u32x4 = __attribute__((ext_vector_type(4))) u32;
  const u32 i = gid();
  if (i % 4 != 0) return;
  const u32x4 x = *reinterpret_cast<const u32x4*>(a + i);
  const u32x4 y = *reinterpret_cast<const u32x4*>(b + i);
  *reinterpret_cast<u32x4*>(out + i) = x * 3u + y.wzyx;
}

#if defined(__GFX9__)
constexpr i32 kBufferFlags = 0x00027000;
#elif defined(__GFX10__)
constexpr i32 kBufferFlags = 0x31014000;
#else
constexpr i32 kBufferFlags = 0x31004000;
#endif

GLOBAL void buffer_bounds(const u32* a, const u32*, u32* out, u32 n) {
  // Out-of-range lanes of a buffer resource load zeros; their stores are dropped.
  auto in = __builtin_amdgcn_make_buffer_rsrc(const_cast<u32*>(a), 0, i32(n / 4 * 4), kBufferFlags);
  auto to = __builtin_amdgcn_make_buffer_rsrc(out, 0, i32(n / 2 * 4), kBufferFlags);
  const u32 v = __builtin_amdgcn_raw_buffer_load_b32(in, i32(gid() * 4), 0, 0);
  __builtin_amdgcn_raw_buffer_store_b32(v + 1, to, i32(gid() * 4), 0, 0);
}

// --- scratch and calls -----------------------------------------------------------------------

GLOBAL void dynamic_array(const u32* a, const u32* b, u32* out, u32) {
  const u32 i = gid();
  u32 table[32];
#pragma unroll 1
  for (u32 k = 0; k < 32; ++k) table[k] = a[i] * (k + 1);
#pragma unroll 1
  for (u32 k = 0; k < 8; ++k) table[(b[i] >> (4 * k)) & 31] += k;
  u32 r = 0;
#pragma unroll 1
  for (u32 k = 0; k < 32; ++k) r = r * 31 + table[(k * 5) & 31];
  out[i] = r;
}

DEVICE NOINLINE u32 twice(u32 x) { return x * 2 + 1; }
DEVICE NOINLINE u32 combine(u32 x, u32 y, const u32* p) { return twice(x) ^ (twice(y) + p[0]); }

GLOBAL void calls(const u32* a, const u32* b, u32* out, u32) {
  const u32 i = gid();
  out[i] = combine(a[i], b[i], a + i) + twice(combine(b[i], a[i], b + i));
}

DEVICE NOINLINE u32 fibonacci(u32 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

GLOBAL void recursion(const u32* a, const u32*, u32* out, u32) {
  const u32 i = gid();
  out[i] = fibonacci(a[i] % 10);
}

GLOBAL BOUNDS(256)
    __attribute__((amdgpu_num_vgpr(24))) void spills(const u32* a, const u32* b, u32* out, u32 n) {
  const u32 i = gid();
  u32 v[48];
  for (u32 k = 0; k < 48; ++k) v[k] = a[(i + k) % n] * (b[(i + 3 * k) % n] | 1);
  for (u32 k = 0; k < 48; ++k) v[k] ^= v[(k * 7 + 5) % 48] >> 3;
  u32 r = 0;
  for (u32 k = 0; k < 48; ++k) r = r * 33 + v[47 - k];
  out[i] = r;
}

// --- larger kernels --------------------------------------------------------------------------

GLOBAL BOUNDS(256) void matrix_product(const u32* a, const u32* b, u32* out, u32) {
  // 16x16 of small integers, one element a work-item.
  SHARED static i32 left[256], right[256];
  const u32 t = tid(), r = t / 16, c = t % 16;
  left[t] = i32(a[gid()] & 0xff) - 128;
  right[t] = i32(b[gid()] & 0xff) - 128;
  sync();
  i32 sum = 0;
  for (u32 k = 0; k < 16; ++k) sum += left[r * 16 + k] * right[k * 16 + c];
  out[gid()] = u32(sum);
}

DEVICE inline void philox_round(u32& c0, u32& c1, u32& c2, u32& c3, u32 k0, u32 k1) {
  const u64 p0 = u64(0xD2511F53u) * c0;
  const u64 p1 = u64(0xCD9E8D57u) * c2;
  const u32 n0 = u32(p1 >> 32) ^ c1 ^ k0;
  const u32 n2 = u32(p0 >> 32) ^ c3 ^ k1;
  c1 = u32(p1);
  c3 = u32(p0);
  c0 = n0;
  c2 = n2;
}

GLOBAL void philox(const u32* a, const u32* b, u32* out, u32) {
  const u32 i = gid();
  u32 c0 = i, c1 = 0, c2 = a[i], c3 = 0, k0 = b[i], k1 = 0x12345678;
  for (int round = 0; round < 10; ++round) {
    philox_round(c0, c1, c2, c3, k0, k1);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[i] = c0 ^ c1 ^ c2 ^ c3;
}

GLOBAL BOUNDS(256) void sort_block(const u32* a, const u32*, u32* out, u32) {
  SHARED static u32 data[256];
  const u32 t = tid();
  data[t] = a[gid()];
  sync();
  for (u32 size = 2; size <= 256; size *= 2) {
    for (u32 step = size / 2; step > 0; step /= 2) {
      const u32 other = t ^ step;
      const u32 mine = data[t], theirs = data[other];
      sync();
      const bool ascending = (t & size) == 0;
      const bool keep_small = (t < other) == ascending;
      data[t] = keep_small ? (mine < theirs ? mine : theirs) : (mine < theirs ? theirs : mine);
      sync();
    }
  }
  out[gid()] = data[t];
}

// Results of these are floats, compared with a tolerance.
GLOBAL void approx_exp2(const u32* a, const u32*, u32* out, u32) {
  out[gid()] = bits(__builtin_exp2f(tame(a[gid()]) * 0.1f));
}
GLOBAL void approx_exp(const u32* a, const u32*, u32* out, u32) {
  out[gid()] = bits(__builtin_expf(tame(a[gid()]) * 0.1f));
}
GLOBAL void approx_log(const u32* a, const u32*, u32* out, u32) {
  out[gid()] = bits(__builtin_logf(__builtin_fabsf(tame(a[gid()])) + 1.5f));
}
GLOBAL void approx_log2(const u32* a, const u32*, u32* out, u32) {
  out[gid()] = bits(__builtin_log2f(__builtin_fabsf(tame(a[gid()])) + 1.5f));
}
GLOBAL void approx_rsqrt(const u32* a, const u32*, u32* out, u32) {
  out[gid()] = bits(__builtin_amdgcn_rsqf(__builtin_fabsf(tame(a[gid()])) + 0.5f));
}
GLOBAL void approx_reciprocal(const u32* a, const u32*, u32* out, u32) {
  out[gid()] = bits(__builtin_amdgcn_rcpf(tame(a[gid()])));
}
GLOBAL BOUNDS(256) void softmax_block(const u32* a, const u32*, u32* out, u32) {
  SHARED static float part[256];
  const u32 t = tid();
  const float x = tame(a[gid()]) * 0.05f;
  part[t] = x;
  sync();
  for (u32 step = 128; step > 0; step /= 2) {
    if (t < step) part[t] = __builtin_fmaxf(part[t], part[t + step]);
    sync();
  }
  const float largest = part[0];
  sync();
  const float e = __builtin_expf(x - largest);
  part[t] = e;
  sync();
  for (u32 step = 128; step > 0; step /= 2) {
    if (t < step) part[t] += part[t + step];
    sync();
  }
  out[gid()] = bits(e / part[0]);
}
GLOBAL BOUNDS(256) void layer_norm_block(const u32* a, const u32*, u32* out, u32) {
  SHARED static float part[256];
  const u32 t = tid();
  const float x = tame(a[gid()]);
  part[t] = x;
  sync();
  for (u32 step = 128; step > 0; step /= 2) {
    if (t < step) part[t] += part[t + step];
    sync();
  }
  const float mean = part[0] / 256.0f;
  sync();
  part[t] = (x - mean) * (x - mean);
  sync();
  for (u32 step = 128; step > 0; step /= 2) {
    if (t < step) part[t] += part[t + step];
    sync();
  }
  out[gid()] = bits((x - mean) / __builtin_sqrtf(part[0] / 256.0f + 1e-5f));
}
