// ELF, notes and kernel descriptors through LLVM's object and binary-format libraries.
#include "core/code_object.h"

#include <llvm/BinaryFormat/ELF.h>
#include <llvm/Object/ELFObjectFile.h>
#include <llvm/Support/MemoryBuffer.h>

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <new>
#include <stdexcept>

#include "core/metadata.h"

namespace rocflash::sim {
namespace {

using ElfObject = llvm::object::ELF64LEObjectFile;
using ElfFile = llvm::object::ELF64LEFile;

constexpr std::string_view kBundleMagic = "__CLANG_OFFLOAD_BUNDLE__";
constexpr u64 kPage = 4096;
// Limits of plausible files; a file beyond them is corrupt and would only exhaust memory.
constexpr u64 kMaxImage = 1ull << 30;
constexpr u32 kMaxScratch = 1u << 20;    // bytes per lane; hardware allows an eighth
constexpr u32 kMaxArguments = 1u << 16;  // bytes
constexpr u64 kDescriptorBytes = 64;

template <typename T>
T take(llvm::Expected<T> expected, const char* what) {
  if (!expected) {
    throw std::runtime_error(std::string(what) + ": " + llvm::toString(expected.takeError()));
  }
  return std::move(*expected);
}

template <typename T>
T read(const u8* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

bool fits(u64 offset, u64 size, u64 whole) { return offset <= whole && size <= whole - offset; }

void require(bool condition, const char* complaint) {
  if (!condition) throw std::runtime_error(complaint);
}

// Targets by the EF_AMDGPU_MACH field of the ELF flags. (LLVM's own look-up aborts on a value
// that it does not know.)
struct Machine {
  u32 code;
  std::string_view name;
};
constexpr Machine kMachines[] = {
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX906, "gfx906"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX908, "gfx908"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX90A, "gfx90a"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX942, "gfx942"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX950, "gfx950"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1030, "gfx1030"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1031, "gfx1031"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1032, "gfx1032"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1033, "gfx1033"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1034, "gfx1034"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1035, "gfx1035"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1036, "gfx1036"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1100, "gfx1100"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1101, "gfx1101"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1102, "gfx1102"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1103, "gfx1103"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1150, "gfx1150"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1151, "gfx1151"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1152, "gfx1152"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1153, "gfx1153"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1200, "gfx1200"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX1201, "gfx1201"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX9_4_GENERIC, "gfx9-4-generic"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX10_3_GENERIC, "gfx10-3-generic"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX11_GENERIC, "gfx11-generic"},
    {llvm::ELF::EF_AMDGPU_MACH_AMDGCN_GFX12_GENERIC, "gfx12-generic"},
};

// The target with its features, as the metadata of later versions spells it.
std::string target_of_flags(u32 flags, int version) {
  const u32 code = flags & llvm::ELF::EF_AMDGPU_MACH;
  const auto* machine = std::ranges::find(kMachines, code, &Machine::code);
  if (machine == std::end(kMachines)) {
    throw std::runtime_error(
        "the code object says its target neither in its metadata nor in its "
        "flags (machine " +
        std::to_string(code) + ")");
  }
  std::string name(machine->name);
  if (version == 3) {
    if ((flags & llvm::ELF::EF_AMDGPU_FEATURE_SRAMECC_V3) != 0) name += ":sramecc+";
    if ((flags & llvm::ELF::EF_AMDGPU_FEATURE_XNACK_V3) != 0) name += ":xnack+";
    return name;
  }
  const u32 sramecc = flags & llvm::ELF::EF_AMDGPU_FEATURE_SRAMECC_V4;
  const u32 xnack = flags & llvm::ELF::EF_AMDGPU_FEATURE_XNACK_V4;
  if (sramecc == llvm::ELF::EF_AMDGPU_FEATURE_SRAMECC_ON_V4) name += ":sramecc+";
  if (sramecc == llvm::ELF::EF_AMDGPU_FEATURE_SRAMECC_OFF_V4) name += ":sramecc-";
  if (xnack == llvm::ELF::EF_AMDGPU_FEATURE_XNACK_ON_V4) name += ":xnack+";
  if (xnack == llvm::ELF::EF_AMDGPU_FEATURE_XNACK_OFF_V4) name += ":xnack-";
  return name;
}

// Whether code for `built` runs on `device`: the same target, or a generic one that covers it.
// Target features are ignored.
bool runs_on(std::string_view built, std::string_view device) {
  built = built.substr(0, built.find(':'));
  device = device.substr(0, device.find(':'));
  if (built == device) return true;
  if (built == "gfx9-4-generic") return device == "gfx942" || device == "gfx950";
  if (built == "gfx10-3-generic") return device.starts_with("gfx103");
  if (built == "gfx11-generic") return device.starts_with("gfx11");
  return built == "gfx12-generic" && device.starts_with("gfx12");
}

// The ELF for `target` inside a clang offload bundle.
std::span<const u8> unbundle(std::span<const u8> bytes, std::string_view target) {
  constexpr const char* kCut = "the offload bundle is cut off";
  std::size_t at = kBundleMagic.size() + 8;
  require(at <= bytes.size(), kCut);
  const u64 count = read<u64>(bytes.data() + kBundleMagic.size());
  std::span<const u8> generic;
  for (u64 i = 0; i < count; ++i) {
    require(fits(at, 24, bytes.size()), kCut);
    const u64 offset = read<u64>(bytes.data() + at);
    const u64 size = read<u64>(bytes.data() + at + 8);
    const u64 id_size = read<u64>(bytes.data() + at + 16);
    require(fits(at + 24, id_size, bytes.size()) && fits(offset, size, bytes.size()), kCut);
    const std::string_view id(reinterpret_cast<const char*>(bytes.data() + at + 24), id_size);
    at += 24 + id_size;
    const auto name_at = id.rfind("--");
    const auto name = name_at == id.npos ? std::string_view() : id.substr(name_at + 2);
    if (!id.starts_with("h") || size == 0 || !runs_on(name, target)) continue;
    // Code for the exact target has priority over generic code of its family.
    if (name.substr(0, name.find(':')) == target) return bytes.subspan(offset, size);
    generic = bytes.subspan(offset, size);
  }
  if (!generic.empty()) return generic;
  throw std::runtime_error("the offload bundle has no code for " + std::string(target));
}

// hipModuleLoadData gets an address without a size. process_vm_readv reads the bytes: it
// returns an error where a direct read would fault.
void take_bytes(const void* from, u64 offset, void* to, u64 size) {
  const iovec local{to, size};
  const iovec remote{const_cast<u8*>(static_cast<const u8*>(from)) + offset, size};
  const ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  if (n < 0 && errno != EFAULT) {
    // The system call is not permitted (seccomp): read directly, as other loaders do.
    std::memcpy(to, static_cast<const u8*>(from) + offset, size);
    return;
  }
  require(n == static_cast<ssize_t>(size), "the code object's headers point outside its memory");
}

template <typename T>
T take_at(const void* from, u64 offset) {
  T value;
  take_bytes(from, offset, &value, sizeof value);
  return value;
}

u64 checked_end(u64 offset, u64 size) {
  require(offset <= kMaxImage && size <= kMaxImage,
          "the offsets and sizes in the code object's headers are invalid");
  return offset + size;
}

u64 bundle_size(const void* data) {
  const u64 count = take_at<u64>(data, kBundleMagic.size());
  u64 at = kBundleMagic.size() + 8;
  u64 end = at;
  for (u64 i = 0; i < count; ++i) {
    const u64 code = checked_end(take_at<u64>(data, at), take_at<u64>(data, at + 8));
    at = checked_end(at + 24, take_at<u64>(data, at + 16));
    end = std::max({end, code, at});
  }
  return end;
}

// The last byte that a section or segment of the ELF occupies.
u64 elf_size(const void* data) {
  const u64 segments = take_at<u64>(data, 32);
  const u64 sections = take_at<u64>(data, 40);
  const u64 segment_size = take_at<u16>(data, 54);
  const u64 segment_count = take_at<u16>(data, 56);
  const u64 section_size = take_at<u16>(data, 58);
  const u64 section_count = take_at<u16>(data, 60);
  u64 end = std::max({u64{64}, checked_end(sections, section_size * section_count),
                      checked_end(segments, segment_size * segment_count)});
  for (u64 i = 0; i < section_count; ++i) {
    const u64 header = sections + section_size * i;
    if (take_at<u32>(data, header + 4) == llvm::ELF::SHT_NOBITS) continue;
    end = std::max(end,
                   checked_end(take_at<u64>(data, header + 24), take_at<u64>(data, header + 32)));
  }
  for (u64 i = 0; i < segment_count; ++i) {
    const u64 header = segments + segment_size * i;
    end =
        std::max(end, checked_end(take_at<u64>(data, header + 8), take_at<u64>(data, header + 32)));
  }
  return end;
}

class LoadedObject final : public CodeObject {
 public:
  LoadedObject(std::span<const u8> bytes, std::string_view target) {
    file_bytes_.assign(bytes.begin(), bytes.end());
    const llvm::StringRef text(reinterpret_cast<const char*>(file_bytes_.data()),
                               file_bytes_.size());
    buffer_ = llvm::MemoryBuffer::getMemBuffer(text, "code object", false);
    auto object = take(llvm::object::ObjectFile::createELFObjectFile(*buffer_), "code object");
    if (llvm::dyn_cast<ElfObject>(object.get()) == nullptr) {
      throw std::runtime_error("the code object is not a little-endian 64-bit ELF");
    }
    object_.reset(llvm::cast<ElfObject>(object.release()));
    const ElfFile& elf = object_->getELFFile();
    if (elf.getHeader().e_machine != llvm::ELF::EM_AMDGPU) {
      throw std::runtime_error("the ELF is not for AMDGPU");
    }
    require(elf.getHeader().e_type == llvm::ELF::ET_DYN, "the ELF is not linked (not ET_DYN)");
    version_ = elf.getHeader().e_ident[llvm::ELF::EI_ABIVERSION] + 2;
    load_segments(elf);
    read_metadata(elf);
    if (version_ < 3 || version_ > 6) {
      throw std::runtime_error("code object version " + std::to_string(version_) +
                               " is not supported (3, 4, 5 and 6 are)");
    }
    if (target_.empty()) target_ = target_of_flags(elf.getHeader().e_flags, version_);
    if (!target.empty() && !runs_on(target_, target)) {
      throw std::runtime_error("the code object is for " + target_ + ", the device is " +
                               std::string(target));
    }
    read_symbols();
  }

  ~LoadedObject() override { std::free(image_.data()); }

  std::optional<SourceLine> source_line(u64 address) const override {
    const std::scoped_lock lock(debug_mutex_);
    if (!lines_) {
      lines_.emplace(DebugSections{section(".debug_line"), section(".debug_line_str"),
                                   section(".debug_str"), section(".debug_info"),
                                   section(".debug_abbrev")});
    }
    return lines_->find(address - bias_);
  }

 private:
  // Contents of a section in the file; empty if it is missing or not readable.
  [[nodiscard]] std::span<const u8> section(std::string_view name) const {
    for (const auto& s : object_->sections()) {
      auto found = s.getName();
      if (!found) {
        llvm::consumeError(found.takeError());
        continue;
      }
      if (std::string_view(*found) != name || s.isCompressed()) continue;
      auto contents = s.getContents();
      if (contents) return {contents->bytes_begin(), contents->size()};
      llvm::consumeError(contents.takeError());
    }
    return {};
  }

  void load_segments(const ElfFile& elf) {
    const auto headers = take(elf.program_headers(), "program headers");
    u64 end = 0;
    for (const auto& h : headers) {
      if (h.p_type != llvm::ELF::PT_LOAD) continue;
      require(fits(h.p_vaddr, h.p_memsz, kMaxImage), "a segment is implausibly large");
      require(h.p_filesz <= h.p_memsz, "a segment is larger in the file than in memory");
      require(fits(h.p_offset, h.p_filesz, file_bytes_.size()), "a segment is outside the file");
      end = std::max<u64>(end, h.p_vaddr + h.p_memsz);
    }
    require(end != 0, "the code object has nothing to load");
    require(end <= kMaxImage, "the code object's segments are implausibly large");
    const u64 size = (end + kPage - 1) / kPage * kPage;
    auto* memory = static_cast<u8*>(std::aligned_alloc(kPage, size));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory, 0, size);
    image_ = {memory, size};
    bias_ = reinterpret_cast<u64>(memory);
    for (const auto& h : headers) {
      if (h.p_type != llvm::ELF::PT_LOAD) continue;
      std::memcpy(memory + h.p_vaddr, file_bytes_.data() + h.p_offset, h.p_filesz);
    }
    for (const auto& section : take(elf.sections(), "sections")) {
      if (section.sh_type == llvm::ELF::SHT_RELA) relocate(elf, section);
      const auto name = take(elf.getSectionName(section), "section name");
      if (name != ".text") continue;
      require(fits(section.sh_addr, section.sh_size, size), "the code is outside the segments");
      code_ = {memory + section.sh_addr, section.sh_size};
    }
    // Without sections the executable segment is the code.
    for (const auto& h : headers) {
      if (!code_.empty()) break;
      if (h.p_type != llvm::ELF::PT_LOAD || (h.p_flags & llvm::ELF::PF_X) == 0) continue;
      code_ = {memory + h.p_vaddr, h.p_filesz};
    }
    if (code_.empty()) throw std::runtime_error("the code object has no code");
  }

  void relocate(const ElfFile& elf, const ElfFile::Elf_Shdr& section) {
    const auto symbols = take(elf.getSection(section.sh_link), "relocation symbols");
    for (const auto& rela : take(elf.relas(section), "relocations")) {
      u64 value = 0;
      if (rela.getType(false) == llvm::ELF::R_AMDGPU_RELATIVE64) {
        value = bias_ + static_cast<u64>(rela.r_addend);
      } else if (rela.getType(false) == llvm::ELF::R_AMDGPU_ABS64) {
        const auto* symbol = take(elf.getRelocationSymbol(rela, symbols), "relocation symbol");
        if (symbol == nullptr || symbol->st_shndx == llvm::ELF::SHN_UNDEF) {
          throw std::runtime_error("the code object refers to an undefined symbol");
        }
        value = bias_ + symbol->st_value + static_cast<u64>(rela.r_addend);
      } else {
        throw std::runtime_error("relocation type " + std::to_string(rela.getType(false)) +
                                 " is not supported");
      }
      require(fits(rela.r_offset, sizeof value, image_.size()), "a relocation is outside the code");
      std::memcpy(image_.data() + rela.r_offset, &value, sizeof value);
    }
  }

  void read_metadata(const ElfFile& elf) {
    for (const auto& header : take(elf.program_headers(), "program headers")) {
      if (header.p_type != llvm::ELF::PT_NOTE) continue;
      llvm::Error error = llvm::Error::success();
      for (const auto& note : elf.notes(header, error)) {
        if (note.getName() != "AMDGPU" || note.getType() != llvm::ELF::NT_AMDGPU_METADATA) continue;
        const auto desc = note.getDesc(4);
        Metadata metadata = parse_metadata({desc.data(), desc.size()});
        if (!metadata.target.empty()) target_ = std::move(metadata.target);
        // ABI version 0 means code object version 2, which has no such note.
        if (version_ == 2) version_ = 3 + std::clamp(metadata.minor, 0, 2);
        std::ranges::move(metadata.kernels, std::back_inserter(kernels_));
        std::ranges::move(metadata.descriptors, std::back_inserter(descriptor_names_));
      }
      if (error) throw std::runtime_error(llvm::toString(std::move(error)));
    }
  }

  void read_symbols() {
    // LLVM's symbol iterators abort on a corrupt table; the table accessors return errors.
    const ElfFile& elf = object_->getELFFile();
    for (const auto& section : take(elf.sections(), "sections")) {
      if (section.sh_type != llvm::ELF::SHT_DYNSYM && section.sh_type != llvm::ELF::SHT_SYMTAB) {
        continue;
      }
      const auto names = take(elf.getStringTableForSymtab(section), "symbol names");
      for (const auto& symbol : take(elf.symbols(&section), "symbols")) {
        add_symbol(take(symbol.getName(names), "symbol name").str(), symbol.getType(),
                   symbol.st_value, symbol.st_size);
      }
    }
    for (KernelInfo& kernel : kernels_) {
      complete_kernel(kernel);
      check_kernel(kernel);
    }
    std::ranges::sort(functions_, {}, &Symbol::address);
  }

  void add_symbol(const std::string& name, u8 type, u64 value, u64 size) {
    if (type == llvm::ELF::STT_FUNC) {
      functions_.push_back({name, bias_ + value, size});
    } else if (type == llvm::ELF::STT_OBJECT) {
      require(fits(value, size, image_.size()), "a variable is outside the segments");
      variables_.push_back({name, bias_ + value, size});
      if (size == kDescriptorBytes) add_descriptor(name, value);
    }
  }

  // A descriptor that the metadata does not list is a kernel too; nothing is known of its
  // arguments.
  void add_descriptor(const std::string& name, u64 value) {
    auto it = std::ranges::find(descriptor_names_, name);
    if (it == descriptor_names_.end()) {
      constexpr std::string_view kSuffix = ".kd";
      if (!name.ends_with(kSuffix)) return;
      KernelInfo kernel;
      kernel.name = name.substr(0, name.size() - kSuffix.size());
      kernels_.push_back(std::move(kernel));
      it = descriptor_names_.insert(descriptor_names_.end(), name);
    }
    read_descriptor(kernels_[static_cast<std::size_t>(it - descriptor_names_.begin())], value);
  }

  // Values that follow from metadata and descriptor together.
  void complete_kernel(KernelInfo& kernel) const {
    constexpr u32 kWave32 = 1u << 10;
    if (kernel.wave_size == 0) kernel.wave_size = (kernel.properties & kWave32) != 0 ? 32 : 64;
    if (kernel.vgprs == 0) {
      const u32 unit = kernel.wave_size == 32 || target_.starts_with("gfx9") ? 8 : 4;
      kernel.vgprs = ((kernel.rsrc1 & 63) + 1) * unit;
    }
    if (kernel.kernarg_bytes != 0) return;
    u64 end = 0;
    for (const auto& a : kernel.arguments) end = std::max(end, u64{a.offset} + a.size);
    kernel.kernarg_bytes = static_cast<u32>(std::min<u64>(end, ~0u));
  }

  void check_kernel(const KernelInfo& kernel) const {
    const auto check = [&kernel](bool condition, const std::string& complaint) {
      if (!condition) throw std::runtime_error("kernel " + kernel.name + " " + complaint);
    };
    check(kernel.entry != 0, "has no descriptor");
    check(kernel.wave_size == 64 || (kernel.wave_size == 32 && !target_.starts_with("gfx9")),
          "has waves of " + std::to_string(kernel.wave_size) + ", which " + target_ + " has not");
    check(kernel.scratch_bytes <= kMaxScratch,
          "needs " + std::to_string(kernel.scratch_bytes) + " bytes of scratch per lane");
    check(kernel.kernarg_bytes <= kMaxArguments,
          "needs " + std::to_string(kernel.kernarg_bytes) + " bytes of arguments");
    for (const auto& argument : kernel.arguments) {
      check(fits(argument.offset, argument.size, kernel.kernarg_bytes),
            "has an argument outside its " + std::to_string(kernel.kernarg_bytes) + " bytes");
    }
    const u32 preload = kernel.kernarg_preload & 0x7fu;
    const u32 first = kernel.kernarg_preload >> 7;
    const bool unsaid = kernel.kernarg_bytes == 0;
    check(preload <= 16 && (unsaid || 4 * (first + preload) <= kernel.kernarg_bytes + 63),
          "preloads arguments it does not have");
  }

  void read_descriptor(KernelInfo& kernel, u64 offset) {
    const u8* p = image_.data() + offset;
    kernel.lds_bytes = read<u32>(p);
    kernel.scratch_bytes = read<u32>(p + 4);
    // 0: the descriptor does not have it.
    if (const u32 bytes = read<u32>(p + 8); bytes != 0) kernel.kernarg_bytes = bytes;
    kernel.entry = bias_ + offset + static_cast<u64>(read<i64>(p + 16));
    kernel.rsrc3 = read<u32>(p + 44);
    kernel.rsrc1 = read<u32>(p + 48);
    kernel.rsrc2 = read<u32>(p + 52);
    kernel.properties = read<u16>(p + 56);
    kernel.kernarg_preload = read<u16>(p + 58);
  }

  std::vector<u8> file_bytes_;
  std::unique_ptr<llvm::MemoryBuffer> buffer_;
  std::unique_ptr<ElfObject> object_;
  std::vector<std::string> descriptor_names_;
  mutable std::mutex debug_mutex_;
  mutable std::optional<LineTable> lines_;
};

}  // namespace

std::unique_ptr<CodeObject> CodeObject::load(std::span<const u8> bytes,
                                             std::string_view target_name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto name = target_name.substr(0, target_name.find(':'));
  if (text.starts_with(kBundleMagic)) bytes = unbundle(bytes, name);
  return std::make_unique<LoadedObject>(bytes, name);
}

std::size_t CodeObject::measure(const void* data) {
  u8 magic[4];
  take_bytes(data, 0, magic, sizeof magic);
  if (std::memcmp(magic, kBundleMagic.data(), sizeof magic) == 0) {
    std::string whole(kBundleMagic.size(), '\0');
    take_bytes(data, 0, whole.data(), whole.size());
    if (whole == kBundleMagic) return bundle_size(data);
  }
  require(std::memcmp(magic, "\177ELF", 4) == 0,
          "neither an ELF nor an uncompressed offload bundle");
  return elf_size(data);
}

std::vector<u8> CodeObject::copy(const void* data) {
  std::vector<u8> bytes(measure(data));
  take_bytes(data, 0, bytes.data(), bytes.size());
  return bytes;
}

const KernelInfo* CodeObject::find_kernel(std::string_view name) const {
  const auto it = std::ranges::find(kernels_, name, &KernelInfo::name);
  return it == kernels_.end() ? nullptr : &*it;
}

const Symbol* CodeObject::find_variable(std::string_view name) const {
  const auto it = std::ranges::find(variables_, name, &Symbol::name);
  return it == variables_.end() ? nullptr : &*it;
}

std::string CodeObject::symbolize(u64 address) const {
  auto it = std::ranges::upper_bound(functions_, address, {}, &Symbol::address);
  char offset[32];
  if (it == functions_.begin()) {
    std::snprintf(offset, sizeof offset, ".text+0x%llx",
                  static_cast<unsigned long long>(address - code_address()));
    return offset;
  }
  --it;
  std::snprintf(offset, sizeof offset, "+0x%llx",
                static_cast<unsigned long long>(address - it->address));
  return it->name + offset;
}

}  // namespace rocflash::sim
