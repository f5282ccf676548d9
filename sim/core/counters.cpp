// Counters as JSON and as a table.
#include "core/counters.h"

#include <algorithm>

#include "core/code_object.h"
#include "core/report_writer.h"
#include "core/target.h"

namespace rocflash::sim {

std::string_view class_name(InstructionClass c) {
  constexpr std::array<std::string_view, kInstructionClasses> names = {
      "scalar", "vector",        "matrix", "transcendental", "lds",
      "memory", "scalar_memory", "branch", "wait",           "other"};
  return names[static_cast<std::size_t>(c)];
}

Traffic& Traffic::operator+=(const Traffic& other) {
  lds_cycles += other.lds_cycles;
  lds_conflict_cycles += other.lds_conflict_cycles;
  lds_bytes += other.lds_bytes;
  load_bytes += other.load_bytes;
  store_bytes += other.store_bytes;
  transactions += other.transactions;
  return *this;
}

std::string Counters::json() const {
  const double waves_run = static_cast<double>(std::max<u64>(1, waves));
  nlohmann::ordered_json classes;
  nlohmann::ordered_json cycles;
  nlohmann::ordered_json per_wave;
  for (std::size_t i = 0; i < kInstructionClasses; ++i) {
    const std::string name(class_name(static_cast<InstructionClass>(i)));
    classes[name] = by_class[i];
    cycles[name] = issue_cycles[i];
    per_wave[name] = static_cast<double>(issue_cycles[i]) / waves_run;
  }
  return json_line({{"kernel", kernel},
                    {"target", target},
                    {"workgroups", workgroups},
                    {"waves", waves},
                    {"instructions", instructions},
                    {"by_class", classes},
                    {"issue_cycles", cycles},
                    {"issue_cycles_per_wave", per_wave},
                    {"matrix_cycles", matrix_cycles},
                    {"lds_cycles", traffic.lds_cycles},
                    {"lds_bank_conflict_cycles", traffic.lds_conflict_cycles},
                    {"lds_bytes_accessed", traffic.lds_bytes},
                    {"lds_instructions", lds_instructions},
                    {"memory_instructions", memory_instructions},
                    {"global_load_bytes", traffic.load_bytes},
                    {"global_store_bytes", traffic.store_bytes},
                    {"global_transactions_64B", traffic.transactions},
                    {"vgprs", vgprs},
                    {"agprs", agprs},
                    {"sgprs", sgprs},
                    {"lds_bytes", lds_bytes},
                    {"scratch_bytes", scratch_bytes},
                    {"waves_per_simd", waves_per_simd}});
}

std::string Counters::table() const {
  Table t(fmt::format("{} on {}: {} workgroups, {} waves", kernel, target, workgroups, waves));
  t.row("", "instructions", "issue cycles", "per wave");
  const double waves_run = static_cast<double>(std::max<u64>(1, waves));
  for (std::size_t i = 0; i < kInstructionClasses; ++i) {
    if (by_class[i] == 0) continue;
    t.row(class_name(static_cast<InstructionClass>(i)), by_class[i], issue_cycles[i],
          fmt::format("{:.1f}", static_cast<double>(issue_cycles[i]) / waves_run));
  }
  t.row("all instructions", instructions);
  for (const auto& [name, n] : lds_instructions) t.row("LDS " + name, n);
  for (const auto& [name, n] : memory_instructions) t.row("memory " + name, n);
  for (const auto& [name, n] : {std::pair{"LDS cycles", traffic.lds_cycles},
                                {"  of bank conflicts", traffic.lds_conflict_cycles},
                                {"LDS bytes", traffic.lds_bytes},
                                {"global bytes loaded", traffic.load_bytes},
                                {"global bytes stored", traffic.store_bytes},
                                {"64-byte transactions", traffic.transactions}}) {
    t.row(name, n);
  }
  t.line(fmt::format(
      "{} VGPRs, {} AGPRs, {} SGPRs, {} bytes of LDS, {} bytes of scratch: {} waves per SIMD",
      vgprs, agprs, sgprs, lds_bytes, scratch_bytes, waves_per_simd));
  return t.text();
}

// CDNA: the LDS of a CU serves four SIMDs; RDNA: 128 KiB of a WGP serve four. It is allocated in
// granules (ISA documents, 3.6 and 3.3.5).
int groups_by_lds(const Target& target, u32 lds) {
  const u32 granule = target.name == "gfx950" ? 1280 : target.is_cdna() ? 512 : 1024;
  const u32 total = target.is_cdna() ? target.max_lds_bytes : 131072;
  return static_cast<int>(total / ((std::max(lds, 1u) + granule - 1) / granule * granule));
}

int waves_per_simd(const Target& target, const KernelInfo& kernel, u32 lds, u32 threads) {
  const u32 wave = static_cast<u32>(kernel.wave_size);
  // Registers are allocated in granules; a wave64 on RDNA takes twice the space.
  u32 granule = target.agprs ? 8 : 4;
  u32 file = static_cast<u32>(target.vgprs_per_simd);
  if (!target.is_cdna()) {
    granule = file == 1536 ? (wave == 32 ? 24 : 12) : (wave == 32 ? 16 : 8);
    if (wave == 64) file /= 2;
  }
  // The metadata's count includes AGPRs in a unified file; otherwise it is the larger count.
  const u32 used = std::max(1u, kernel.vgprs);
  const u32 rounded = (used + granule - 1) / granule * granule;
  int waves = std::min<int>(target.max_waves_per_simd, static_cast<int>(file / rounded));
  if (lds > 0) {
    const u32 per_group = std::max(1u, (threads + wave - 1) / wave);
    const u32 groups = static_cast<u32>(groups_by_lds(target, lds));
    waves = std::min<int>(waves, static_cast<int>((groups * per_group + 3) / 4));
  }
  return waves;
}

}  // namespace rocflash::sim
