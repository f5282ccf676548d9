// Resource report: registers, spills, LDS and occupancy of each kernel.
//
//   report JSON TEXT ARCH:MODULE...
//
// AMD: from the metadata of the linked code objects. NVIDIA: the driver compiles the PTX and
// decides on registers and occupancy, so they are null.
#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "build/occupancy.hpp"
#include "table/workgroups.hpp"

namespace {

using nlohmann::ordered_json;
using namespace rocflash::kernel;

class CodeObject {
 public:
  explicit CodeObject(std::string bytes) : bytes_(std::move(bytes)) {
    const auto header = read<Elf64_Ehdr>(0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) throw std::runtime_error("no ELF file");
    for (int i = 0; i < header.e_shnum; ++i) {
      const auto section = section_at(header, i);
      if (section.sh_type == SHT_NOTE) read_notes(section);
      if (section.sh_type == SHT_DYNSYM)
        read_symbols(section, section_at(header, static_cast<int>(section.sh_link)));
    }
  }

  // All metadata notes; a loadable object has exactly one.
  std::vector<nlohmann::json> metadata;
  std::map<std::string, std::uint64_t> function_sizes;

 private:
  template <class T>
  T read(std::size_t offset) const {
    T value;
    if (offset + sizeof value > bytes_.size()) throw std::runtime_error("the file ends too early");
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

  Elf64_Shdr section_at(const Elf64_Ehdr& header, int index) const {
    return read<Elf64_Shdr>(header.e_shoff + static_cast<std::size_t>(index) * header.e_shentsize);
  }

  void read_notes(const Elf64_Shdr& section) {
    const auto padded = [](std::size_t size) { return (size + 3) / 4 * 4; };
    for (std::size_t at = section.sh_offset; at < section.sh_offset + section.sh_size;) {
      const auto note = read<Elf64_Nhdr>(at);
      const std::size_t name = at + sizeof note, text = name + padded(note.n_namesz);
      constexpr unsigned amdgpu_metadata = 32;
      if (note.n_type == amdgpu_metadata && std::string_view(bytes_).substr(name, 6) == "AMDGPU") {
        const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(text);
        metadata.push_back(nlohmann::json::from_msgpack(begin, begin + note.n_descsz));
      }
      at = text + padded(note.n_descsz);
    }
  }

  void read_symbols(const Elf64_Shdr& section, const Elf64_Shdr& strings) {
    for (std::size_t at = 0; at < section.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = read<Elf64_Sym>(section.sh_offset + at);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
      function_sizes[bytes_.data() + strings.sh_offset + symbol.st_name] = symbol.st_size;
    }
  }

  std::string bytes_;
};

ordered_json amd_kernels(const Member& member, std::string bytes) {
  const std::string arch = member.arch;
  const Machine& machine = member.machine;
  const CodeObject object(std::move(bytes));
  if (object.metadata.size() != 1)
    throw std::runtime_error("not one metadata note but " + std::to_string(object.metadata.size()));
  const auto& metadata = object.metadata.front();
  if (metadata.at("amdhsa.target") != "amdgcn-amd-amdhsa--" + arch) {
    throw std::runtime_error("built for " + metadata.at("amdhsa.target").get<std::string>());
  }
  ordered_json kernels = ordered_json::array();
  for (const auto& kernel : metadata.at("amdhsa.kernels")) {
    const auto number = [&](const char* key) { return kernel.value(key, 0); };
    const Usage usage{number(".wavefront_size"),
                      number(".max_flat_workgroup_size"),
                      number(".vgpr_count"),
                      number(".sgpr_count"),
                      number(".group_segment_fixed_size"),
                      number(".workgroup_processor_mode") != 0};
    const std::string name = kernel.at(".name");
    kernels.push_back({{"name", name},
                       {"threads", usage.threads},
                       {"wave", usage.wave},
                       {"vgpr", usage.vector_registers},
                       {"agpr", number(".agpr_count")},
                       {"sgpr", usage.scalar_registers},
                       {"lds", usage.shared},
                       {"lds_limit", machine.workgroup_shared},
                       {"scratch", number(".private_segment_fixed_size")},
                       {"vgpr_spills", number(".vgpr_spill_count")},
                       {"sgpr_spills", number(".sgpr_spill_count")},
                       {"waves_per_simd", waves_per_simd(machine, usage)},
                       {"code", object.function_sizes.at(name)}});
  }
  return kernels;
}

// The number after `key`: ".maxntid 128, 1, 1", ".b8 __local_depot0[256]".
int number_after(std::string_view text, std::string_view key) {
  const auto at = text.find(key);
  return at == std::string_view::npos ? 0 : std::atoi(text.data() + at + key.size());
}

ordered_json nvidia_kernels(const Member& member, const std::string& ptx) {
  constexpr std::string_view entry = ".visible .entry ";
  ordered_json kernels = ordered_json::array();
  for (auto at = ptx.find(entry); at != std::string::npos;) {
    const auto next = ptx.find(entry, at + 1);
    const std::string_view text = std::string_view(ptx).substr(at, next - at);
    const auto name = text.substr(entry.size(), text.find('(') - entry.size());
    const auto depot = text.find("__local_depot");
    const int local = depot == std::string_view::npos ? 0 : number_after(text.substr(depot), "[");
    ordered_json kernel = {{"name", name}, {"threads", nullptr}, {"wave", 32}};
    if (const int threads = number_after(text, ".maxntid "); threads > 0)
      kernel["threads"] = threads;
    for (const char* unknown : {"vgpr", "agpr", "sgpr", "lds"}) kernel[unknown] = nullptr;
    kernel["lds_limit"] = member.machine.workgroup_shared;
    kernel["scratch"] = local;
    for (const char* unknown : {"vgpr_spills", "sgpr_spills", "waves_per_simd", "code"})
      kernel[unknown] = nullptr;
    kernels.push_back(std::move(kernel));
    at = next;
  }
  return kernels;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot be read");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

ordered_json target(const std::string& description) {
  const auto colon = description.find(':');
  if (colon == std::string::npos) throw std::runtime_error("not ARCH:MODULE");
  const std::string arch = description.substr(0, colon);
  const Member* const member = std::ranges::find(members, arch, &Member::arch);
  if (member == std::end(members)) throw std::runtime_error("table/devices.inc has no " + arch);
  const bool nvidia = vendor_of(member->family) == Vendor::nvidia;
  std::string bytes = read_file(description.substr(colon + 1));
  const std::size_t size = bytes.size();
  ordered_json kernels =
      nvidia ? nvidia_kernels(*member, bytes) : amd_kernels(*member, std::move(bytes));
  for (auto& kernel : kernels) {
    kernel["planned_waves_per_simd"] = nullptr;
    for (int n = 0; n < kernel_count; ++n) {
      if (kernel["name"] != kernel_name(n)) continue;
      const WorkgroupShape shape = workgroup_shape(member->family, kernel_spec(n));
      kernel["planned_waves_per_simd"] = shape.waves_per_simd;
      if (nvidia) kernel["lds"] = shape.dynamic_shared;
    }
  }
  return {{"arch", arch},
          {"family", name_of(member->family)},
          {"bytes", size},
          {"kernels", std::move(kernels)}};
}

std::string table(const ordered_json& targets) {
  static constexpr std::pair<const char*, const char*> columns[] = {
      {"threads", "threads"},
      {"vgpr", "vgpr"},
      {"agpr", "agpr"},
      {"sgpr", "sgpr"},
      {"lds", "lds"},
      {"scratch", "scratch"},
      {"vspill", "vgpr_spills"},
      {"sspill", "sgpr_spills"},
      {"waves", "waves_per_simd"},
      {"planned", "planned_waves_per_simd"},
      {"code", "code"}};
  std::string text =
      "Resources of each kernel.\n"
      "  vgpr     per lane, including agpr            vspill, sspill   registers spilled\n"
      "  lds      bytes per workgroup                 waves     per SIMD\n"
      "  scratch  bytes per thread in memory          planned   target of kernels/table\n"
      "NVIDIA: the driver compiles the PTX and decides on values shown as ?; lds is the launch "
      "parameter.\n";
  const auto cell = [&](int width, const std::string& value) {
    text +=
        std::string(static_cast<std::size_t>(std::max(1, width - static_cast<int>(value.size()))),
                    ' ') +
        value;
  };
  for (auto target = targets.begin(); target != targets.end(); ++target) {
    const auto& one = *target;
    const auto same = std::find_if(targets.begin(), target, [&](const auto& other) {
      return other.at("kernels") == one.at("kernels");
    });
    if (same != target) {
      text +=
          one.at("arch").get<std::string>() + ": as " + same->at("arch").get<std::string>() + "\n";
      continue;
    }
    const std::string heading = one.at("arch").get<std::string>() + " (" +
                                one.at("family").get<std::string>() + ", " +
                                std::to_string(one.at("bytes").get<std::size_t>()) + " bytes)";
    text += "\n" + heading + std::string(heading.size() < 28 ? 28 - heading.size() : 0, ' ');
    for (const auto& [title, key] : columns) cell(9, title);
    text += '\n';
    for (const auto& kernel : one.at("kernels")) {
      const std::string name = kernel.at("name");
      text += "  " + name + std::string(name.size() < 26 ? 26 - name.size() : 0, ' ');
      for (const auto& [title, key] : columns) {
        const auto& value = kernel.at(key);
        cell(9, value.is_null() ? "?" : value.dump());
      }
      text += '\n';
    }
  }
  return text;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "usage: %s JSON TEXT ARCH:MODULE...\n", arguments[0]);
    return 2;
  }
  const char* at = arguments[0];
  try {
    ordered_json targets = ordered_json::array();
    for (int i = 3; i < count; ++i) targets.push_back(target(at = arguments[i]));
    at = arguments[0];
    write(arguments[2], table(targets));
    write(arguments[1], ordered_json{{"targets", targets}}.dump(1) + "\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", at, error.what());
    return 1;
  }
  return 0;
}
