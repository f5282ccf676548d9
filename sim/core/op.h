// A predecoded instruction: everything the interpreter needs, resolved once when a code object is
// loaded, so that executing it neither parses nor allocates.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/instruction.h"
#include "core/types.h"

namespace rocflash::sim {

// MODE's FP16_OVFL: 16- and 8-bit results beyond the range become the largest number.
inline constexpr int kModeOverflowBit = 23;
// gfx9 only: GPR_IDX_EN (VGPR indexing by M0) and VSKIP (vector instructions are skipped).
inline constexpr int kModeIndexBit = 27;
inline constexpr int kModeSkipBit = 28;

struct Wave;
struct Op;
struct Lanes;

using ExecFn = void (*)(Wave&, const Op&);
using ComputeFn = void (*)(Lanes&);

// Classes of the counters.
enum class InstructionClass : u8 {
  Salu,
  Valu,
  Matrix,
  Transcendental,
  Lds,
  Vmem,
  Smem,
  Branch,
  Wait,
  Other,
};
inline constexpr int kInstructionClasses = 10;

// Operand types as the ISA manuals name them; they decide what neg, abs, clamp and inline constants
// mean and how wide an operand is.
enum class Type : u8 { None, B16, I16, F16, BF16, B32, I32, F32, B64, I64, F64, Mask };

// How an instruction propagates undefined bits (shadow propagation).
enum class Propagation : u8 {
  Any,       // one undefined source bit makes the lane's whole result undefined
  Copy,      // bit for bit from source 0
  Bitwise,   // a bit depends only on the same bit of each source
  And,       // as Bitwise, but a defined 0 decides
  Or,        // as Bitwise, but a defined 1 decides
  Add,       // a bit depends on the same and lower bits
  MulAdd,    // a 64-bit addend meets a product: low bits depend on low bits only
  Route,     // moves bits of the data operands as the compute function does; selectors must be
             // defined (which sources select is in Semantics::selectors)
  PackPair,  // 16-bit result halves come from source 0 and source 1
};

// Types of an instruction's sources, in order.
using Types = std::array<Type, 5>;

struct Semantics {
  ExecFn run = nullptr;
  ExecFn run_strict = nullptr;
  ComputeFn compute = nullptr;
  ComputeFn compute_clamped = nullptr;  // integer saturation, where it is a different operation
  Type dst = Type::None;
  Types src{};
  u8 sources = 0;
  InstructionClass kind = InstructionClass::Valu;
  Propagation propagation = Propagation::Any;
  u8 selectors = 0;  // bit k: source k chooses bits (Flow::Route)
  u32 flags = 0;
  u32 parameter = 0;  // meaning is the run function's own
};

namespace flag {
inline constexpr u32 kAccumulate = 1;    // the destination is also the last source
inline constexpr u32 kKeepsHigh9 = 2;    // 16-bit result keeps the high half even on gfx9
inline constexpr u32 kFloatMode = 4;     // uses MODE's FP_ROUND and FP_DENORM fields
inline constexpr u32 kMaskOut = 8;       // second destination is a lane mask
inline constexpr u32 kMaskIn = 16;       // last operand is a lane mask
inline constexpr u32 kCompareExec = 32;  // writes exec
inline constexpr u32 kPacked16 = 64;
inline constexpr u32 kPacked32 = 128;
inline constexpr u32 kMixed = 256;  // v_fma_mix: op_sel_hi chooses f16 for each source
inline constexpr u32 kNoDestination = 512;
inline constexpr u32 kReadsVcc = 1024;       // implicitly
inline constexpr u32 kWhole16 = 2048;        // 16-bit result written as a whole dword
inline constexpr u32 kSecondIsFirst = 4096;  // memory: data operand follows the address
inline constexpr u32 kReadsByte = 8192;      // source 0 is a byte; byte_sel or SDWA says which
inline constexpr u32 kWritesByte =
    16384;  // so is the result, the others stay; op_sel[3:2] or byte_sel
}  // namespace flag

struct Source : Reference {
  u8 select = 6;  // SDWA: 0..3 byte, 4..5 word, 6 dword
  Type type = Type::None;
  u64 value = 0;                   // of a literal
  const Vgpr* constant = nullptr;  // the literal's low dword in every lane
  const Vgpr* constant_high = nullptr;
  [[nodiscard]] bool unmodified() const { return !neg && !abs && !sext && !high && select == 6; }
};

// Where each lane of a DPP source comes from; -1 is out of range.
struct DppControl {
  std::array<i8, kMaxLanes> from{};
  u64 write_mask = ~0ull;  // row_mask and bank_mask
  bool zero_invalid = false;
  bool fetch_inactive = false;
};

struct Op {
  ExecFn run[2] = {};  // fast, strict
  ComputeFn compute = nullptr;
  const Semantics* semantics = nullptr;
  std::array<Source, 5> src{};
  std::array<Source, 2> dst{};
  u8 sources = 0;
  u8 destinations = 0;
  bool clamp = false;
  u8 omod = 0;  // 1: *2, 2: *4, 3: /2
  bool dst_high = false;
  bool dst_keep = true;  // the other half of a 16-bit result survives
  u8 dst_select = 6;     // SDWA
  u8 dst_unused = 0;     // SDWA: 0 pad, 1 sign-extend, 2 preserve
  bool sdwa = false;
  u8 op_sel = 0;
  u8 op_sel_hi = 0;
  u8 neg_lo = 0;
  u8 neg_hi = 0;
  const DppControl* dpp = nullptr;
  // memory
  i32 offset = 0;
  i32 offset1 = 0;
  bool returns = false;  // atomics: glc / sc0 / th:TH_ATOMIC_RETURN
  bool to_lds = false;
  bool offen = false;
  bool idxen = false;
  // matrix
  u8 cbsz = 0;
  u8 abid = 0;
  u8 blgp = 0;

  u16 simm = 0;
  InstructionClass kind = InstructionClass::Other;
  const Op* target = nullptr;  // of a branch
  const Op* dual = nullptr;    // the Y half of a VOPD pair
  u32 parameter = 0;
  u32 index = 0;
  u32 size = 0;
  u64 address = 0;
};

// All instructions of a code object for one wave size.
class Program {
 public:
  [[nodiscard]] const Op* at(u64 address) const;  // null when no instruction starts there
  [[nodiscard]] const std::vector<Op>& ops() const { return ops_; }
  [[nodiscard]] const std::string& text(const Op& op) const { return texts_[op.index]; }
  // Highest vector and accumulation register used anywhere, plus one.
  [[nodiscard]] int vgpr_rows() const { return vgpr_rows_; }
  [[nodiscard]] bool uses_agprs() const { return uses_agprs_; }
  [[nodiscard]] int wave_size() const { return wave_size_; }

 private:
  friend class Binder;
  std::vector<Op> ops_;   // last is a sentinel that reports running off the end
  std::deque<Op> duals_;  // a deque so that pointers to its members stay good
  std::vector<std::string> texts_;
  std::vector<i32> index_of_dword_;
  std::vector<std::unique_ptr<Vgpr>> constants_;
  std::vector<std::unique_ptr<DppControl>> dpp_;
  u64 base_ = 0;
  int vgpr_rows_ = 0;
  bool uses_agprs_ = false;
  int wave_size_ = 64;
};

class CodeObject;
struct Target;
// Disassembles and predecodes; instructions without semantics become ops that fault.
std::unique_ptr<Program> bind_program(const CodeObject& object, const Target& target,
                                      int wave_size);

// AGPRs follow the 256 architectural VGPRs in the same array.
inline constexpr int kAgprBase = 256;

// Semantics by mnemonic without encoding suffix; null where there are none.
const Semantics* find_semantics(std::string_view mnemonic);
// Why a mnemonic is explicitly not supported; empty where it is supported or unknown.
std::string_view unsupported_reason(std::string_view mnemonic);

}  // namespace rocflash::sim
