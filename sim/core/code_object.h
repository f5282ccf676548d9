// A code object in memory: segments laid out as a loader would, kernels with their descriptors and
// argument lists, symbols, and source lines where there is debug information.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/line_table.h"
#include "core/types.h"

namespace rocflash::sim {

struct KernelArgument {
  std::string name;
  std::string kind;  // "by_value", "global_buffer", "hidden_block_count_x", ...
  u32 offset = 0;
  u32 size = 0;
};

// The 64 bytes the packet processor reads, plus what the metadata adds.
struct KernelInfo {
  std::string name;
  u64 entry = 0;  // address of the first instruction
  u32 lds_bytes = 0;
  u32 scratch_bytes = 0;
  u32 kernarg_bytes = 0;  // 0: unknown; the caller's buffer decides
  u32 rsrc1 = 0;
  u32 rsrc2 = 0;
  u32 rsrc3 = 0;
  u16 properties = 0;
  u16 kernarg_preload = 0;
  int wave_size = 0;
  u32 max_threads = 1024;
  u32 sgprs = 0;
  u32 vgprs = 0;
  u32 agprs = 0;
  u32 vgpr_spills = 0;
  u32 sgpr_spills = 0;
  bool dynamic_stack = false;
  std::vector<KernelArgument> arguments;
};

struct Symbol {
  std::string name;
  u64 address = 0;
  u64 size = 0;
};

class CodeObject {
 public:
  // Takes an ELF code object, or a clang offload bundle that holds one for `target_name`.
  // Throws std::runtime_error with the reason.
  static std::unique_ptr<CodeObject> load(std::span<const u8> bytes, std::string_view target_name);
  // The size of the ELF or bundle at `data`, from its headers (hipModuleLoadData gets no size).
  static std::size_t measure(const void* data);
  // The bytes at `data`, copied; throws where they are not readable.
  static std::vector<u8> copy(const void* data);

  virtual ~CodeObject() = default;

  [[nodiscard]] const std::string& target() const { return target_; }
  [[nodiscard]] int version() const { return version_; }
  [[nodiscard]] std::span<const KernelInfo> kernels() const { return kernels_; }
  [[nodiscard]] const KernelInfo* find_kernel(std::string_view name) const;
  [[nodiscard]] const Symbol* find_variable(std::string_view name) const;
  [[nodiscard]] std::span<const u8> code() const { return code_; }
  [[nodiscard]] u64 code_address() const { return reinterpret_cast<u64>(code_.data()); }
  [[nodiscard]] std::span<u8> image() { return image_; }
  // Symbol and offset of `address`: "kernel+0x40".
  [[nodiscard]] std::string symbolize(u64 address) const;
  [[nodiscard]] virtual std::optional<SourceLine> source_line(u64 address) const = 0;
  // Distance from addresses in the file to addresses in memory.
  [[nodiscard]] u64 bias() const { return bias_; }

 protected:
  std::string target_;
  int version_ = 5;
  std::vector<KernelInfo> kernels_;
  std::vector<Symbol> functions_;
  std::vector<Symbol> variables_;
  std::span<const u8> code_;
  std::span<u8> image_;
  u64 bias_ = 0;
};

}  // namespace rocflash::sim
