// The only translation unit that includes LLVM's MC headers.
#include "core/disassemble.h"

#include <llvm/MC/MCAsmInfo.h>
#include <llvm/MC/MCContext.h>
#include <llvm/MC/MCDisassembler/MCDisassembler.h>
#include <llvm/MC/MCInst.h>
#include <llvm/MC/MCInstPrinter.h>
#include <llvm/MC/MCInstrInfo.h>
#include <llvm/MC/MCRegisterInfo.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/MCTargetOptions.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CrashRecoveryContext.h>
#include <llvm/Support/raw_ostream.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>

#include "core/target.h"

extern "C" {
void LLVMInitializeAMDGPUTargetInfo();
void LLVMInitializeAMDGPUTargetMC();
void LLVMInitializeAMDGPUDisassembler();
}

namespace rocflash::sim {
namespace {

struct Machine {
  llvm::Triple triple{"amdgcn-amd-amdhsa"};
  std::unique_ptr<llvm::MCRegisterInfo> registers;
  std::unique_ptr<llvm::MCAsmInfo> assembly;
  std::unique_ptr<llvm::MCInstrInfo> instructions;
  std::unique_ptr<llvm::MCSubtargetInfo> subtarget;
  std::unique_ptr<llvm::MCContext> context;
  std::unique_ptr<llvm::MCDisassembler> disassembler;
  std::unique_ptr<llvm::MCInstPrinter> printer;

  Machine(std::string_view cpu, std::string_view features) {
    static std::once_flag once;
    std::call_once(once, [] {
      LLVMInitializeAMDGPUTargetInfo();
      LLVMInitializeAMDGPUTargetMC();
      LLVMInitializeAMDGPUDisassembler();
    });
    std::string error;
    const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
    if (target == nullptr) throw std::runtime_error("LLVM has no AMDGPU target: " + error);
    registers.reset(target->createMCRegInfo(triple));
    assembly.reset(target->createMCAsmInfo(*registers, triple, llvm::MCTargetOptions()));
    instructions.reset(target->createMCInstrInfo());
    subtarget.reset(target->createMCSubtargetInfo(triple, cpu, features));
    context =
        std::make_unique<llvm::MCContext>(triple, assembly.get(), registers.get(), subtarget.get());
    disassembler.reset(target->createMCDisassembler(*subtarget, *context));
    printer.reset(target->createMCInstPrinter(triple, 0, *assembly, *instructions, *registers));
    if (!disassembler || !printer) throw std::runtime_error("LLVM cannot disassemble AMDGPU code");
  }
};

// Suffixes of LLVM's opcode names by encoding family.
std::vector<std::string_view> family_suffixes(const Target& target) {
  switch (target.generation) {
    case Generation::Gfx9:
      if (target.name == "gfx906" || target.name == "gfx908") return {"_vi", "_gfx9"};
      if (target.name == "gfx90a") return {"_vi", "_gfx9", "_gfx90a"};
      return {"_vi", "_gfx9", "_gfx90a", "_gfx940"};
    case Generation::Gfx10:
      return {"_gfx10"};
    case Generation::Gfx11:
      return {"_gfx11"};
    case Generation::Gfx12:
      return {"_gfx12"};
  }
  return {};
}

}  // namespace

namespace {

// Decodes from `at` on until the end, or until LLVM stumbles: `at` is always the next instruction.
void decode(const Machine& machine, std::span<const u8> padded, std::size_t size, u64 address,
            std::size_t& at, std::vector<Instruction>& result) {
  while (at + 4 <= size) {
    llvm::MCInst inst;
    u64 length = 0;
    const llvm::ArrayRef<u8> bytes(padded.data() + at, padded.size() - at);
    const auto status =
        machine.disassembler->getInstruction(inst, length, bytes, address + at, llvm::nulls());
    Instruction out;
    out.address = address + at;
    out.valid = status == llvm::MCDisassembler::Success && length >= 4 && length <= size - at;
    out.size = out.valid ? static_cast<u32>(length) : 4;
    std::memcpy(out.words, padded.data() + at, std::min<std::size_t>(out.size, sizeof out.words));
    if (out.valid) {
      llvm::raw_string_ostream stream(out.text);
      machine.printer->printInst(&inst, address + at, "", *machine.subtarget, stream);
      out.text.erase(0, out.text.find_first_not_of(" \t"));
      for (char& c : out.text) {
        if (c == '\t') c = ' ';
      }
    }
    at += out.size;
    result.push_back(std::move(out));
  }
}

// LLVM's decoder crashes on some invalid encodings. Its CrashRecoveryContext installs signal
// handlers for the time of the call and returns here after a crash.
bool decode_guarded(const Machine& machine, std::span<const u8> padded, std::size_t size,
                    u64 address, std::size_t& at, std::vector<Instruction>& result) {
  static std::mutex mutex;  // the handlers are the process's
  const std::scoped_lock lock(mutex);
  llvm::CrashRecoveryContext::Enable();
  llvm::CrashRecoveryContext context;
  const bool whole = context.RunSafely([&] { decode(machine, padded, size, address, at, result); });
  llvm::CrashRecoveryContext::Disable();
  return whole;
}

}  // namespace

std::vector<Instruction> disassemble(std::span<const u8> code, u64 address, std::string_view cpu,
                                     int wave_size) {
  const Target* target = find_target(cpu);
  std::string features;
  if (target != nullptr && target->wave32) {
    features =
        wave_size == 32 ? "+wavefrontsize32,-wavefrontsize64" : "-wavefrontsize32,+wavefrontsize64";
    // The hardware is the same whether or not the compiler names the halves of registers.
    if (target->generation >= Generation::Gfx11) features += ",+real-true16";
  }
  // Code that stops in the middle of a literal is another thing the decoder does not survive: zeros
  // follow, and what reaches into them is not an instruction.
  std::vector<u8> padded(code.begin(), code.end());
  padded.resize(code.size() + 16);
  std::vector<Instruction> result;
  result.reserve(code.size() / 6);
  std::size_t at = 0;
  auto machine = std::make_unique<Machine>(cpu, features);
  while (!decode_guarded(*machine, padded, code.size(), address, at, result)) {
    Instruction bad;
    bad.address = address + at;
    bad.valid = false;
    bad.size = 4;
    std::memcpy(bad.words, padded.data() + at, 4);
    result.push_back(std::move(bad));
    at += 4;
    // The state after the crash is not trusted, so it is leaked and not destroyed.
    (void)machine.release();
    machine = std::make_unique<Machine>(cpu, features);
  }
  return result;
}

std::vector<std::string> known_mnemonics(std::string_view cpu) {
  const Target* target = find_target(cpu);
  if (target == nullptr) return {};
  const Machine machine(cpu, "");
  std::set<std::string> names;
  for (unsigned opcode = 0; opcode < machine.instructions->getNumOpcodes(); ++opcode) {
    if (machine.instructions->get(opcode).isPseudo()) continue;
    const llvm::StringRef name = machine.instructions->getName(opcode);
    for (const std::string_view suffix : family_suffixes(*target)) {
      if (!name.ends_with(suffix)) continue;
      llvm::MCInst inst;
      inst.setOpcode(opcode);
      const char* mnemonic = machine.printer->getMnemonic(inst).first;
      if (mnemonic == nullptr) continue;
      std::string_view text(mnemonic);
      text = strip_encoding(text.substr(0, text.find_first_of(" \t")));
      // A hardware workaround's pairing of a branch with an s_nop is not an instruction.
      if (text.ends_with("_pad_s_nop")) continue;
      constexpr std::string_view kDual = "v_dual_";
      if (text.starts_with(kDual)) {
        names.emplace("v_" + std::string(text.substr(kDual.size())));
        continue;
      }
      if (!text.empty()) names.emplace(text);
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace rocflash::sim
