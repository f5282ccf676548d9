// RDNA2 (gfx1030 and its family): no matrix unit, but dot products that read one operand from
// another lane at no cost (DPP row_share). 64 of them make a product of 16x16 with no lane idle and
// nothing moved. f16 has v_dot2c_f32_f16, two products at once; bf16 is widened and has v_fmac_f32.
#pragma once

#include "arch/amd.hpp"
#include "arch/layout.hpp"
#include "arch/mma_shape.hpp"

namespace rocflash::kernel::arch {

// What this wave has stored before is where the whole device sees it.
inline void await_stores() { asm volatile("s_waitcnt_vscnt null, 0x0" ::: "memory"); }

template <DType dtype>
struct Mma : MmaShape<layout::DotGfx10, Float8, Words8> {
  static Result multiply(Operand a, Operand b, Result c) {
    if constexpr (dtype == DType::f16) {
      ROCFLASH_UNROLL
      for (int n = 0; n < 8; ++n) add_products(a[n], b[n], c);
    } else {
      ROCFLASH_UNROLL
      for (int n = 0; n < 8; ++n) {
        add_products(a[n] << 16, b[n] << 16, c);
        add_products(a[n] & 0xffff0000u, b[n] & 0xffff0000u, c);
      }
    }
    // So many instructions hide a read from LDS even without a head start, and one would cost
    // registers that are not there.
    __builtin_amdgcn_sched_barrier(0);
    return c;
  }

 private:
  // To each result, a of its row's lane times b of its column.
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
    } else {
      asm("v_fmac_f32_dpp %0, %1, %2 row_share:%3 row_mask:0xf bank_mask:0xf"
          : "+v"(sum)
          : "v"(a), "v"(b), "n"(r));
    }
    c[r] = sum;
  }
};

inline constexpr bool transposing_reads = false;
inline constexpr int bank_chunks = 8;

}  // namespace rocflash::kernel::arch
