// wgmma.mma_async: m64nNk16 with FP32 accumulators, issued by the four warps of a warpgroup. B
// comes from shared memory through a descriptor, A from shared memory (SS) or from registers (RS).
// tile/sm90.hpp tracks which registers are in flight.
//
// The instruction lists every accumulator register, so each N needs its own asm statement. Macros
// generate them.
#pragma once

#include <cstdint>

#include "tile/vector.hpp"

namespace rocflash::kernel::arch {

// Orders earlier register accesses of this warp before the following wgmma.
inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Forces the values into their registers at this point.
inline void pin(Words4& w) {
  std::uint32_t x = w.x, y = w.y, z = w.z, v = w.w;
  asm volatile("" : "+r"(x), "+r"(y), "+r"(z), "+r"(v));
  w = {x, y, z, v};
}
inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// clang-format off
#define ROCFLASH_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define ROCFLASH_NAMES_16 ROCFLASH_NAMES_8 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define ROCFLASH_NAMES_24 ROCFLASH_NAMES_16 ", " "%16, %17, %18, %19, %20, %21, %22, %23"
#define ROCFLASH_NAMES_32 ROCFLASH_NAMES_24 ", " "%24, %25, %26, %27, %28, %29, %30, %31"
#define ROCFLASH_NAMES_40 ROCFLASH_NAMES_32 ", " "%32, %33, %34, %35, %36, %37, %38, %39"
#define ROCFLASH_NAMES_48 ROCFLASH_NAMES_40 ", " "%40, %41, %42, %43, %44, %45, %46, %47"
#define ROCFLASH_NAMES_56 ROCFLASH_NAMES_48 ", " "%48, %49, %50, %51, %52, %53, %54, %55"
#define ROCFLASH_NAMES_64 ROCFLASH_NAMES_56 ", " "%56, %57, %58, %59, %60, %61, %62, %63"
#define ROCFLASH_NAMES_72 ROCFLASH_NAMES_64 ", " "%64, %65, %66, %67, %68, %69, %70, %71"
#define ROCFLASH_NAMES_80 ROCFLASH_NAMES_72 ", " "%72, %73, %74, %75, %76, %77, %78, %79"
#define ROCFLASH_NAMES_88 ROCFLASH_NAMES_80 ", " "%80, %81, %82, %83, %84, %85, %86, %87"
#define ROCFLASH_NAMES_96 ROCFLASH_NAMES_88 ", " "%88, %89, %90, %91, %92, %93, %94, %95"
#define ROCFLASH_NAMES_104 ROCFLASH_NAMES_96 ", " "%96, %97, %98, %99, %100, %101, %102, %103"
#define ROCFLASH_NAMES_112 ROCFLASH_NAMES_104 ", " "%104, %105, %106, %107, %108, %109, %110, %111"
#define ROCFLASH_NAMES_120 ROCFLASH_NAMES_112 ", " "%112, %113, %114, %115, %116, %117, %118, %119"
#define ROCFLASH_NAMES_128 ROCFLASH_NAMES_120 ", " "%120, %121, %122, %123, %124, %125, %126, %127"
#define ROCFLASH_SUMS_8(how, x) how(x[0]), how(x[1]), how(x[2]), how(x[3]), how(x[4]), how(x[5]), how(x[6]), how(x[7])
#define ROCFLASH_SUMS_16(how, x) ROCFLASH_SUMS_8(how, x), how(x[8]), how(x[9]), how(x[10]), how(x[11]), how(x[12]), how(x[13]), how(x[14]), how(x[15])
#define ROCFLASH_SUMS_24(how, x) ROCFLASH_SUMS_16(how, x), how(x[16]), how(x[17]), how(x[18]), how(x[19]), how(x[20]), how(x[21]), how(x[22]), how(x[23])
#define ROCFLASH_SUMS_32(how, x) ROCFLASH_SUMS_24(how, x), how(x[24]), how(x[25]), how(x[26]), how(x[27]), how(x[28]), how(x[29]), how(x[30]), how(x[31])
#define ROCFLASH_SUMS_40(how, x) ROCFLASH_SUMS_32(how, x), how(x[32]), how(x[33]), how(x[34]), how(x[35]), how(x[36]), how(x[37]), how(x[38]), how(x[39])
#define ROCFLASH_SUMS_48(how, x) ROCFLASH_SUMS_40(how, x), how(x[40]), how(x[41]), how(x[42]), how(x[43]), how(x[44]), how(x[45]), how(x[46]), how(x[47])
#define ROCFLASH_SUMS_56(how, x) ROCFLASH_SUMS_48(how, x), how(x[48]), how(x[49]), how(x[50]), how(x[51]), how(x[52]), how(x[53]), how(x[54]), how(x[55])
#define ROCFLASH_SUMS_64(how, x) ROCFLASH_SUMS_56(how, x), how(x[56]), how(x[57]), how(x[58]), how(x[59]), how(x[60]), how(x[61]), how(x[62]), how(x[63])
#define ROCFLASH_SUMS_72(how, x) ROCFLASH_SUMS_64(how, x), how(x[64]), how(x[65]), how(x[66]), how(x[67]), how(x[68]), how(x[69]), how(x[70]), how(x[71])
#define ROCFLASH_SUMS_80(how, x) ROCFLASH_SUMS_72(how, x), how(x[72]), how(x[73]), how(x[74]), how(x[75]), how(x[76]), how(x[77]), how(x[78]), how(x[79])
#define ROCFLASH_SUMS_88(how, x) ROCFLASH_SUMS_80(how, x), how(x[80]), how(x[81]), how(x[82]), how(x[83]), how(x[84]), how(x[85]), how(x[86]), how(x[87])
#define ROCFLASH_SUMS_96(how, x) ROCFLASH_SUMS_88(how, x), how(x[88]), how(x[89]), how(x[90]), how(x[91]), how(x[92]), how(x[93]), how(x[94]), how(x[95])
#define ROCFLASH_SUMS_104(how, x) ROCFLASH_SUMS_96(how, x), how(x[96]), how(x[97]), how(x[98]), how(x[99]), how(x[100]), how(x[101]), how(x[102]), how(x[103])
#define ROCFLASH_SUMS_112(how, x) ROCFLASH_SUMS_104(how, x), how(x[104]), how(x[105]), how(x[106]), how(x[107]), how(x[108]), how(x[109]), how(x[110]), how(x[111])
#define ROCFLASH_SUMS_120(how, x) ROCFLASH_SUMS_112(how, x), how(x[112]), how(x[113]), how(x[114]), how(x[115]), how(x[116]), how(x[117]), how(x[118]), how(x[119])
#define ROCFLASH_SUMS_128(how, x) ROCFLASH_SUMS_120(how, x), how(x[120]), how(x[121]), how(x[122]), how(x[123]), how(x[124]), how(x[125]), how(x[126]), how(x[127])
// clang-format on

#define ROCFLASH_IN_OUT(x) "+f"(x)
#define ROCFLASH_OUT(x) "=f"(x)

// One wgmma: accumulator registers are positional asm operands, the others are named.
#define ROCFLASH_WGMMA_SS(columns, sums, type, how, keep)                                \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type     \
               " {" ROCFLASH_NAMES_##sums "}, %[a], %[b], " keep ", 1, 1, %[ta], %[tb];" \
               : ROCFLASH_SUMS_##sums(how, c)                                            \
               : [a] "l"(a), [b] "l"(b), [ta] "n"(int(ta)), [tb] "n"(int(tb)))
#define ROCFLASH_WGMMA_RS(columns, sums, type, how, keep)                                    \
  asm volatile(                                                                              \
      "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type                  \
      " {" ROCFLASH_NAMES_##sums "}, {%[x], %[y], %[z], %[w]}, %[b], " keep ", 1, 1, %[tb];" \
      : ROCFLASH_SUMS_##sums(how, c)                                                         \
      : [x] "r"(a.x), [y] "r"(a.y), [z] "r"(a.z), [w] "r"(a.w), [b] "l"(b), [tb] "n"(int(tb)))
#define ROCFLASH_WGMMA_SELECT(product, columns, sums, type) \
  if constexpr (fresh) {                                    \
    product(columns, sums, type, ROCFLASH_OUT, "0");        \
  } else {                                                  \
    product(columns, sums, type, ROCFLASH_IN_OUT, "1");     \
  }

// wgmma with N = columns. C = A·B if `fresh` (scale-d 0), else C += A·B. ta, tb: the operand is
// MN-major in shared memory.
template <int columns>
struct Wgmma;
#define ROCFLASH_WGMMA(columns, sums)                                        \
  template <>                                                                \
  struct Wgmma<columns> {                                                    \
    template <DType dtype, bool fresh, bool ta, bool tb>                     \
    static void shared(float (&c)[sums], std::uint64_t a, std::uint64_t b) { \
      if constexpr (dtype == DType::bf16) {                                  \
        ROCFLASH_WGMMA_SELECT(ROCFLASH_WGMMA_SS, columns, sums, "bf16")      \
      } else if constexpr (dtype == DType::f16) {                            \
        ROCFLASH_WGMMA_SELECT(ROCFLASH_WGMMA_SS, columns, sums, "f16")       \
      } else {                                                               \
        static_assert(handled_dtype<dtype>, "no wgmma for this dtype");      \
      }                                                                      \
    }                                                                        \
    template <DType dtype, bool fresh, bool tb>                              \
    static void registers(float (&c)[sums], Words4 a, std::uint64_t b) {     \
      if constexpr (dtype == DType::bf16) {                                  \
        ROCFLASH_WGMMA_SELECT(ROCFLASH_WGMMA_RS, columns, sums, "bf16")      \
      } else if constexpr (dtype == DType::f16) {                            \
        ROCFLASH_WGMMA_SELECT(ROCFLASH_WGMMA_RS, columns, sums, "f16")       \
      } else {                                                               \
        static_assert(handled_dtype<dtype>, "no wgmma for this dtype");      \
      }                                                                      \
    }                                                                        \
    /* No access to the accumulators moves across. */                        \
    static void pin(float (&c)[sums]) {                                      \
      asm volatile("" : ROCFLASH_SUMS_##sums(ROCFLASH_IN_OUT, c)::"memory"); \
    }                                                                        \
    /* Waits until at most `open` committed groups are pending. */           \
    template <int open>                                                      \
    static void wait(float (&c)[sums]) {                                     \
      asm volatile("wgmma.wait_group.sync.aligned %[open];"                  \
                   : ROCFLASH_SUMS_##sums(ROCFLASH_IN_OUT, c)                \
                   : [open] "n"(open)                                        \
                   : "memory");                                              \
    }                                                                        \
  };
ROCFLASH_WGMMA(16, 8)
ROCFLASH_WGMMA(32, 16)
ROCFLASH_WGMMA(48, 24)
ROCFLASH_WGMMA(64, 32)
ROCFLASH_WGMMA(80, 40)
ROCFLASH_WGMMA(96, 48)
ROCFLASH_WGMMA(112, 56)
ROCFLASH_WGMMA(128, 64)
ROCFLASH_WGMMA(144, 72)
ROCFLASH_WGMMA(160, 80)
ROCFLASH_WGMMA(176, 88)
ROCFLASH_WGMMA(192, 96)
ROCFLASH_WGMMA(208, 104)
ROCFLASH_WGMMA(224, 112)
ROCFLASH_WGMMA(240, 120)
ROCFLASH_WGMMA(256, 128)

}  // namespace rocflash::kernel::arch
