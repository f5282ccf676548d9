// Classifying instructions.
#include "cycle_model/timed_op.h"

#include <algorithm>
#include <string_view>

#include "core/issue_model.h"
#include "isa/matrix.h"
#include "isa/mfma_f64.h"
#include "isa/mfma_f8f6f4.h"

namespace rocflash::sim {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

u32 matrix_clocks(const Target& target, const Op& op, std::string_view mnemonic) {
  if (is_f8f6f4(op)) return f8f6f4_cycles(op);
  if (is_mfma_f64(op)) return mfma_f64_cycles(target, op);
  const MatrixShape* shape = find_matrix_shape(op.parameter, mnemonic.starts_with("v_wmma"));
  return shape == nullptr ? 0 : matrix_cycles(target, *shape);
}

class Classifier {
 public:
  Classifier(const Program& program, const Target& target, const CycleModelParameters& p)
      : program_(program), target_(target), p_(p) {}

  TimedOp classify(const Op& op) const {
    const std::string& text = program_.text(op);
    const std::string_view mnemonic =
        strip_encoding(std::string_view(text).substr(0, text.find(' ')));
    TimedOp t;
    if (op.semantics == nullptr) return t;
    registers(op, mnemonic, t);
    switch (op.kind) {
      case InstructionClass::Valu:
      case InstructionClass::Transcendental:
        vector(op, mnemonic, t);
        break;
      case InstructionClass::Matrix:
        matrix(op, mnemonic, t);
        break;
      case InstructionClass::Lds:
        t.unit = Unit::Lds;
        t.write = mnemonic.starts_with("ds_write") || mnemonic.starts_with("ds_store") ||
                  contains(mnemonic, "_add_") || contains(mnemonic, "atomic");
        break;
      case InstructionClass::Vmem:
        t.unit = Unit::Vmem;
        t.atomic = contains(mnemonic, "_atomic_");
        t.store = contains(mnemonic, "_store_") || (t.atomic && !op.returns);
        t.to_lds = op.to_lds || contains(mnemonic, "_load_lds_");
        t.flat = mnemonic.starts_with("flat_");
        break;
      case InstructionClass::Smem:
        t.unit = Unit::Smem;
        t.store = contains(mnemonic, "store");
        break;
      case InstructionClass::Branch:
        t.unit = mnemonic.starts_with("s_endpgm") ? Unit::End : Unit::Branch;
        break;
      case InstructionClass::Wait:
        wait(op, mnemonic, t);
        break;
      default:
        other(op, mnemonic, t);
        break;
    }
    return t;
  }

 private:
  void vector(const Op& op, std::string_view mnemonic, TimedOp& t) const {
    const bool trans = op.kind == InstructionClass::Transcendental;
    t.unit = trans ? Unit::Transcendental : Unit::Valu;
    t.packed = (op.semantics->flags & flag::kPacked32) != 0;
    const int passes = target_.is_cdna() ? 1 : program_.wave_size() / 32;
    // What the issue model calls quarter rate and is neither transcendental nor f64.
    const bool wide = contains(mnemonic, "v_mul_lo_") || contains(mnemonic, "v_mul_hi_") ||
                      contains(mnemonic, "_u64_u32") || contains(mnemonic, "_i64_i32");
    int port = p_.issue.vector;
    if (trans) port = p_.issue.transcendental;
    if (wide) port = p_.issue.multiply_32;
    if (!target_.is_cdna() && contains(mnemonic, "_f64")) port = 16;
    t.port = static_cast<u16>(port * passes);
    t.latency = static_cast<u16>(
        (trans ? p_.issue.transcendental_latency : p_.issue.vector_latency) + (passes - 1) * port);
    for (const RegisterRange& r : t.writes) {
      if (r.count > 0 && r.first >= kScalarBase) t.writes_scalar = true;
    }
  }

  void matrix(const Op& op, std::string_view mnemonic, TimedOp& t) const {
    t.unit = Unit::Matrix;
    t.matrix = static_cast<u16>(matrix_clocks(target_, op, mnemonic));
    t.port = p_.matrix.port == 0 ? t.matrix : static_cast<u16>(p_.matrix.port);
    t.latency = static_cast<u16>(t.matrix + p_.matrix.extra);
    if (op.sources > 2 && op.src[2].file == File::Vgpr && op.src[2].index == op.dst[0].index) {
      t.accumulator = {op.src[2].index, op.src[2].dwords};
      t.reads[2] = {};
    }
  }

  void registers(const Op& op, std::string_view mnemonic, TimedOp& t) const {
    const auto range = [](const Source& s) -> RegisterRange {
      if (s.file == File::Vgpr) return {s.index, s.dwords};
      if (s.file == File::Sgpr && s.index != sreg::kNull) {
        return {static_cast<u16>(kScalarBase + s.index), s.dwords};
      }
      return {};
    };
    for (std::size_t i = 0; i < op.src.size(); ++i) t.reads[i] = range(op.src[i]);
    for (std::size_t i = 0; i < op.dst.size(); ++i) t.writes[i] = range(op.dst[i]);
    if (op.dual != nullptr) {  // VOPD: two instructions of at most three sources
      for (std::size_t i = 0; i < 3; ++i) t.reads[3 + i] = range(op.dual->src[i]);
      t.writes[1] = range(op.dual->dst[0]);
    }
    constexpr u16 vcc = kScalarBase + sreg::kVcc;
    constexpr u16 exec = kScalarBase + sreg::kExec;
    if (contains(mnemonic, "_vcc")) t.reads[5] = {vcc, 2};
    if (contains(mnemonic, "_exec")) t.reads[5] = {exec, 2};
    if ((op.semantics->flags & flag::kReadsVcc) != 0) t.reads[5] = {vcc, 2};
    if ((op.semantics->flags & flag::kCompareExec) != 0) t.writes[1] = {exec, 2};
  }

  void wait(const Op& op, std::string_view mnemonic, TimedOp& t) const {
    t.unit = Unit::Wait;
    const u32 k = op.simm;
    const auto limit = [](u32 value, u32 none) {
      return value >= none ? kNoWait : static_cast<u8>(value);
    };
    if (mnemonic == "s_barrier") {
      t.unit = Unit::Barrier;
    } else if (mnemonic.starts_with("s_barrier_signal")) {
      t.unit = Unit::BarrierSignal;
    } else if (mnemonic == "s_barrier_wait") {
      t.unit = Unit::BarrierWait;
    } else if (mnemonic.starts_with("s_sleep")) {
      t.unit = Unit::Sleep;
      t.pause = static_cast<u16>(64 * (k & 127));
    } else if (mnemonic == "s_waitcnt") {
      const bool gfx11 = target_.generation == Generation::Gfx11;
      const bool gfx9 = target_.generation == Generation::Gfx9;
      t.wait_load = limit(gfx11 ? k >> 10 & 63 : (k & 15) | (k >> 14 & 3) << 4, 63);
      t.wait_joint = gfx9 ? limit(k >> 8 & 15, 15) : limit(gfx11 ? k >> 4 & 63 : k >> 8 & 63, 63);
    } else if (mnemonic == "s_wait_idle") {
      t.wait_load = t.wait_lds = t.wait_scalar = t.wait_store = 0;
    } else {
      counters(mnemonic, k, t);
    }
  }

  // gfx10's and gfx12's waits for one counter or two.
  static void counters(std::string_view mnemonic, u32 k, TimedOp& t) {
    const u8 low = static_cast<u8>(k & 63);
    const u8 high = static_cast<u8>(k >> 8 & 63);
    if (mnemonic == "s_wait_loadcnt" || mnemonic == "s_waitcnt_vmcnt") t.wait_load = low;
    if (mnemonic == "s_wait_dscnt") t.wait_lds = low;
    if (mnemonic == "s_wait_kmcnt") t.wait_scalar = low;
    if (mnemonic == "s_waitcnt_lgkmcnt") t.wait_joint = low;
    if (mnemonic == "s_wait_storecnt" || mnemonic == "s_waitcnt_vscnt") t.wait_store = low;
    if (mnemonic == "s_wait_loadcnt_dscnt") {
      t.wait_load = high;
      t.wait_lds = low;
    }
    if (mnemonic == "s_wait_storecnt_dscnt") {
      t.wait_store = high;
      t.wait_lds = low;
    }
  }

  void other(const Op& op, std::string_view mnemonic, TimedOp& t) const {
    t.unit = Unit::Salu;
    t.latency = static_cast<u16>(p_.issue.scalar_latency);
    if (mnemonic == "s_nop") {
      t.unit = Unit::Nop;
      t.pause = static_cast<u16>(p_.issue.nop * ((op.simm & 15) + 1));
    } else if (mnemonic == "s_setprio") {
      t.unit = Unit::Priority;
      t.priority = static_cast<u8>(op.simm & 3);
    } else if (op.kind == InstructionClass::Other) {
      t.unit = Unit::Nop;  // hints: they take an issue slot
    }
  }

  const Program& program_;
  const Target& target_;
  const CycleModelParameters& p_;
};

}  // namespace

std::vector<TimedOp> time_ops(const Program& program, const Target& target,
                              const CycleModelParameters& parameters) {
  const Classifier classifier(program, target, parameters);
  std::vector<TimedOp> ops;
  ops.reserve(program.ops().size());
  for (const Op& op : program.ops()) ops.push_back(classifier.classify(op));
  return ops;
}

}  // namespace rocflash::sim
