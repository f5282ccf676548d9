// GCN5 with dot products (gfx906): no matrix unit, waves of 64 lanes. Lanes of a quad read each other's operands
// (DPP quad_perm), lanes further apart only by rotation. So a product of 16x32 has eight rows of A in each eight
// lanes, and each quad first takes over its neighbour's four.
//
// f16 has v_dot2_f32_f16, two products at once, whose operand takes a move from the other lane; bf16 is widened and
// has v_fmac_f32, which reads the other lane itself.
#pragma once

#include "arch/amd.hpp"
#include "arch/layout.hpp"
#include "arch/mma_shape.hpp"

namespace rocflash::kernel::arch {

template <DType dtype>
struct Mma : MmaShape<layout::DotGfx9, Float8, Words8> {
  static Result multiply(Operand a, Operand b, Result c) {
    float sum[results];
    ROCFLASH_UNROLL
    for (int r = 0; r < results; ++r) sum[r] = c[r];
    ROCFLASH_UNROLL
    for (int n = 0; n < 8; n += 2) add_products(a[n], a[n + 1], b[n], b[n + 1], sum);
    ROCFLASH_UNROLL
    for (int r = 0; r < results; ++r) c[r] = sum[r];
    // So many instructions hide a read from LDS even without a head start, and one would cost
    // registers that are not there.
    __builtin_amdgcn_sched_barrier(0);
    return c;
  }

 private:
  // To each result, two words of its row's lane times those of its column. The compiler does not look into these
  // statements, so they see to what it would: between an instruction that writes a register and one that reads it
  // by DPP there are two others.
  static void add_products(std::uint32_t a0, std::uint32_t a1, std::uint32_t b0, std::uint32_t b1,
                           float (&c)[results]) {
// The four rows that a quad has itself go to results 0 to 3 of an even quad and 4 to 7 of an odd one.
#define ROCFLASH_TAKE_ROWS                                            \
  "v_mov_b32 %[n0], %[a0]\n"                                          \
  "v_mov_b32 %[n1], %[a1]\n"                                          \
  "v_mov_b32_dpp %[n0], %[a0] row_ror:4 row_mask:0xf bank_mask:0x5\n" \
  "v_mov_b32_dpp %[a0], %[a0] row_ror:4 row_mask:0xf bank_mask:0xa\n" \
  "v_mov_b32_dpp %[n1], %[a1] row_ror:4 row_mask:0xf bank_mask:0x5\n" \
  "v_mov_b32_dpp %[a1], %[a1] row_ror:4 row_mask:0xf bank_mask:0xa\n"
#define ROCFLASH_OF_LANE(n) " quad_perm:[" #n "," #n "," #n "," #n "] row_mask:0xf bank_mask:0xf\n"
#define ROCFLASH_SUMS                                                                  \
  [c0] "+v"(c[0]), [c1] "+v"(c[1]), [c2] "+v"(c[2]), [c3] "+v"(c[3]), [c4] "+v"(c[4]), \
      [c5] "+v"(c[5]), [c6] "+v"(c[6]), [c7] "+v"(c[7]), [a0] "+v"(a0), [a1] "+v"(a1)
// Rows 0 to 3 of `low` and of `high`, each by ROCFLASH_ROW.
#define ROCFLASH_ROWS(low, high, b) \
  ROCFLASH_ROW("%[c0]", low, b, 0)  \
  ROCFLASH_ROW("%[c1]", low, b, 1)  \
  ROCFLASH_ROW("%[c2]", low, b, 2)  \
  ROCFLASH_ROW("%[c3]", low, b, 3)  \
  ROCFLASH_ROW("%[c4]", high, b, 0) \
  ROCFLASH_ROW("%[c5]", high, b, 1) \
  ROCFLASH_ROW("%[c6]", high, b, 2) \
  ROCFLASH_ROW("%[c7]", high, b, 3)

    std::uint32_t n0, n1;  // what other quads have
    if constexpr (dtype == DType::f16) {
      std::uint32_t moved;
#define ROCFLASH_ROW(sum, a, b, lane) \
  "v_mov_b32_dpp %[m], " a ROCFLASH_OF_LANE(lane) "v_dot2_f32_f16 " sum ", %[m], " b ", " sum "\n"
      asm(ROCFLASH_TAKE_ROWS ROCFLASH_ROWS("%[a0]", "%[n0]", "%[b0]")
              ROCFLASH_ROWS("%[a1]", "%[n1]", "%[b1]")
          : ROCFLASH_SUMS, [n0] "=&v"(n0), [n1] "=&v"(n1), [m] "=&v"(moved)
          : [b0] "v"(b0), [b1] "v"(b1));
#undef ROCFLASH_ROW
    } else {
      std::uint32_t low, high, column;
#define ROCFLASH_ROW(sum, a, b, lane) "v_fmac_f32_dpp " sum ", " a ", " b ROCFLASH_OF_LANE(lane)
#define ROCFLASH_WORD(a, n, b)                                              \
  "v_lshlrev_b32 %[l], 16, " a                                              \
  "\n"                                                                      \
  "v_lshlrev_b32 %[h], 16, " n                                              \
  "\n"                                                                      \
  "v_lshlrev_b32 %[b], 16, " b                                              \
  "\n" ROCFLASH_ROWS("%[l]", "%[h]", "%[b]") "v_and_b32 %[l], %[upper], " a \
                                             "\n"                           \
                                             "v_and_b32 %[h], %[upper], " n \
                                             "\n"                           \
                                             "v_and_b32 %[b], %[upper], " b \
                                             "\n" ROCFLASH_ROWS("%[l]", "%[h]", "%[b]")
      asm(ROCFLASH_TAKE_ROWS ROCFLASH_WORD("%[a0]", "%[n0]", "%[b0]")
              ROCFLASH_WORD("%[a1]", "%[n1]", "%[b1]")
          : ROCFLASH_SUMS, [n0] "=&v"(n0), [n1] "=&v"(n1), [l] "=&v"(low), [h] "=&v"(high),
            [b] "=&v"(column)
          : [b0] "v"(b0), [b1] "v"(b1), [upper] "s"(0xffff0000u));
#undef ROCFLASH_WORD
#undef ROCFLASH_ROW
    }
#undef ROCFLASH_ROWS
#undef ROCFLASH_SUMS
#undef ROCFLASH_OF_LANE
#undef ROCFLASH_TAKE_ROWS
  }
};

inline constexpr bool transposing_reads = false;
inline constexpr int bank_chunks = 8;

}  // namespace rocflash::kernel::arch
