// Memory layouts: transposing loads, loads to LDS, and buffer range checks. Expectations are
// derived from the matrix fragment that is loaded, not from the simulator's lane formulas.
#include "instruction_harness.h"

namespace rocflash::sim::test {
namespace {

// A byte of the input buffer: v2 of all lanes, then v3 of all lanes, ...
u32 input_byte(const Lane& l, u32 address, u32 wave) {
  const u32 word = address / 4;
  return l.of(int(word % wave), int(word / wave)) >> (8 * (address % 4)) & 0xff;
}
u32 input_half(const Lane& l, u32 address, u32 wave) {
  return input_byte(l, address, wave) | input_byte(l, address + 1, wave) << 8;
}

// Sixteen lanes' reads, one after the other, are rows of 16 elements; lane l gets column l % 16.
void column_of_sixteen(const Lane& l, u32 bits, u32 dwords, u32* out) {
  const u32 group = l.index & ~15u;
  const auto bit_at = [&](u32 position) {
    const u32 lane = group + position / (32 * dwords);
    const u32 within = position % (32 * dwords);
    return l.of(int(lane), int(within / 32)) >> (within % 32) & 1;
  };
  const u32 rows = 32 * dwords / bits;
  for (u32 i = 0; i < dwords; ++i) out[i] = 0;
  for (u32 row = 0; row < rows; ++row) {
    for (u32 b = 0; b < bits; ++b) {
      const u32 to = row * bits + b;
      out[to / 32] |= bit_at((row * 16 + l.index % 16) * bits + b) << (to % 32);
    }
  }
}

std::string transposed(const std::string& instruction, int dwords) {
  return fmt::format(
      "  v_mul_u32_u24 v15, {}, v0\n  ds_write_b{} v15, v[2:{}]\n  s_waitcnt lgkmcnt(0)\n"
      "  {} v[10:{}], v15\n",
      4 * dwords, 32 * dwords, 1 + dwords, instruction, 9 + dwords);
}

constexpr const char* kDescriptor =
    "  v_lshlrev_b32 v15, 2, v0\n  s_mov_b32 s44, s8\n  s_mov_b32 s45, s9\n  s_mov_b32 s46, 68\n";

// Loads of lane * 4 + 16 from the scalar offset, lane * 4 + 16 from the instruction's, and both.
std::string buffer_loads(const std::string& word3, const char* load) {
  return kDescriptor + ("  s_mov_b32 s47, " + word3 + "\n  s_mov_b32 s48, 16\n") +
         fmt::format(
             "  {0} v10, v15, s[44:47], s48 offen\n  {0} v11, v15, s[44:47], 0 offen offset:16\n"
             "  {0} v12, v15, s[44:47], s48 offen offset:16\n",
             load);
}

void bounded(const Lane& l, u32* out, u32 limit) {
  const auto word = [&](u32 i) { return i < limit && i < 32 ? l.of(int(i), 0) : 0; };
  out[0] = out[1] = word(l.index + 4);
  out[2] = word(l.index + 8);
}

// A dword of the input buffer, counted through all lanes' first values, then all second ones ...
u32 word_at(const Lane& l, u32 word) { return l.of(int(word % 64), int(word / 64)); }

const std::vector<InstructionCase>& cases() {
  static const std::vector<InstructionCase> list = {
      {"lds_tr_b16",
       {"gfx950"},
       transposed("ds_read_b64_tr_b16", 2),
       [](const Lane& l, u32* out) { column_of_sixteen(l, 16, 2, out); },
       0,
       false,
       false,
       512},
      {"lds_tr_b8",
       {"gfx950"},
       transposed("ds_read_b64_tr_b8", 2),
       [](const Lane& l, u32* out) { column_of_sixteen(l, 8, 2, out); },
       0,
       false,
       false,
       512},
      {"lds_tr_b4",
       {"gfx950"},
       transposed("ds_read_b64_tr_b4", 2),
       [](const Lane& l, u32* out) { column_of_sixteen(l, 4, 2, out); },
       0,
       false,
       false,
       512},
      {"lds_tr_b6",
       {"gfx950"},
       transposed("ds_read_b96_tr_b6", 3),
       [](const Lane& l, u32* out) { column_of_sixteen(l, 6, 3, out); },
       0,
       false,
       false,
       768},
      // A 16x16 block of f16, stored by rows of k: WMMA needs column lane % 16, k from
      // 8*(lane/16).
      {"global_tr_b128",
       {"gfx1200", "gfx1201"},
       "  v_and_b32 v15, 7, v0\n  v_lshrrev_b32 v14, 4, v0\n  v_lshl_add_u32 v15, v14, 3, v15\n"
       "  v_lshlrev_b32 v15, 5, v15\n  v_bfe_u32 v14, v0, 3, 1\n  v_lshl_add_u32 v15, v14, 4, v15\n"
       "  global_load_tr_b128 v[10:13], v15, s[8:9]\n",
       [](const Lane& l, u32* out) {
         for (u32 n = 0; n < 8; ++n) {
           const u32 k = 8 * (l.index / 16) + n;
           const u32 x = input_half(l, 2 * (16 * k + l.index % 16), 32);
           if (n % 2 == 0) out[n / 2] = 0;
           out[n / 2] |= x << (16 * (n % 2));
         }
       }},
      // The same of bytes; lanes address rows in runs of four, left and right halves.
      {"global_tr_b64",
       {"gfx1200", "gfx1201"},
       "  v_and_b32 v15, 3, v0\n  v_lshrrev_b32 v14, 3, v0\n  v_lshl_add_u32 v15, v14, 2, v15\n"
       "  v_lshlrev_b32 v15, 4, v15\n  v_bfe_u32 v14, v0, 2, 1\n  v_lshl_add_u32 v15, v14, 3, v15\n"
       "  global_load_tr_b64 v[10:11], v15, s[8:9]\n",
       [](const Lane& l, u32* out) {
         out[0] = out[1] = 0;
         for (u32 n = 0; n < 8; ++n) {
           const u32 k = 8 * (l.index / 16) + n;
           out[n / 4] |= input_byte(l, 16 * k + l.index % 16, 32) << (8 * (n % 4));
         }
       }},
      // The instruction's offset applies to the source and to the LDS address.
      {"load_to_lds_offset",
       {"gfx90a", "gfx942", "gfx950"},
       "  v_lshlrev_b32 v15, 2, v0\n  s_mov_b32 m0, 0x100\n  s_mov_b32 s44, s8\n"
       "  s_mov_b32 s45, s9\n  s_mov_b32 s46, 0x10000\n  s_mov_b32 s47, 0x00027000\n"
       "  buffer_load_dword v15, s[44:47], 0 offen offset:64 lds\n  s_waitcnt vmcnt(0)\n"
       "  ds_read_b32 v10, v15 offset:320\n",
       [](const Lane& l, u32* out) { out[0] = word_at(l, l.index + 16); },
       0,
       false,
       false,
       1024},
      {"load_to_lds_four",
       {"gfx950"},
       "  v_lshlrev_b32 v15, 4, v0\n  s_mov_b32 m0, 0x200\n"
       "  global_load_lds_dwordx4 v15, s[8:9]\n  s_waitcnt vmcnt(0)\n"
       "  ds_read_b128 v[10:13], v15 offset:512\n",
       [](const Lane& l, u32* out) {
         for (u32 i = 0; i < 4; ++i) out[i] = word_at(l, 4 * l.index + i);
       },
       0,
       false,
       false,
       2048},
      // Three dwords per lane, four dwords apart; the fourth is unchanged.
      {"load_to_lds_three",
       {"gfx950"},
       "  v_lshlrev_b32 v15, 4, v0\n  s_mov_b32 m0, 0\n  v_mov_b32 v14, 7\n"
       "  ds_write_b32 v15, v14 offset:12\n  s_waitcnt lgkmcnt(0)\n"
       "  global_load_lds_dwordx3 v15, s[8:9]\n  s_waitcnt vmcnt(0)\n"
       "  ds_read_b128 v[10:13], v15\n",
       [](const Lane& l, u32* out) {
         for (u32 i = 0; i < 3; ++i) out[i] = word_at(l, 4 * l.index + i);
         out[3] = 7;
       },
       0,
       false,
       false,
       2048},
      // 68 bytes: 17 dwords from the descriptor's base, whichever part of the offset moves them.
      {"scalar_offset_counts", kCdna, buffer_loads("0x00027000", "buffer_load_dword"),
       [](const Lane& l, u32* out) { bounded(l, out, 17); }},
      {"raw_mode_counts_scalar_offset",
       {"gfx1030"},
       buffer_loads("0x31027000", "buffer_load_dword"),
       [](const Lane& l, u32* out) { bounded(l, out, 17); }},
      {"raw_mode_counts_scalar_offset",
       {"gfx1100"},
       buffer_loads("0x31027000", "buffer_load_b32"),
       [](const Lane& l, u32* out) { bounded(l, out, 17); }},
      {"unchecked_mode",
       {"gfx1100"},
       kDescriptor + std::string("  s_mov_b32 s47, 0x20027000\n"
                                 "  buffer_load_b32 v10, v15, s[44:47], 0 offen\n"
                                 "  s_mov_b32 s46, 0\n  v_mov_b32 v11, -1\n"
                                 "  buffer_load_b32 v11, v15, s[44:47], 0 offen\n"),
       [](const Lane& l, u32* out) {
         out[0] = l.v[0];
         out[1] = 0;
       }},
      {"structured_index", kCdna,
       "  s_mov_b32 s44, s8\n  s_or_b32 s45, s9, 0x40000\n  s_mov_b32 s46, 9\n"
       "  s_mov_b32 s47, 0x00027000\n  buffer_load_dword v10, v0, s[44:47], 0 idxen\n",
       [](const Lane& l, u32* out) { out[0] = l.index < 9 ? l.v[0] : 0; }},
  };
  return list;
}

class MemoryLayout : public testing::TestWithParam<CaseOnTarget> {};
TEST_P(MemoryLayout, IsAsDocumented) { run_case(*GetParam().c, GetParam().target); }
INSTANTIATE_TEST_SUITE_P(All, MemoryLayout, testing::ValuesIn(flatten(cases())), case_name);

Fault fault_of(const std::string& target, int wave, const std::string& body) {
  AsmKernel k;
  k.target = target;
  k.wave = wave;
  k.body = body;
  const auto module = build(k);
  Shape shape;
  shape.block[0] = static_cast<u32>(wave);
  const auto result = launch(*module, "k", shape, Arguments(u64{0}, u64{0}, u64{0}, u64{0}));
  EXPECT_FALSE(result.ok());
  return result.ok() ? Fault::Trap : result.report->fault;
}

TEST(MemoryLayout, UndocumentedFormsAreRejected) {
  EXPECT_EQ(
      fault_of("gfx1201", 64, "  v_mov_b32 v1, 0\n  global_load_tr_b128 v[2:3], v[0:1], off\n"),
      Fault::UnknownInstruction);
  // A CDNA buffer resource on RDNA puts every byte out of range: reported as an error.
  EXPECT_EQ(fault_of("gfx1100", 32,
                     "  s_mov_b64 s[4:5], 0\n  s_mov_b32 s6, 64\n  s_mov_b32 s7, 0x27000\n"
                     "  buffer_load_b32 v1, v0, s[4:7], 0 offen\n"),
            Fault::BadProgram);
}

}  // namespace
}  // namespace rocflash::sim::test
