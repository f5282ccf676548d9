// Predecoding of assembly text: resolves operand types, constants,
// branch targets and the functions of the semantics.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/code_object.h"
#include "core/disassemble.h"
#include "core/dpp.h"
#include "core/hazards.h"
#include "core/op.h"
#include "core/target.h"
#include "core/wave.h"
#include "isa/gpr_index_mode.h"
#include "isa/lane_math.h"
#include "isa/valu.h"

namespace rocflash::sim {
namespace {

bool is_sixteen(Type t) {
  return t == Type::F16 || t == Type::BF16 || t == Type::I16 || t == Type::B16;
}

// The bits an operand of this type reads from a constant written in the assembly.
u64 constant_bits(const Operand& o, Type type) {
  const bool wide = type == Type::F64 || type == Type::B64 || type == Type::I64;
  if (o.constant == Constant::Float) {
    switch (type) {
      case Type::F16:
      case Type::B16:
      case Type::I16:
        return bits_of(f16(o.number));
      case Type::BF16:
        return to_bf16(float(o.number));
      default:
        break;
    }
    return wide ? bits_of(o.number) : u64{bits_of(float(o.number))};
  }
  if (o.constant == Constant::Hex && wide && o.bits <= 0xffffffffu) {
    // A 32-bit literal is the high half of a double; other types sign- or zero-extend it.
    if (type == Type::F64) return o.bits << 32;
    if (type == Type::I64) return u64(i64(i32(o.bits)));
  }
  return wide ? o.bits : o.bits & 0xffffffffu;
}

void unknown_instruction(Wave& w, const Op& op) {
  const std::string& text = w.program->text(op);
  const std::string mnemonic(strip_encoding(text.substr(0, text.find(' '))));
  const std::string_view reason = unsupported_reason(mnemonic);
  raise(Fault::UnknownInstruction,
        reason.empty() ? fmt::format("no semantics for '{}'", mnemonic)
                       : fmt::format("'{}' is not supported: {}", mnemonic, reason));
}

void undecodable(Wave&, const Op&) {
  raise(Fault::UnknownInstruction, "the bytes here are not an instruction of this target");
}

void ran_off(Wave&, const Op&) {
  raise(Fault::BadProgram, "execution ran past the end of the code");
}

u8 sdwa_select(std::string_view s) {
  if (s.starts_with("BYTE_")) return static_cast<u8>(s[5] - '0');
  if (s.starts_with("WORD_")) return static_cast<u8>(4 + (s[5] - '0'));
  return 6;
}

}  // namespace

class Binder {
 public:
  Binder(const CodeObject& object, const Target& target, int wave_size)
      : object_(object), target_(target), wave_size_(wave_size) {}

  std::unique_ptr<Program> bind() {
    Program& p = *program_;
    p.wave_size_ = wave_size_;
    p.base_ = object_.code_address();
    auto instructions =
        disassemble(object_.code(), object_.code_address(), target_.name, wave_size_);
    p.ops_.reserve(instructions.size() + 1);
    p.index_of_dword_.assign(object_.code().size() / 4 + 1, -1);
    for (Instruction& instruction : instructions) {
      p.index_of_dword_[(instruction.address - p.base_) / 4] = static_cast<i32>(p.ops_.size());
      Op op = bind_one(instruction);
      op.index = static_cast<u32>(p.ops_.size());
      p.texts_.push_back(instruction.valid ? std::move(instruction.text)
                                           : fmt::format(".long {:#010x}", instruction.words[0]));
      p.ops_.push_back(op);
    }
    Op end;
    end.run[0] = end.run[1] = ran_off;
    end.index = static_cast<u32>(p.ops_.size());
    end.address = p.base_ + object_.code().size();
    p.ops_.push_back(end);
    p.texts_.emplace_back("(end of code)");
    resolve_branches();
    // The ABI's initial VGPRs exist even if no instruction uses them.
    p.vgpr_rows_ = std::max(p.vgpr_rows_, 4);
    if (relative_) p.vgpr_rows_ = 256;
    if (target_.generation == Generation::Gfx9) bind_hazards(p.ops_, p.texts_);
    if (gpr_index_mode_) bind_gpr_index_mode();
    return std::move(program_);
  }

 private:
  Op bind_one(Instruction& in) {
    Op op;
    op.address = in.address;
    op.size = in.size;
    op.simm = in.simm16();
    if (!in.valid) {
      op.run[0] = op.run[1] = undecodable;
      return op;
    }
    const auto [first, second] = split_dual(in.text);
    if (second.empty()) {
      parse_instruction(in);
      bind_operands(in, op);
      return op;
    }
    Instruction half = in;
    half.text = second;
    Op& y = program_->duals_.emplace_back();
    y.address = in.address;
    y.size = in.size;
    bind_half(half, y);
    half = in;
    half.text = first;
    bind_half(half, op);
    op.dual = &y;
    if (op.semantics != nullptr && y.semantics != nullptr) {
      op.run[0] = run_dual<false>;
      op.run[1] = run_dual<true>;
    } else {
      op.run[0] = op.run[1] = unknown_instruction;
    }
    return op;
  }

  void bind_half(Instruction& half, Op& op) {
    parse_instruction(half);
    constexpr std::string_view kDual = "v_dual_";
    if (half.mnemonic.starts_with(kDual)) half.mnemonic = "v_" + half.mnemonic.substr(kDual.size());
    if (half.mnemonic == "v_cndmask_b32" && half.operands.size() == 3) {
      Operand vcc;
      vcc.file = File::Sgpr;
      vcc.index = sreg::kVcc;
      half.operands.push_back(vcc);
    }
    bind_operands(half, op);
  }

  void bind_operands(const Instruction& in, Op& op) {
    const bool to_lds = in.has("lds");
    const std::string name = to_lds ? in.mnemonic + ".lds" : in.mnemonic;
    op.semantics = find_semantics(name);
    if (op.semantics == nullptr || in.has("gds") || in.has("tfe")) {
      op.semantics = nullptr;
      op.run[0] = op.run[1] = unknown_instruction;
      return;
    }
    const Semantics& s = *op.semantics;
    op.run[0] = s.run;
    op.run[1] = s.run_strict;
    op.kind = s.kind;
    op.parameter = s.parameter;
    op.clamp = in.has("clamp");
    op.compute = op.clamp && s.compute_clamped != nullptr ? s.compute_clamped : s.compute;
    op.to_lds = to_lds;
    bind_modifiers(in, op);
    if (s.kind == InstructionClass::Vmem) {
      bind_memory(in, op);
    } else {
      bind_in_order(in, op);
    }
    if (in.mnemonic.starts_with("v_movrel")) relative_ = true;
    if (target_.generation == Generation::Gfx9 && sets_gpr_index_mode(in)) {
      relative_ = gpr_index_mode_ = true;
    }
  }

  // Whether MODE's bits of relative registers and of skipping can be set here.
  static bool sets_gpr_index_mode(const Instruction& in) {
    if (in.mnemonic == "s_set_gpr_idx_on" || in.mnemonic == "s_setvskip") return true;
    if (!in.mnemonic.starts_with("s_setreg")) return false;
    constexpr u32 kModeRegister = 1;
    const u32 offset = in.simm16() >> 6 & 31u;
    const u32 size = (in.simm16() >> 11 & 31u) + 1;
    return (in.simm16() & 63u) == kModeRegister && offset <= kModeSkipBit &&
           offset + size > kModeIndexBit;
  }

  void bind_gpr_index_mode() {
    for (Op& op : program_->ops_) {
      if (op.semantics == nullptr) continue;
      const bool memory = op.kind == InstructionClass::Vmem || op.kind == InstructionClass::Lds;
      if (!memory && !program_->texts_[op.index].starts_with("v_")) continue;
      op.run[0] = run_with_gpr_index_mode<false>;
      op.run[1] = run_with_gpr_index_mode<true>;
    }
  }

  void bind_modifiers(const Instruction& in, Op& op) {
    const Semantics& s = *op.semantics;
    if (in.has("mul")) op.omod = in.number("mul", 0) == 2 ? 1 : 2;
    if (in.has("div")) op.omod = 3;
    op.op_sel = static_cast<u8>(in.bit_list("op_sel", 0));
    const bool ones = (s.flags & (flag::kPacked16 | flag::kPacked32)) != 0;
    op.op_sel_hi = static_cast<u8>(in.bit_list("op_sel_hi", ones ? 7 : 0));
    op.neg_lo = static_cast<u8>(in.bit_list("neg_lo", 0));
    op.neg_hi = static_cast<u8>(in.bit_list("neg_hi", 0));
    op.cbsz = static_cast<u8>(in.number("cbsz", 0));
    op.abid = static_cast<u8>(in.number("abid", 0));
    op.blgp = static_cast<u8>(in.number("blgp", 0));
    // The same bits of f64 matrices, as gfx940 and later spell them.
    if (in.has("neg")) op.blgp = static_cast<u8>(in.bit_list("neg", 0));
    op.offset = static_cast<i32>(in.number(in.has("offset0") ? "offset0" : "offset", 0));
    op.offset1 = static_cast<i32>(in.number("offset1", 0));
    op.offen = in.has("offen");
    op.idxen = in.has("idxen");
    op.returns =
        in.has("glc") || in.has("sc0") || in.value("th").find("RETURN") != std::string_view::npos;
    if (in.has("bitop3")) op.parameter = static_cast<u32>(in.number("bitop3", 0));
    if (in.mnemonic.starts_with("s_sendmsg_rtn")) op.parameter = in.words[0] & 0xff;
    if (in.dpp) {
      program_->dpp_.push_back(std::make_unique<DppControl>(make_dpp(in, wave_size_)));
      op.dpp = program_->dpp_.back().get();
    }
    if (in.sdwa) {
      op.sdwa = true;
      op.dst_select = sdwa_select(in.value("dst_sel"));
      const std::string_view unused = in.value("dst_unused");
      op.dst_unused = unused == "UNUSED_SEXT" ? 1 : unused == "UNUSED_PRESERVE" ? 2 : 0;
    }
  }

  // Scalar and vector ALU, LDS, scalar memory, control: destinations, then sources.
  void bind_in_order(const Instruction& in, Op& op) {
    const Semantics& s = *op.semantics;
    const bool accumulate = (s.flags & flag::kAccumulate) != 0;
    std::size_t destinations = (s.flags & flag::kNoDestination) != 0 ? 0
                               : (s.flags & flag::kMaskOut) != 0     ? 2
                                                                     : 1;
    std::size_t written = s.sources - (accumulate ? 1u : 0u);
    if (s.dst == Type::Mask) destinations = in.operands.size() > written ? 1 : 0;
    if (in.mnemonic.starts_with("s_setreg")) {
      bind_setreg(in, op);
      return;
    }
    if (in.operands.size() < destinations + written) {
      op.semantics = nullptr;
      op.run[0] = op.run[1] = unknown_instruction;
      return;
    }
    for (std::size_t i = 0; i < destinations; ++i) {
      op.dst[i] = resolve(in.operands[i], i == 0 ? s.dst : Type::Mask);
    }
    op.destinations = static_cast<u8>(destinations);
    for (std::size_t i = 0; i < written; ++i) {
      Operand operand = in.operands[destinations + i];
      if (in.mnemonic.starts_with("s_") && is_sopk(in) && operand.file == File::Literal) {
        const bool zero = in.mnemonic.starts_with("s_cmpk") && in.mnemonic.ends_with("u32");
        operand.constant = Constant::Integer;
        operand.bits = zero ? u64{in.simm16()} : u64(i64(i16(in.simm16())));
      }
      op.src[i] = resolve(operand, constant_type(in, op, i));
      op.src[i].type = s.src[i];
    }
    op.sources = static_cast<u8>(written);
    if (accumulate) {
      op.src[written] = op.dst[0];
      op.src[written].type = s.src[written];
      ++op.sources;
    }
    bind_halves(in, op);
    if (in.sdwa) {
      op.src[0].select = sdwa_select(in.value("src0_sel"));
      if (op.sources > 1) op.src[1].select = sdwa_select(in.value("src1_sel"));
    }
    bind_byte(in, op);
    bind_small_floats(in, op, destinations);
  }

  // op_sel of small floats is read from the encoding: the assembler prints it at other positions
  // of the list, or omits it.
  static void bind_small_floats(const Instruction& in, Op& op, std::size_t destinations) {
    if (in.mnemonic.starts_with("v_cvt_scalef32_")) op.op_sel = in.words[0] >> 11 & 15;
    if (!in.mnemonic.starts_with("v_mfma_scale_")) return;
    op.op_sel = in.words[0] >> 11 & 3;
    op.op_sel_hi = in.words[1] >> 27 & 3;
    // Of a float constant the exponent is the scale, whichever byte is chosen.
    for (const std::size_t i : {3u, 4u}) {
      if (in.operands[destinations + i].constant != Constant::Float) continue;
      op.src[i].value = (op.src[i].value >> 23 & 0xff) * 0x01010101u;
    }
  }

  // 8-bit floats name a byte of a register; gfx9 by SDWA or op_sel, gfx12 by byte_sel.
  static void bind_byte(const Instruction& in, Op& op) {
    const Semantics& s = *op.semantics;
    const auto byte = static_cast<u8>(in.number("byte_sel", 0) & 3);
    if ((s.flags & flag::kReadsByte) != 0 && !in.sdwa) op.src[0].select = byte;
    if ((s.flags & flag::kWritesByte) != 0) {
      op.sdwa = true;
      op.dst_select = in.has("byte_sel") ? byte : op.op_sel >> 2 & 3;
      op.dst_unused = 2;
    }
  }

  static bool is_sopk(const Instruction& in) {
    return in.mnemonic.starts_with("s_movk") || in.mnemonic.starts_with("s_cmovk") ||
           in.mnemonic.starts_with("s_cmpk") || in.mnemonic.starts_with("s_addk") ||
           in.mnemonic.starts_with("s_mulk");
  }

  // Packed and mixed operands read a float constant as a 16-bit one.
  static Type constant_type(const Instruction& in, const Op& op, std::size_t i) {
    const Semantics& s = *op.semantics;
    if ((s.flags & flag::kMixed) != 0 && (op.op_sel_hi >> i & 1) != 0) return Type::F16;
    if ((s.flags & flag::kPacked16) != 0 && s.src[i] == Type::B32) {
      return in.mnemonic.find("bf16") != std::string::npos ? Type::BF16 : Type::F16;
    }
    return s.src[i];
  }

  void bind_setreg(const Instruction& in, Op& op) {
    Operand operand = in.operands.back();
    if (in.mnemonic == "s_setreg_imm32_b32") {
      operand = {};
      operand.file = File::Literal;
      operand.constant = Constant::Integer;
      operand.bits = in.words[1];
    }
    op.src[0] = resolve(operand, Type::B32);
    op.sources = 1;
  }

  // Register halves of 16-bit operands: by name (v1.h), or by op_sel without a suffix.
  void bind_halves(const Instruction& in, Op& op) {
    const Semantics& s = *op.semantics;
    const bool gfx9 = target_.generation == Generation::Gfx9;
    const bool packed = (s.flags & (flag::kPacked16 | flag::kPacked32 | flag::kMixed)) != 0;
    const bool named = std::ranges::any_of(in.operands, &Operand::half_named);
    if (!packed && !named) {
      for (std::size_t i = 0; i < op.sources; ++i) {
        if (is_sixteen(s.src[i]) && (op.op_sel >> i & 1) != 0) op.src[i].high = true;
      }
      if (is_sixteen(s.dst) && (op.op_sel >> op.sources & 1) != 0) op.dst_high = true;
    }
    if (named && op.destinations != 0) op.dst_high = in.operands[0].high;
    if ((s.flags & flag::kMixed) != 0) op.dst_high = in.mnemonic.find("mixhi") != std::string::npos;
    if ((s.flags & flag::kAccumulate) != 0 && is_sixteen(s.dst)) {
      op.src[op.sources - 1u].high = op.dst_high;
    }
    // gfx9 zeroes the half that is not written, but for a few instructions; later ones keep it.
    op.dst_keep = op.dst_high || !gfx9 || (s.flags & flag::kKeepsHigh9) != 0;
  }

  void bind_memory(const Instruction& in, Op& op) {
    const Semantics& s = *op.semantics;
    enum : std::size_t { kAddress = 0, kData = 1, kScalar = 2, kSoffset = 3 };
    const bool atomic = (s.flags & flag::kSecondIsFirst) != 0;
    if (!atomic && s.parameter == 0) return;  // cache control
    const bool buffer = in.mnemonic.starts_with("buffer_");
    const bool lds = op.to_lds || in.mnemonic.find("_load_lds_") != std::string::npos;
    const bool load = !atomic && !lds && (s.flags & flag::kNoDestination) == 0;
    const auto& o = in.operands;
    std::size_t at = 0;
    const auto next = [&](Type t) { return at < o.size() ? resolve(o[at++], t) : Source{}; };
    if (buffer) {
      if (load) {
        op.dst[0] = next(Type::B32);
      } else if (!lds) {
        op.src[kData] = next(Type::B32);
        if (atomic) op.dst[0] = op.src[kData];
      }
      op.src[kAddress] = next(Type::B32);
      op.src[kScalar] = next(Type::B32);
      op.src[kSoffset] = next(Type::B32);
    } else {
      if (load || (atomic && op.returns)) op.dst[0] = next(Type::B32);
      op.src[kAddress] = next(Type::B32);
      if (!load && !lds) op.src[kData] = next(Type::B32);
      op.src[kScalar] = next(Type::B32);
    }
    op.sources = 4;
    // A half register named in the text of a 16-bit load or store.
    for (const Operand& operand : o) {
      if (operand.half_named && operand.high) op.parameter |= 1u << 10;
      if (operand.half_named && !operand.high && load) op.parameter |= 1u << 9;
    }
  }

  Source resolve(const Operand& o, Type type) {
    Source s{Reference(o)};
    s.type = type;
    if (o.file == File::Agpr) {
      s.file = File::Vgpr;
      s.index = static_cast<u16>(o.index + kAgprBase);
      program_->uses_agprs_ = true;
    } else if (o.file == File::Vgpr) {
      program_->vgpr_rows_ = std::max<int>(program_->vgpr_rows_, o.index + o.dwords);
    } else if (o.file == File::Literal) {
      s.value = constant_bits(o, type);
      s.constant = constant_row(u32(s.value));
      s.constant_high = constant_row(u32(s.value >> 32));
    }
    return s;
  }

  const Vgpr* constant_row(u32 value) {
    const Vgpr*& row = constant_rows_[value];
    if (row == nullptr) {
      auto fresh = std::make_unique<Vgpr>();
      std::ranges::fill(fresh->lane, value);
      row = fresh.get();
      program_->constants_.push_back(std::move(fresh));
    }
    return row;
  }

  void resolve_branches() {
    for (Op& op : program_->ops_) {
      if (op.kind != InstructionClass::Branch) continue;
      const std::string& text = program_->texts_[op.index];
      if (!text.starts_with("s_branch") && !text.starts_with("s_cbranch") &&
          !text.starts_with("s_call")) {
        continue;
      }
      const u64 target = op.address + 4 + u64(i64(i16(op.simm)) * 4);
      op.target = program_->at(target);
    }
  }

  const CodeObject& object_;
  const Target& target_;
  int wave_size_;
  bool relative_ = false;
  bool gpr_index_mode_ = false;
  std::unique_ptr<Program> program_ = std::make_unique<Program>();
  std::map<u32, const Vgpr*> constant_rows_;
};

const Op* Program::at(u64 address) const {
  const u64 dword = (address - base_) / 4;
  if (address < base_ || address % 4 != 0 || dword >= index_of_dword_.size()) return nullptr;
  const i32 index = index_of_dword_[dword];
  return index < 0 ? nullptr : &ops_[static_cast<std::size_t>(index)];
}

std::unique_ptr<Program> bind_program(const CodeObject& object, const Target& target,
                                      int wave_size) {
  return Binder(object, target, wave_size).bind();
}

}  // namespace rocflash::sim
