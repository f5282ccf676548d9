// RDNA2 (gfx10.3): no matrix cores. The 16x16x16 MMA is emulated with dot products that broadcast A
// from another lane at no cost (DPP row_share): 64 instructions, all lanes busy, no data movement.
// f16 uses v_dot2c_f32_f16; bf16 is converted to f32 and uses v_fmac_f32.
#pragma once

#include "arch/amd.hpp"
#include "arch/layout.hpp"
#include "arch/mma_shape.hpp"

namespace rocflash::kernel::arch {

// Waits until this wave's stores have reached the L2.
inline void wait_stores() { asm volatile("s_waitcnt_vscnt null, 0x0" ::: "memory"); }

template <DType dtype>
struct Mma : MmaShape<layout::DotGfx10, Float8, Words8> {
  static Result multiply(Operand a, Operand b, Result c) {
    if constexpr (dtype == DType::f16) {
      ROCFLASH_UNROLL
      for (int n = 0; n < 8; ++n) add_products(a[n], b[n], c);
    } else if constexpr (dtype == DType::bf16) {
      ROCFLASH_UNROLL
      for (int n = 0; n < 8; ++n) {
        add_products(a[n] << 16, b[n] << 16, c);
        add_products(a[n] & 0xffff0000u, b[n] & 0xffff0000u, c);
      }
    } else {
      static_assert(handled_dtype<dtype>, "Mma has no instruction for this dtype");
    }
    // The instruction sequence hides the DS read latency of the next operands. Prefetching them
    // would only add register pressure.
    __builtin_amdgcn_sched_barrier(0);
    return c;
  }

 private:
  // c[r] += A's row r, broadcast by row_share, times this lane's column of B.
  static void add_products(std::uint32_t a, std::uint32_t b, Result& c) {
    add_product<0>(a, b, c);
    add_product<1>(a, b, c);
    add_product<2>(a, b, c);
    add_product<3>(a, b, c);
    add_product<4>(a, b, c);
    add_product<5>(a, b, c);
    add_product<6>(a, b, c);
    add_product<7>(a, b, c);
  }
  template <int r>
  static void add_product(std::uint32_t a, std::uint32_t b, Result& c) {
    float sum = c[r];
    if constexpr (dtype == DType::f16) {
      asm("v_dot2c_f32_f16_dpp %0, %1, %2 row_share:%3 row_mask:0xf bank_mask:0xf"
          : "+v"(sum)
          : "v"(a), "v"(b), "n"(r));
    } else if constexpr (dtype == DType::bf16) {
      asm("v_fmac_f32_dpp %0, %1, %2 row_share:%3 row_mask:0xf bank_mask:0xf"
          : "+v"(sum)
          : "v"(a), "v"(b), "n"(r));
    } else {
      static_assert(handled_dtype<dtype>, "Mma has no instruction for this dtype");
    }
    c[r] = sum;
  }
};

inline constexpr bool has_ds_read_tr = false;
inline constexpr int lds_bank_chunks = 8;

}  // namespace rocflash::kernel::arch
