// ELF, notes and kernel descriptors through LLVM's object and binary-format libraries.
#include "core/code_object.h"

#include <llvm/BinaryFormat/ELF.h>
#include <llvm/BinaryFormat/MsgPackDocument.h>
#include <llvm/DebugInfo/DWARF/DWARFContext.h>
#include <llvm/Object/ELFObjectFile.h>
#include <llvm/Support/MemoryBuffer.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace rocflash::sim {
namespace {

using ElfObject = llvm::object::ELF64LEObjectFile;
using ElfFile = llvm::object::ELF64LEFile;

constexpr std::string_view kBundleMagic = "__CLANG_OFFLOAD_BUNDLE__";
constexpr u64 kPage = 4096;

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

// The ELF for `target` inside a clang offload bundle.
std::span<const u8> unbundle(std::span<const u8> bytes, std::string_view target) {
  const u64 count = read<u64>(bytes.data() + kBundleMagic.size());
  std::size_t at = kBundleMagic.size() + 8;
  for (u64 i = 0; i < count && at + 24 <= bytes.size(); ++i) {
    const u64 offset = read<u64>(bytes.data() + at);
    const u64 size = read<u64>(bytes.data() + at + 8);
    const u64 id_size = read<u64>(bytes.data() + at + 16);
    const std::string_view id(reinterpret_cast<const char*>(bytes.data() + at + 24), id_size);
    at += 24 + id_size;
    const auto name_at = id.rfind("--");
    const auto name = name_at == id.npos ? std::string_view() : id.substr(name_at + 2);
    if (id.starts_with("h") && name.substr(0, name.find(':')) == target && size > 0) {
      return bytes.subspan(offset, size);
    }
  }
  throw std::runtime_error("the offload bundle has no code for " + std::string(target));
}

u64 bundle_size(const u8* data) {
  const u64 count = read<u64>(data + kBundleMagic.size());
  std::size_t at = kBundleMagic.size() + 8;
  u64 end = at;
  for (u64 i = 0; i < count; ++i) {
    const u64 offset = read<u64>(data + at);
    const u64 size = read<u64>(data + at + 8);
    at += 24 + read<u64>(data + at + 16);
    end = std::max({end, offset + size, static_cast<u64>(at)});
  }
  return end;
}

u32 get_u32(llvm::msgpack::MapDocNode& map, const char* key, u32 otherwise = 0) {
  auto it = map.find(key);
  if (it == map.end()) return otherwise;
  if (it->second.getKind() == llvm::msgpack::Type::UInt) return u32(it->second.getUInt());
  if (it->second.getKind() == llvm::msgpack::Type::Int) return u32(it->second.getInt());
  if (it->second.getKind() == llvm::msgpack::Type::Boolean) return it->second.getBool();
  return otherwise;
}

std::string get_string(llvm::msgpack::MapDocNode& map, const char* key) {
  auto it = map.find(key);
  if (it == map.end() || it->second.getKind() != llvm::msgpack::Type::String) return {};
  return it->second.getString().str();
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
    version_ = elf.getHeader().e_ident[llvm::ELF::EI_ABIVERSION] + 2;
    if (version_ < 4 || version_ > 6) {
      throw std::runtime_error("code object version " + std::to_string(version_) +
                               " is not supported (4, 5 and 6 are)");
    }
    load_segments(elf);
    read_metadata(elf);
    const auto plain = target_.substr(0, target_.find(':'));
    if (!target.empty() && plain != target.substr(0, target.find(':'))) {
      throw std::runtime_error("the code object is for " + target_ + ", the device is " +
                               std::string(target));
    }
    read_symbols();
  }

  ~LoadedObject() override { std::free(image_.data()); }

  std::optional<SourceLine> source_line(u64 address) const override {
    const std::scoped_lock lock(debug_mutex_);
    if (!debug_) debug_ = llvm::DWARFContext::create(*object_);
    llvm::DILineInfoSpecifier how(llvm::DILineInfoSpecifier::FileLineInfoKind::AbsoluteFilePath);
    const auto info = debug_->getLineInfoForAddress(
        {address - bias_, llvm::object::SectionedAddress::UndefSection}, how);
    if (!info || info->Line == 0) return std::nullopt;
    return SourceLine{info->FileName, info->Line};
  }

 private:
  void load_segments(const ElfFile& elf) {
    const auto headers = take(elf.program_headers(), "program headers");
    u64 end = 0;
    for (const auto& h : headers) {
      if (h.p_type == llvm::ELF::PT_LOAD) end = std::max<u64>(end, h.p_vaddr + h.p_memsz);
    }
    if (end == 0) throw std::runtime_error("the code object has nothing to load");
    const u64 size = (end + kPage - 1) / kPage * kPage;
    auto* memory = static_cast<u8*>(std::aligned_alloc(kPage, size));
    std::memset(memory, 0, size);
    image_ = {memory, size};
    bias_ = reinterpret_cast<u64>(memory);
    for (const auto& h : headers) {
      if (h.p_type != llvm::ELF::PT_LOAD) continue;
      if (h.p_offset + h.p_filesz > file_bytes_.size()) {
        throw std::runtime_error("a segment lies outside the file");
      }
      std::memcpy(memory + h.p_vaddr, file_bytes_.data() + h.p_offset, h.p_filesz);
    }
    for (const auto& section : take(elf.sections(), "sections")) {
      if (section.sh_type == llvm::ELF::SHT_RELA) relocate(elf, section);
      const auto name = take(elf.getSectionName(section), "section name");
      if (name == ".text") code_ = {memory + section.sh_addr, section.sh_size};
    }
    if (code_.empty()) throw std::runtime_error("the code object has no .text");
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
        llvm::msgpack::Document document;
        const llvm::StringRef blob(reinterpret_cast<const char*>(desc.data()), desc.size());
        if (!document.readFromBlob(blob, false)) {
          throw std::runtime_error("the metadata note is not valid msgpack");
        }
        auto& root = document.getRoot().getMap();
        const std::string target = get_string(root, "amdhsa.target");
        // "amdgcn-amd-amdhsa--gfx90a"; other compilers spell the triple differently.
        const auto at = target.rfind("gfx");
        if (at != std::string::npos) target_ = target.substr(at);
        auto kernels = root.find("amdhsa.kernels");
        if (kernels == root.end()) continue;
        for (auto& kernel : kernels->second.getArray()) read_kernel(kernel.getMap());
      }
      if (error) throw std::runtime_error(llvm::toString(std::move(error)));
    }
    if (target_.empty()) throw std::runtime_error("the code object has no AMDGPU metadata note");
  }

  void read_kernel(llvm::msgpack::MapDocNode& map) {
    KernelInfo kernel;
    kernel.name = get_string(map, ".name");
    kernel.wave_size = static_cast<int>(get_u32(map, ".wavefront_size", 64));
    kernel.max_threads = get_u32(map, ".max_flat_workgroup_size", 1024);
    kernel.sgprs = get_u32(map, ".sgpr_count");
    kernel.vgprs = get_u32(map, ".vgpr_count");
    kernel.agprs = get_u32(map, ".agpr_count");
    kernel.sgpr_spills = get_u32(map, ".sgpr_spill_count");
    kernel.vgpr_spills = get_u32(map, ".vgpr_spill_count");
    kernel.dynamic_stack = get_u32(map, ".uses_dynamic_stack") != 0;
    if (auto args = map.find(".args"); args != map.end()) {
      for (auto& node : args->second.getArray()) {
        auto& arg = node.getMap();
        kernel.arguments.push_back({get_string(arg, ".name"), get_string(arg, ".value_kind"),
                                    get_u32(arg, ".offset"), get_u32(arg, ".size")});
      }
    }
    descriptor_names_.push_back(get_string(map, ".symbol"));
    kernels_.push_back(std::move(kernel));
  }

  void read_symbols() {
    for (const auto& symbol : object_->getDynamicSymbolIterators()) add_symbol(symbol);
    for (const auto& symbol : object_->symbols()) add_symbol(symbol);
    for (const auto& kernel : kernels_) {
      if (kernel.entry == 0) {
        throw std::runtime_error("kernel " + kernel.name + " has no descriptor");
      }
    }
    std::ranges::sort(functions_, {}, &Symbol::address);
  }

  void add_symbol(const llvm::object::ELFSymbolRef& symbol) {
    const auto name = take(symbol.getName(), "symbol name").str();
    const u64 value = take(symbol.getValue(), "symbol value");
    const u8 type = symbol.getELFType();
    if (type == llvm::ELF::STT_FUNC) {
      functions_.push_back({name, bias_ + value, symbol.getSize()});
    } else if (type == llvm::ELF::STT_OBJECT) {
      variables_.push_back({name, bias_ + value, symbol.getSize()});
      const auto it = std::ranges::find(descriptor_names_, name);
      if (it == descriptor_names_.end() || symbol.getSize() != 64) return;
      read_descriptor(kernels_[static_cast<std::size_t>(it - descriptor_names_.begin())], value);
    }
  }

  void read_descriptor(KernelInfo& kernel, u64 offset) {
    const u8* p = image_.data() + offset;
    kernel.lds_bytes = read<u32>(p);
    kernel.scratch_bytes = read<u32>(p + 4);
    kernel.kernarg_bytes = read<u32>(p + 8);
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
  mutable std::unique_ptr<llvm::DWARFContext> debug_;
};

}  // namespace

std::unique_ptr<CodeObject> CodeObject::load(std::span<const u8> bytes,
                                             std::string_view target_name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto plain = target_name.substr(0, target_name.find(':'));
  if (text.starts_with(kBundleMagic)) bytes = unbundle(bytes, plain);
  return std::make_unique<LoadedObject>(bytes, plain);
}

std::size_t CodeObject::measure(const void* data) {
  const auto* p = static_cast<const u8*>(data);
  if (std::memcmp(p, kBundleMagic.data(), kBundleMagic.size()) == 0) return bundle_size(p);
  if (std::memcmp(p, "\177ELF", 4) != 0) {
    throw std::runtime_error("neither an ELF nor an uncompressed offload bundle");
  }
  const auto section_offset = read<u64>(p + 40);
  const auto section_size = read<u16>(p + 58);
  const auto section_count = read<u16>(p + 60);
  u64 end = section_offset + u64{section_size} * section_count;
  for (u16 i = 0; i < section_count; ++i) {
    const u8* header = p + section_offset + u64{section_size} * i;
    if (read<u32>(header + 4) == 8) continue;  // SHT_NOBITS occupies no file space
    end = std::max<u64>(end, read<u64>(header + 24) + read<u64>(header + 32));
  }
  return end;
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
