// The table of all semantics, assembled once from the groups.
#include "isa/lanes.h"

namespace rocflash::sim {
namespace {

template <typename F>
void for_each_name(std::string_view names, F f) {
  while (!names.empty()) {
    const auto bar = names.find('|');
    f(names.substr(0, bar));
    names = bar == names.npos ? std::string_view() : names.substr(bar + 1);
  }
}

// Instruction families that are not supported.
void mark_unsupported_families(Registry& r) {
  for (const std::string_view prefix : {"v_smfmac_", "v_swmmac_"}) {
    r.mark_unsupported_family(prefix, "sparse matrices are not modeled");
  }
  for (const std::string_view prefix : {"image_",
                                        "tbuffer_",
                                        "buffer_load_format",
                                        "buffer_store_format",
                                        "v_interp_",
                                        "exp",
                                        "export",
                                        "global_load_dword_addtid",
                                        "global_store_dword_addtid",
                                        "lds_",
                                        "buffer_load_d16_format",
                                        "buffer_store_d16_format",
                                        "buffer_load_d16_hi_format",
                                        "buffer_store_d16_hi_format",
                                        "global_load_addtid",
                                        "global_store_addtid",
                                        "global_load_block",
                                        "global_store_block",
                                        "scratch_load_block",
                                        "scratch_store_block",
                                        "buffer_load_lds_format",
                                        "buffer_store_lds",
                                        "v_qsad_",
                                        "v_mqsad_",
                                        "ds_bvh_"}) {
    r.mark_unsupported_family(prefix, "graphics, formatted and block accesses are not modeled");
  }
  for (const std::string_view prefix :
       {"v_cvt_scalef32", "v_cvt_scale_", "v_cvt_sr_", "v_dot4_f32_fp8", "v_dot4_f32_bf8",
        "v_cvt_pk_f16_fp8", "v_cvt_pk_f16_bf8", "v_cvt_f16_fp8", "v_cvt_f16_bf8", "v_cvt_pk_fp8",
        "v_cvt_pk_bf8"}) {
    r.mark_unsupported_family(
        prefix, "scaled, stochastic and dot-product forms of small floats are not modeled");
  }
  for (const std::string_view prefix :
       {"v_permlane_", "ds_load_tr", "ds_atomic_", "s_monitor_sleep", "s_get_shader_cycles",
        "s_add_pc", "s_wait_tensorcnt", "s_wait_asynccnt", "s_wakeup_barrier"}) {
    r.mark_unsupported_family(prefix, "only gfx1250 has it");
  }
  for (const std::string_view prefix :
       {"v_mad_legacy_f16", "v_fma_legacy_f16", "v_div_fixup_legacy_f16", "v_addc_u32",
        "v_subb_u32", "v_subbrev_u32", "v_screen_partition", "v_cvt_pkaccum", "s_rfe_",
        "v_mac_legacy_f32", "scratch_load_lds", "s_movrelsd_2", "v_swaprel_b32"}) {
    r.mark_unsupported_family(prefix, "no compiler emits it for these targets");
  }
  for (const std::string_view infix :
       {"ds_add_src2", "ds_sub_src2", "ds_rsub_src2", "ds_inc_src2", "ds_dec_src2", "ds_min_src2",
        "ds_max_src2", "ds_and_src2", "ds_or_src2", "ds_xor_src2"}) {
    r.mark_unsupported_family(infix, "no compiler emits it for these targets");
  }
  r.mark_unsupported_family("global_atomic_ordered", "no compiler emits it for these targets");
}

const Registry& registry() {
  static const Registry instance = [] {
    Registry r;
    for (const auto add : {add_vop1,
                           add_vop2,
                           add_vop3,
                           add_vopc,
                           add_vop3p,
                           add_dot,
                           add_special_math,
                           add_conversions,
                           add_float8,
                           add_lane_ops,
                           add_scalar_alu,
                           add_scalar_float,
                           add_program_control,
                           add_scalar_memory,
                           add_scalar_store,
                           add_lds,
                           add_vector_memory,
                           add_memory_atomics,
                           add_matrix,
                           add_mfma_f64,
                           add_mfma_f8f6f4,
                           add_scaled_conversions}) {
      add(r);
    }
    mark_unsupported_families(r);
    return r;
  }();
  return instance;
}

}  // namespace

void Registry::add(std::string_view names, const Semantics& semantics) {
  for_each_name(names, [&](std::string_view name) { entries_[name] = semantics; });
}

void Registry::mark_unsupported(std::string_view names, std::string_view reason) {
  for_each_name(names, [&](std::string_view name) { unsupported_[name] = reason; });
}

void Registry::mark_unsupported_family(std::string_view prefix, std::string_view reason) {
  unsupported_families_.emplace_back(prefix, reason);
}

const Semantics* Registry::find(std::string_view name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

std::string_view Registry::unsupported_reason(std::string_view name) const {
  const auto it = unsupported_.find(name);
  if (it != unsupported_.end()) return it->second;
  for (const auto& [prefix, reason] : unsupported_families_) {
    if (name.starts_with(prefix)) return reason;
  }
  return {};
}

const Semantics* find_semantics(std::string_view mnemonic) { return registry().find(mnemonic); }
std::string_view unsupported_reason(std::string_view mnemonic) {
  return registry().unsupported_reason(mnemonic);
}

}  // namespace rocflash::sim
