// SOP1, SOP2, SOPC and SOPK: the scalar ALU.
#include "isa/salu.h"
#include "isa/lane_math.h"

namespace rocflash::sim {
namespace {

constexpr Scc kW = Scc::Writes;
constexpr Scc kR = Scc::Reads;
constexpr Scc kB = Scc::Both;

template <auto F, std::size_t K>
using Argument = std::tuple_element_t<K, typename TraitsOf<F>::Arguments>;

// F, with SCC = (result != 0).
template <auto F, Propagation Rule>
Semantics with_scc() {
  if constexpr (TraitsOf<F>::kArity == 1) {
    return scalar<[](Argument<F, 0> a, bool& scc) {
      const auto d = F(a);
      scc = d != 0;
      return d;
    },
                  Rule, kW>();
  } else {
    return scalar<[](Argument<F, 0> a, Argument<F, 1> b, bool& scc) {
      const auto d = F(a, b);
      scc = d != 0;
      return d;
    },
                  Rule, kW>();
  }
}

// The first operand and SCC = 1 where F holds, otherwise the second and SCC = 0.
template <auto F>
Semantics chosen() {
  return scalar<[](Argument<F, 0> a, Argument<F, 1> b, bool& scc) {
    scc = F(a, b);
    return scc ? a : b;
  },
                Propagation::Any, kW>();
}

// Logic exists in 32 and 64 bits.
#define ROCFLASH_SIM_LOGIC(names32, names64, rule, expression)               \
  r.add(names32, with_scc<[](u32 a, u32 b) { return expression; }, rule>()); \
  r.add(names64, with_scc<[](u64 a, u64 b) { return expression; }, rule>())

void add_logic(Registry& r) {
  ROCFLASH_SIM_LOGIC("s_and_b32", "s_and_b64", Propagation::And, a & b);
  ROCFLASH_SIM_LOGIC("s_or_b32", "s_or_b64", Propagation::Or, a | b);
  ROCFLASH_SIM_LOGIC("s_xor_b32", "s_xor_b64", Propagation::Bitwise, a ^ b);
  ROCFLASH_SIM_LOGIC("s_andn2_b32|s_and_not1_b32", "s_andn2_b64|s_and_not1_b64",
                     Propagation::Bitwise, a & ~b);
  ROCFLASH_SIM_LOGIC("s_orn2_b32|s_or_not1_b32", "s_orn2_b64|s_or_not1_b64", Propagation::Bitwise,
                     a | ~b);
  ROCFLASH_SIM_LOGIC("s_nand_b32", "s_nand_b64", Propagation::Bitwise, ~(a & b));
  ROCFLASH_SIM_LOGIC("s_nor_b32", "s_nor_b64", Propagation::Bitwise, ~(a | b));
  ROCFLASH_SIM_LOGIC("s_xnor_b32", "s_xnor_b64", Propagation::Bitwise, ~(a ^ b));
}

// D = exec; exec = combination; SCC = (exec != 0). "wrexec" forms leave the new exec in D too.
template <bool Strict, auto F, bool Wide, bool Wrexec>
void run_saveexec(Wave& w, const Op& op) {
  u64 unknown = 0;
  u64 s;
  if constexpr (Wide) {
    s = read_scalar64(w, op.src[0], &unknown);
  } else {
    u32 unknown32 = 0;
    s = read_scalar(w, op.src[0], &unknown32);
    unknown = unknown32;
  }
  const u64 old = Wide ? w.sgpr64(sreg::kExec) : u64{w.sgpr[sreg::kExec]};
  u64 next = F(s, old);
  if constexpr (!Wide) next &= 0xffffffffu;
  // An undefined bit only matters where the combination depends on it.
  const u64 matters = unknown & (F(s | unknown, old) ^ F(s & ~unknown, old));
  const u64 saved = Wrexec ? next : old;
  if constexpr (Wide) {
    write_sgpr64<Strict>(w, op.dst[0].index, saved, 0);
    write_sgpr64<Strict>(w, sreg::kExec, next, matters);
  } else {
    write_sgpr<Strict>(w, op.dst[0].index, u32(saved), 0);
    write_sgpr<Strict>(w, sreg::kExec, u32(next), u32(matters));
  }
  w.scc = next != 0;
  w.scc_undef = false;
}

template <auto F, bool Wrexec = false>
void saveexec(Registry& r, std::string_view narrow, std::string_view wide) {
  Semantics s;
  s.kind = InstructionClass::Salu;
  s.sources = 1;
  s.run = run_saveexec<false, F, false, Wrexec>;
  s.run_strict = run_saveexec<true, F, false, Wrexec>;
  s.src = {Type::B32};
  s.dst = Type::B32;
  r.add(narrow, s);
  s.run = run_saveexec<false, F, true, Wrexec>;
  s.run_strict = run_saveexec<true, F, true, Wrexec>;
  s.src = {Type::B64};
  s.dst = Type::B64;
  r.add(wide, s);
}

void add_saveexec(Registry& r) {
  saveexec<[](u64 s, u64 e) { return s & e; }>(r, "s_and_saveexec_b32", "s_and_saveexec_b64");
  saveexec<[](u64 s, u64 e) { return s | e; }>(r, "s_or_saveexec_b32", "s_or_saveexec_b64");
  saveexec<[](u64 s, u64 e) { return s ^ e; }>(r, "s_xor_saveexec_b32", "s_xor_saveexec_b64");
  saveexec<[](u64 s, u64 e) { return ~(s & e); }>(r, "s_nand_saveexec_b32", "s_nand_saveexec_b64");
  saveexec<[](u64 s, u64 e) { return ~(s | e); }>(r, "s_nor_saveexec_b32", "s_nor_saveexec_b64");
  saveexec<[](u64 s, u64 e) { return ~(s ^ e); }>(r, "s_xnor_saveexec_b32", "s_xnor_saveexec_b64");
  saveexec<[](u64 s, u64 e) { return s & ~e; }>(r, "s_andn2_saveexec_b32|s_and_not1_saveexec_b32",
                                                "s_andn2_saveexec_b64|s_and_not1_saveexec_b64");
  saveexec<[](u64 s, u64 e) { return s | ~e; }>(r, "s_orn2_saveexec_b32|s_or_not1_saveexec_b32",
                                                "s_orn2_saveexec_b64|s_or_not1_saveexec_b64");
  saveexec<[](u64 s, u64 e) { return ~s & e; }>(r, "s_andn1_saveexec_b32|s_and_not0_saveexec_b32",
                                                "s_andn1_saveexec_b64|s_and_not0_saveexec_b64");
  saveexec<[](u64 s, u64 e) { return ~s | e; }>(r, "s_orn1_saveexec_b32|s_or_not0_saveexec_b32",
                                                "s_orn1_saveexec_b64|s_or_not0_saveexec_b64");
  saveexec<[](u64 s, u64 e) { return ~s & e; }, true>(r, "s_andn1_wrexec_b32|s_and_not0_wrexec_b32",
                                                      "s_andn1_wrexec_b64|s_and_not0_wrexec_b64");
  saveexec<[](u64 s, u64 e) { return s & ~e; }, true>(r, "s_andn2_wrexec_b32|s_and_not1_wrexec_b32",
                                                      "s_andn2_wrexec_b64|s_and_not1_wrexec_b64");
}

void add_arithmetic(Registry& r) {
  r.add("s_add_u32|s_add_co_u32", scalar<[](u32 a, u32 b, bool& scc) {
          scc = a + b < a;
          return a + b;
        },
                                         Propagation::Add, kW>());
  r.add("s_sub_u32|s_sub_co_u32", scalar<[](u32 a, u32 b, bool& scc) {
          scc = a < b;
          return a - b;
        },
                                         Propagation::Add, kW>());
  r.add("s_addc_u32|s_add_co_ci_u32", scalar<[](u32 a, u32 b, bool& scc) {
          const u64 d = u64{a} + b + (scc ? 1 : 0);
          scc = d >> 32 != 0;
          return u32(d);
        },
                                             Propagation::Add, kB>());
  r.add("s_subb_u32|s_sub_co_ci_u32", scalar<[](u32 a, u32 b, bool& scc) {
          const u64 d = u64{a} - b - (scc ? 1 : 0);
          scc = (d >> 32 & 1) != 0;
          return u32(d);
        },
                                             Propagation::Add, kB>());
  r.add("s_add_i32|s_add_co_i32", scalar<[](i32 a, i32 b, bool& scc) {
          i32 d;
          scc = __builtin_add_overflow(a, b, &d);
          return d;
        },
                                         Propagation::Add, kW>());
  r.add("s_sub_i32|s_sub_co_i32", scalar<[](i32 a, i32 b, bool& scc) {
          i32 d;
          scc = __builtin_sub_overflow(a, b, &d);
          return d;
        },
                                         Propagation::Add, kW>());
  r.add("s_add_nc_u64|s_add_u64", scalar<[](u64 a, u64 b) { return a + b; }, Propagation::Add>());
  r.add("s_sub_nc_u64|s_sub_u64", scalar<[](u64 a, u64 b) { return a - b; }, Propagation::Add>());
  r.add("s_mul_i32", scalar<[](u32 a, u32 b) { return a * b; }>());
  r.add("s_mul_u64", scalar<[](u64 a, u64 b) { return a * b; }>());
  r.add("s_mul_hi_u32", scalar<[](u32 a, u32 b) { return u32(u64{a} * b >> 32); }>());
  r.add("s_mul_hi_i32", scalar<[](i32 a, i32 b) { return i32(i64{a} * b >> 32); }>());
  r.add("s_min_i32", chosen<[](i32 a, i32 b) { return a < b; }>());
  r.add("s_max_i32", chosen<[](i32 a, i32 b) { return a > b; }>());
  r.add("s_min_u32", chosen<[](u32 a, u32 b) { return a < b; }>());
  r.add("s_max_u32", chosen<[](u32 a, u32 b) { return a > b; }>());
  r.add("s_abs_i32",
        with_scc<[](i32 a) { return i32(a < 0 ? 0u - u32(a) : u32(a)); }, Propagation::Any>());
  r.add("s_absdiff_i32", with_scc<[](i32 a, i32 b) {
          const u32 diff = u32(a) - u32(b);
          return i32(diff) < 0 ? 0u - diff : diff;
        },
                                  Propagation::Any>());
#define ROCFLASH_SIM_LSHL_ADD(n, name)             \
  r.add(name, scalar<[](u32 a, u32 b, bool& scc) { \
          const u64 d = (u64{a} << n) + b;         \
          scc = d >> 32 != 0;                      \
          return u32(d);                           \
        },                                         \
                     Propagation::Any, kW>())
  ROCFLASH_SIM_LSHL_ADD(1, "s_lshl1_add_u32");
  ROCFLASH_SIM_LSHL_ADD(2, "s_lshl2_add_u32");
  ROCFLASH_SIM_LSHL_ADD(3, "s_lshl3_add_u32");
  ROCFLASH_SIM_LSHL_ADD(4, "s_lshl4_add_u32");
#undef ROCFLASH_SIM_LSHL_ADD
}

// A field of a: f has its first bit below, its width in bits 22:16.
template <typename T>
constexpr auto kField = [](T a, u32 f) {
  constexpr u32 kBits = sizeof(T) * 8;
  const u32 width = f >> 16 & 0x7f;
  const T x = a >> (f & (kBits - 1));
  return width >= kBits ? x : x & ((T{1} << width) - 1);
};
template <typename T>
constexpr auto kSignedField = [](T a, u32 f) {
  constexpr u32 kBits = sizeof(T) * 8;
  using Signed = std::make_signed_t<T>;
  const u32 width = std::min(f >> 16 & 0x7f, kBits);
  const T x = a >> (f & (kBits - 1));
  return width == 0 ? Signed{0} : Signed(x << (kBits - width)) >> (kBits - width);
};

void add_shifts(Registry& r) {
  r.add("s_lshl_b32", with_scc<[](u32 a, u32 s) { return a << (s & 31); }, Propagation::Route>());
  r.add("s_lshr_b32", with_scc<[](u32 a, u32 s) { return a >> (s & 31); }, Propagation::Route>());
  r.add("s_ashr_i32", with_scc<[](i32 a, u32 s) { return a >> (s & 31); }, Propagation::Route>());
  r.add("s_lshl_b64", with_scc<[](u64 a, u32 s) { return a << (s & 63); }, Propagation::Route>());
  r.add("s_lshr_b64", with_scc<[](u64 a, u32 s) { return a >> (s & 63); }, Propagation::Route>());
  r.add("s_ashr_i64", with_scc<[](i64 a, u32 s) { return a >> (s & 63); }, Propagation::Route>());
  r.add("s_bfm_b32", scalar<[](u32 n, u32 o) { return ((1u << (n & 31)) - 1) << (o & 31); }>());
  r.add("s_bfm_b64", scalar<[](u32 n, u32 o) { return ((1ull << (n & 63)) - 1) << (o & 63); }>());
  r.add("s_bfe_u32", with_scc<kField<u32>, Propagation::Route>());
  r.add("s_bfe_i32", with_scc<kSignedField<u32>, Propagation::Route>());
  r.add("s_bfe_u64", with_scc<kField<u64>, Propagation::Route>());
  r.add("s_bfe_i64", with_scc<kSignedField<u64>, Propagation::Route>());
  r.add("s_pack_ll_b32_b16",
        scalar<[](u32 a, u32 b) { return (a & 0xffff) | b << 16; }, Propagation::PackPair>());
  r.add("s_pack_lh_b32_b16", scalar<[](u32 a, u32 b) { return (a & 0xffff) | (b & 0xffff0000); },
                                    Propagation::PackPair>());
  r.add("s_pack_hh_b32_b16",
        scalar<[](u32 a, u32 b) { return a >> 16 | (b & 0xffff0000); }, Propagation::PackPair>());
  r.add("s_pack_hl_b32_b16",
        scalar<[](u32 a, u32 b) { return a >> 16 | b << 16; }, Propagation::PackPair>());
}

void add_unary(Registry& r) {
  r.add("s_mov_b32", scalar<[](u32 a) { return a; }, Propagation::Copy>());
  r.add("s_mov_b64", scalar<[](u64 a) { return a; }, Propagation::Copy>());
  r.add("s_cmov_b32",
        scalar<[](u32 a, u32 old, bool& scc) { return scc ? a : old; }, Propagation::Any, kR>(
            flag::kAccumulate));
  r.add("s_cmov_b64",
        scalar<[](u64 a, u64 old, bool& scc) { return scc ? a : old; }, Propagation::Any, kR>(
            flag::kAccumulate));
  r.add("s_not_b32", with_scc<[](u32 a) { return ~a; }, Propagation::Copy>());
  r.add("s_not_b64", with_scc<[](u64 a) { return ~a; }, Propagation::Copy>());
  r.add("s_brev_b32", scalar<[](u32 a) { return __builtin_bitreverse32(a); }>());
  r.add("s_brev_b64", scalar<[](u64 a) { return __builtin_bitreverse64(a); }>());
  r.add("s_bcnt0_i32_b32",
        with_scc<[](u32 a) { return 32 - std::popcount(a); }, Propagation::Any>());
  r.add("s_bcnt0_i32_b64",
        with_scc<[](u64 a) { return 64 - std::popcount(a); }, Propagation::Any>());
  r.add("s_bcnt1_i32_b32", with_scc<[](u32 a) { return std::popcount(a); }, Propagation::Any>());
  r.add("s_bcnt1_i32_b64", with_scc<[](u64 a) { return std::popcount(a); }, Propagation::Any>());
  r.add("s_ff0_i32_b32", scalar<[](u32 a) { return ~a == 0 ? -1 : std::countr_one(a); }>());
  r.add("s_ff0_i32_b64", scalar<[](u64 a) { return ~a == 0 ? -1 : std::countr_one(a); }>());
  r.add("s_ff1_i32_b32|s_ctz_i32_b32",
        scalar<[](u32 a) { return a == 0 ? -1 : std::countr_zero(a); }>());
  r.add("s_ff1_i32_b64|s_ctz_i32_b64",
        scalar<[](u64 a) { return a == 0 ? -1 : std::countr_zero(a); }>());
  r.add("s_flbit_i32_b32|s_clz_i32_u32",
        scalar<[](u32 a) { return a == 0 ? -1 : std::countl_zero(a); }>());
  r.add("s_flbit_i32_b64|s_clz_i32_u64",
        scalar<[](u64 a) { return a == 0 ? -1 : std::countl_zero(a); }>());
  r.add("s_flbit_i32|s_cls_i32", scalar<[](i32 a) {
          const u32 x = u32(a ^ (a >> 31));
          return x == 0 ? -1 : std::countl_zero(x);
        }>());
  r.add("s_flbit_i32_i64|s_cls_i32_i64", scalar<[](i64 a) {
          const u64 x = u64(a ^ (a >> 63));
          return x == 0 ? -1 : std::countl_zero(x);
        }>());
  r.add("s_sext_i32_i8", scalar<[](u32 a) { return i32(i8(a)); }>());
  r.add("s_sext_i32_i16", scalar<[](u32 a) { return i32(i16(a)); }>());
  r.add("s_bitset0_b32",
        scalar<[](u32 bit, u32 old) { return old & ~(1u << (bit & 31)); }>(flag::kAccumulate));
  r.add("s_bitset1_b32",
        scalar<[](u32 bit, u32 old) { return old | 1u << (bit & 31); }>(flag::kAccumulate));
  r.add("s_bitset0_b64",
        scalar<[](u32 bit, u64 old) { return old & ~(1ull << (bit & 63)); }>(flag::kAccumulate));
  r.add("s_bitset1_b64",
        scalar<[](u32 bit, u64 old) { return old | 1ull << (bit & 63); }>(flag::kAccumulate));
  r.add("s_bitreplicate_b64_b32", scalar<[](u32 a) {
          u64 d = 0;
          for (int i = 0; i < 32; ++i) d |= u64{a >> i & 1} * 3 << (2 * i);
          return d;
        }>());
  r.add("s_quadmask_b32", with_scc<[](u32 a) {
          u32 d = 0;
          for (int i = 0; i < 8; ++i) d |= u32{(a >> (4 * i) & 15) != 0} << i;
          return d;
        },
                                   Propagation::Any>());
  r.add("s_quadmask_b64", with_scc<[](u64 a) {
          u64 d = 0;
          for (int i = 0; i < 16; ++i) d |= u64{(a >> (4 * i) & 15) != 0} << i;
          return d;
        },
                                   Propagation::Any>());
  r.add("s_wqm_b32", with_scc<[](u32 a) {
          u32 d = 0;
          for (int i = 0; i < 32; i += 4) d |= (a >> i & 15) != 0 ? 15u << i : 0;
          return d;
        },
                              Propagation::Any>());
  r.add("s_wqm_b64", with_scc<[](u64 a) {
          u64 d = 0;
          for (int i = 0; i < 64; i += 4) d |= (a >> i & 15) != 0 ? 15ull << i : 0;
          return d;
        },
                              Propagation::Any>());
  r.add("s_cselect_b32",
        scalar<[](u32 a, u32 b, bool& scc) { return scc ? a : b; }, Propagation::Route, kR>());
  r.add("s_cselect_b64",
        scalar<[](u64 a, u64 b, bool& scc) { return scc ? a : b; }, Propagation::Route, kR>());
}

#define ROCFLASH_SIM_SCMP(names, T, expression) \
  r.add(names, scalar<[](T a, T b, bool& scc) { scc = expression; }, Propagation::Any, kW>())

void add_compare(Registry& r) {
  ROCFLASH_SIM_SCMP("s_cmp_eq_i32|s_cmp_eq_u32|s_cmpk_eq_i32|s_cmpk_eq_u32", u32, a == b);
  ROCFLASH_SIM_SCMP("s_cmp_lg_i32|s_cmp_lg_u32|s_cmpk_lg_i32|s_cmpk_lg_u32", u32, a != b);
  ROCFLASH_SIM_SCMP("s_cmp_gt_i32|s_cmpk_gt_i32", i32, a > b);
  ROCFLASH_SIM_SCMP("s_cmp_ge_i32|s_cmpk_ge_i32", i32, a >= b);
  ROCFLASH_SIM_SCMP("s_cmp_lt_i32|s_cmpk_lt_i32", i32, a < b);
  ROCFLASH_SIM_SCMP("s_cmp_le_i32|s_cmpk_le_i32", i32, a <= b);
  ROCFLASH_SIM_SCMP("s_cmp_gt_u32|s_cmpk_gt_u32", u32, a > b);
  ROCFLASH_SIM_SCMP("s_cmp_ge_u32|s_cmpk_ge_u32", u32, a >= b);
  ROCFLASH_SIM_SCMP("s_cmp_lt_u32|s_cmpk_lt_u32", u32, a < b);
  ROCFLASH_SIM_SCMP("s_cmp_le_u32|s_cmpk_le_u32", u32, a <= b);
  ROCFLASH_SIM_SCMP("s_cmp_eq_u64", u64, a == b);
  ROCFLASH_SIM_SCMP("s_cmp_lg_u64", u64, a != b);
  r.add("s_bitcmp0_b32", scalar<[](u32 a, u32 b, bool& scc) { scc = (a >> (b & 31) & 1) == 0; },
                                Propagation::Any, kW>());
  r.add("s_bitcmp1_b32", scalar<[](u32 a, u32 b, bool& scc) { scc = (a >> (b & 31) & 1) != 0; },
                                Propagation::Any, kW>());
  r.add("s_bitcmp0_b64", scalar<[](u64 a, u32 b, bool& scc) { scc = (a >> (b & 63) & 1) == 0; },
                                Propagation::Any, kW>());
  r.add("s_bitcmp1_b64", scalar<[](u64 a, u32 b, bool& scc) { scc = (a >> (b & 63) & 1) != 0; },
                                Propagation::Any, kW>());
}

// SOPK: the immediate is source 0, or source 1 where the destination is read too.
void add_immediate(Registry& r) {
  r.add("s_movk_i32", scalar<[](u32 k) { return k; }>());
  r.add("s_cmovk_i32",
        scalar<[](u32 k, u32 old, bool& scc) { return scc ? k : old; }, Propagation::Any, kR>(
            flag::kAccumulate));
  r.add("s_addk_i32|s_addk_co_i32", scalar<[](i32 k, i32 old, bool& scc) {
          i32 d;
          scc = __builtin_add_overflow(k, old, &d);
          return d;
        },
                                           Propagation::Any, kW>(flag::kAccumulate));
  r.add("s_mulk_i32", scalar<[](u32 k, u32 old) { return k * old; }>(flag::kAccumulate));
}

}  // namespace

void add_scalar_alu(Registry& r) {
  add_logic(r);
  add_saveexec(r);
  add_arithmetic(r);
  add_shifts(r);
  add_unary(r);
  add_compare(r);
  add_immediate(r);
}

}  // namespace rocflash::sim
