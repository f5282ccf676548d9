// Issue rates. CDNA: a wave64 takes the 16-lane SIMD for four clocks. RDNA: a wave32 takes the
// 32-lane SIMD for one, a wave64 for two. Quarter-rate units are a quarter as wide.
#include "core/issue_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace rocflash::sim {
namespace {

// 32-bit multiplies that are no f32 fma: every generation runs them at a quarter of the rate.
constexpr std::array<std::string_view, 10> kQuarterRate = {
    "v_mul_lo_u32",     "v_mul_lo_i32",    "v_mul_hi_u32",     "v_mul_hi_i32",
    "v_mad_u64_u32",    "v_mad_i64_i32",   "v_mad_co_u64_u32", "v_mad_co_i64_i32",
    "v_mad_nc_u64_u32", "v_mad_nc_i64_i32"};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

u32 issue_clocks(const Target& target, int wave_size, InstructionClass kind,
                 std::string_view mnemonic) {
  const bool cdna = target.is_cdna();
  if (kind != InstructionClass::Valu && kind != InstructionClass::Transcendental)
    return cdna ? 4 : 1;
  const u32 full = cdna ? 4 : static_cast<u32>(wave_size / 32);
  if (!cdna && contains(mnemonic, "_f64")) return 16 * full;  // RDNA has two f64 lanes per SIMD
  // CDNA4 has twice the transcendental rate (AMD's white paper).
  if (kind == InstructionClass::Transcendental) return (target.name == "gfx950" ? 2 : 4) * full;
  const bool quarter = std::ranges::find(kQuarterRate, mnemonic) != kQuarterRate.end();
  return quarter ? 4 * full : full;
}

std::string access_name(const Op& op, std::string_view mnemonic) {
  const u32 bits = 8 * (op.parameter & 0xff);
  if (op.kind == InstructionClass::Lds) {
    if (contains(mnemonic, "permute") || contains(mnemonic, "swizzle")) return "permute";
    const bool two =
        contains(mnemonic, "read2") || contains(mnemonic, "write2") || contains(mnemonic, "_2addr");
    const std::string_view width = two ? "2x" : "";
    if (contains(mnemonic, "_tr_")) return fmt::format("read_tr_b{}", bits);
    if (mnemonic.starts_with("ds_read") || mnemonic.starts_with("ds_load")) {
      return fmt::format("read_{}b{}", width, bits);
    }
    if (mnemonic.starts_with("ds_write") || mnemonic.starts_with("ds_store")) {
      return fmt::format("write_{}b{}", width, bits);
    }
    return mnemonic == "ds_nop" ? "" : "atomic";
  }
  if (op.kind != InstructionClass::Vmem) return {};
  if (contains(mnemonic, "_atomic_")) return "atomic";
  if (bits == 0) return {};
  const std::string_view space = mnemonic.starts_with("scratch_") ? "scratch_" : "";
  if (contains(mnemonic, "store")) return fmt::format("{}store_b{}", space, bits);
  const bool to_lds = op.to_lds || contains(mnemonic, "_load_lds_");
  const std::string_view form = to_lds ? "to_lds_" : contains(mnemonic, "_tr_") ? "tr_" : "";
  return fmt::format("{}load_{}b{}", space, form, bits);
}

}  // namespace rocflash::sim
