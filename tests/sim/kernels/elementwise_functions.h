// Helpers of elementwise_ops.h, compiled for device and host alike.
#pragma once

ROCFLASH_FN u32 bits(float x) { return __builtin_bit_cast(u32, x); }
ROCFLASH_FN u16 bits(f16 x) { return __builtin_bit_cast(u16, x); }
ROCFLASH_FN u16 bits16(bf16 x) { return __builtin_bit_cast(u16, x); }
// Both halves of a double count.
ROCFLASH_FN u32 low(double x) {
  const u64 b = __builtin_bit_cast(u64, x);
  return u32(b) ^ u32(b >> 32) * 31;
}
ROCFLASH_FN u32 hash(u32 x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ x >> 16;
}
ROCFLASH_FN u32 collatz_steps(u32 x) {
  u32 steps = 0;
  while (x > 1 && steps < 200) {
    x = (x & 1) != 0 ? 3 * x + 1 : x / 2;
    ++steps;
  }
  return steps;
}
ROCFLASH_FN u32 gcd(u32 a, u32 b) {
  while (b != 0) {
    const u32 t = a % b;
    a = b;
    b = t;
  }
  return a;
}
ROCFLASH_FN u32 primes_below(u32 n) {
  u32 count = 0;
  for (u32 i = 2; i < n; ++i) {
    bool prime = true;
    for (u32 d = 2; d * d <= i; ++d) {
      if (i % d == 0) {
        prime = false;
        break;
      }
    }
    count += prime ? 1 : 0;
  }
  return count;
}
ROCFLASH_FN u32 horner(u32 x, u32 y) {
  u32 r = 0;
#pragma unroll 1
  for (int i = 0; i < 12; ++i) r = r * x + (y >> i & 7);
  return r;
}
ROCFLASH_FN u32 pick(u32 which, u32 y) {
  switch (which) {
    case 0:
      return y;
    case 1:
      return y * 5;
    case 2:
      return ~y;
    case 3:
      return y >> 3;
    case 4:
      return y << 4;
    case 5:
      return y ^ 0xdeadbeef;
    case 6:
      return y + 77;
    case 7:
      return y - 99;
    default:
      return y * y;
  }
}
