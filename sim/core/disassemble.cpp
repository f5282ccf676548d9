// The one translation unit that sees LLVM's MC headers.
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

// The suffixes of LLVM's opcode names that say which encoding family an opcode belongs to.
std::vector<std::string_view> family_suffixes(const Target& target) {
  switch (target.generation) {
    case Generation::Gfx9:
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
  const Machine machine(cpu, features);
  std::vector<Instruction> result;
  result.reserve(code.size() / 6);
  std::size_t at = 0;
  while (at + 4 <= code.size()) {
    llvm::MCInst inst;
    u64 size = 0;
    const llvm::ArrayRef<u8> bytes(code.data() + at, code.size() - at);
    const auto status =
        machine.disassembler->getInstruction(inst, size, bytes, address + at, llvm::nulls());
    Instruction out;
    out.address = address + at;
    out.valid = status == llvm::MCDisassembler::Success && size >= 4;
    out.size = out.valid ? static_cast<u32>(size) : 4;
    std::memcpy(out.words, code.data() + at, std::min<std::size_t>(out.size, sizeof out.words));
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
