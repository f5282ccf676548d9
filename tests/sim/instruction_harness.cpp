// Builds, runs and checks single-instruction kernels.
#include "instruction_harness.h"

namespace rocflash::sim::test {

std::vector<u32> float_edges() {
  return {0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000,
          0x7f800001, 0xffc12345, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff,
          0xff7fffff, 0x3f000000, 0x3fc00000, 0x40200000, 0xc0200000, 0x477fe000, 0x477ff000,
          0x33000000, 0x33000001, 0x387fc000, 0x4f000000, 0x4f800000, 0xcf000001, 0x4b7fffff,
          0x3eaaaaab, 0x42f6e979, 0xc61c4000, 0x3f7fffff, 0x3f800001, 0x40490fdb, 0x2edbe6ff,
          0x5d5e0b6b, 0x0da24260};
}

std::vector<u16> half_edges() {
  return {0x0000, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 0x7d01, 0x0001, 0x83ff,
          0x0400, 0x7bff, 0xfbff, 0x3800, 0x3e00, 0x4100, 0x3555, 0x6bff, 0x1400, 0xc901};
}

namespace {

bool both_nan(u32 a, u32 b) {
  return (a & 0x7fffffff) > 0x7f800000 && (b & 0x7fffffff) > 0x7f800000;
}

std::vector<std::array<u32, kInputs>> make_inputs(const InstructionCase& c, int wave) {
  std::mt19937 random(99);
  const auto floats = float_edges();
  const auto halves = half_edges();
  std::vector<std::array<u32, kInputs>> in(static_cast<std::size_t>(wave));
  for (std::size_t lane = 0; lane < in.size(); ++lane) {
    for (std::size_t i = 0; i < kInputs; ++i) {
      u32 x = u32(random());
      if (c.floats) x = floats[(lane * (2 * i + 1) + i * 5) % floats.size()];
      if (c.halves) {
        x = u32(halves[(lane * (2 * i + 1) + i) % halves.size()]) |
            u32(halves[(lane * 3 + i * 7 + 1) % halves.size()]) << 16;
      }
      in[lane][i] = x;
    }
  }
  return in;
}

}  // namespace

void run_case(const InstructionCase& c, const char* target) {
  const bool cdna = std::string(target).starts_with("gfx9");
  const int wave = c.wave != 0 ? c.wave : cdna ? 64 : 32;
  const AsmSyntax d{target, wave};
  std::string body = d.scalar_load8(8, 0, 0) + "  v_lshlrev_b32 v1, 2, v0\n" + d.wait_all();
  body += d.scalar_load8(20, 12, 0);
  body += "  v_mov_b32 v14, v1\n";
  for (int i = 0; i < kInputs; ++i) body += d.load(2 + i, 14, 8) + d.add(14, wave * 4);
  for (int i = 0; i < kOutputs; ++i) {
    body += fmt::format("  v_mov_b32 v{}, {:#x}\n", 10 + i, kPreset[i]);
  }
  body += d.wait_all() + c.body + "\n" + d.wait_all();
  body += fmt::format("  s_mov_{} {}, -1\n", d.mask_bits(), d.exec());
  for (int i = 0; i < kOutputs; ++i) {
    body += d.store(1, fmt::format("v{}", 10 + i), 14) + d.add(1, wave * 4);
  }
  AsmKernel k;
  k.target = target;
  k.wave = wave;
  k.body = body;
  k.lds = c.lds;
  const auto module = build(k);
  const auto in = make_inputs(c, wave);
  std::vector<u32> flat(static_cast<std::size_t>(kInputs * wave));
  for (std::size_t lane = 0; lane < in.size(); ++lane) {
    for (std::size_t i = 0; i < kInputs; ++i) flat[i * in.size() + lane] = in[lane][i];
  }
  const std::array<u32, 8> scalars = {0x3f800000, 0x40000000, 5,          0xfffffff0,
                                      0x12345678, 0x9abcdef0, 0x00ff00ff, 33};
  Buffer<u32> ib(flat);
  Buffer<u32> sb(std::vector<u32>(scalars.begin(), scalars.end()));
  Buffer<u32> out(static_cast<std::size_t>(kOutputs * wave));
  Shape shape;
  shape.block[0] = static_cast<u32>(wave);
  const auto result =
      launch(*module, "k", shape, Arguments(ib.data(), u64{0}, sb.data(), out.data()));
  ASSERT_TRUE(result.ok()) << c.name << " on " << target << "\n" << result.report->text();
  for (u32 lane = 0; lane < static_cast<u32>(wave); ++lane) {
    u32 want[kOutputs];
    std::copy_n(kPreset, kOutputs, want);
    c.expect(Lane{in[lane], lane, &in, &scalars}, want);
    for (u32 i = 0; i < kOutputs; ++i) {
      // Which NaN comes out is not part of what these tests fix.
      if (c.floats && both_nan(out[i * static_cast<u32>(wave) + lane], want[i])) continue;
      ASSERT_EQ(out[i * static_cast<u32>(wave) + lane], want[i])
          << c.name << " on " << target << " lane " << lane << " v" << 10 + i
          << fmt::format(" of {:08x} {:08x} {:08x}: got {:08x}, want {:08x}", in[lane][0],
                         in[lane][1], in[lane][2], out[i * static_cast<u32>(wave) + lane], want[i]);
    }
  }
}

std::vector<CaseOnTarget> flatten(const std::vector<InstructionCase>& cases) {
  std::vector<CaseOnTarget> list;
  for (const auto& c : cases) {
    for (const char* target : c.targets) list.push_back({&c, target});
  }
  return list;
}

std::string case_name(const testing::TestParamInfo<CaseOnTarget>& info) {
  return std::string(info.param.c->name) + "_" + info.param.target +
         (info.param.c->wave != 0 ? "_w" + std::to_string(info.param.c->wave) : "");
}

}  // namespace rocflash::sim::test
