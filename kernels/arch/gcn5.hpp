// GCN5 (gfx906): no matrix cores, wave64. The 16x32 MMA is emulated with dot products and DPP.
// quad_perm reads any lane of a quad at no cost; lanes further apart are reached by rotation only.
// So each group of eight lanes holds eight rows of A, and each quad first copies the four rows of
// the adjacent quad (row_ror:4).
//
// f16 uses v_dot2_f32_f16, which has no DPP form on gfx906 and needs a v_mov_b32_dpp per operand.
// bf16 is converted to f32 and uses v_fmac_f32 with DPP.
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
    // The instruction sequence hides the DS read latency of the next operands. Prefetching them
    // would only add register pressure.
    __builtin_amdgcn_sched_barrier(0);
    return c;
  }

 private:
  // c[r] += two words of A's row r times two words of this lane's column. The compiler inserts no
  // hazard wait states in inline assembly, so the code keeps two instructions between a VALU write
  // of a register and its DPP read.
  static void add_products(std::uint32_t a0, std::uint32_t a1, std::uint32_t b0, std::uint32_t b1,
                           float (&c)[results]) {
// A quad's own four rows are results 0 to 3 of even quads and 4 to 7 of odd quads.
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
// ROCFLASH_ROW for rows 0 to 3 of `low` and of `high`.
#define ROCFLASH_ROWS(low, high, b) \
  ROCFLASH_ROW("%[c0]", low, b, 0)  \
  ROCFLASH_ROW("%[c1]", low, b, 1)  \
  ROCFLASH_ROW("%[c2]", low, b, 2)  \
  ROCFLASH_ROW("%[c3]", low, b, 3)  \
  ROCFLASH_ROW("%[c4]", high, b, 0) \
  ROCFLASH_ROW("%[c5]", high, b, 1) \
  ROCFLASH_ROW("%[c6]", high, b, 2) \
  ROCFLASH_ROW("%[c7]", high, b, 3)

    std::uint32_t n0, n1;  // the adjacent quad's rows
    if constexpr (dtype == DType::f16) {
      std::uint32_t moved;
#define ROCFLASH_ROW(sum, a, b, lane) \
  "v_mov_b32_dpp %[m], " a ROCFLASH_OF_LANE(lane) "v_dot2_f32_f16 " sum ", %[m], " b ", " sum "\n"
      asm(ROCFLASH_TAKE_ROWS ROCFLASH_ROWS("%[a0]", "%[n0]", "%[b0]")
              ROCFLASH_ROWS("%[a1]", "%[n1]", "%[b1]")
          : ROCFLASH_SUMS, [n0] "=&v"(n0), [n1] "=&v"(n1), [m] "=&v"(moved)
          : [b0] "v"(b0), [b1] "v"(b1));
#undef ROCFLASH_ROW
    } else if constexpr (dtype == DType::bf16) {
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
    } else {
      static_assert(handled_dtype<dtype>, "Mma has no instruction for this dtype");
    }
#undef ROCFLASH_ROWS
#undef ROCFLASH_SUMS
#undef ROCFLASH_OF_LANE
#undef ROCFLASH_TAKE_ROWS
  }
};

inline constexpr bool has_ds_read_tr = false;
inline constexpr int lds_bank_chunks = 8;

}  // namespace rocflash::kernel::arch
