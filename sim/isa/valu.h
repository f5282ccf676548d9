// Execution of VALU instructions around their arithmetic: operand fetch with
// modifiers, clamp, write under EXEC, propagation of undefined bits.
#pragma once

#include "core/wave.h"
#include "isa/lanes.h"

namespace rocflash::sim {

template <bool Strict>
void run_vop(Wave& w, const Op& op);
template <bool Strict>
void run_compare(Wave& w, const Op& op);
template <bool Strict>
void run_packed16(Wave& w, const Op& op);
template <bool Strict>
void run_packed32(Wave& w, const Op& op);
template <bool Strict>
void run_mixed(Wave& w, const Op& op);  // v_fma_mix_*
template <bool Strict>
void run_packed_dot(Wave& w, const Op& op);  // sources as selected pairs
template <bool Strict>
void run_dual(Wave& w, const Op& op);  // VOPD

// Operand rows of one instruction. Rows that need building (broadcasts, modifiers, DPP) live here.
struct Fetched {
  const u32* lo = nullptr;
  const u32* hi = nullptr;
  Vgpr built_lo;
  Vgpr built_hi;
};

// What is fetched of a source: its value, or which of its bits are undefined.
enum class Aspect : u8 { Value, Undefined };

// Source k as rows, modifiers applied. `disabled` collects lanes that DPP keeps from being written.
template <Aspect A>
void fetch_source(Wave& w, const Op& op, const Source& source, bool dpp, Fetched& out,
                  u64& disabled);

// True when no bit of the source can be undefined.
bool source_clean(const Wave& w, const Source& source);
// Checks that no load to the source is in flight.
void need_source(const Wave& w, const Source& source);

// A lane mask operand (carry-in, cndmask's condition).
u64 read_mask_source(const Wave& w, const Source& source, u64* undefined);

// Blends `values` into the register under `mask`, whole dwords.
template <bool Strict>
void write_row(Wave& w, int row, const u32* values, const u32* undefined, u64 mask);

// A scalar operand of a vector or memory instruction.
u32 read_scalar(const Wave& w, const Source& source, u32* undefined);
u64 read_scalar64(const Wave& w, const Source& source, u64* undefined);

// Sets the host's rounding and denormal mode from MODE for the life of the object.
class ScopedFpMode {
 public:
  ScopedFpMode(u32 mode, bool wide);
  ~ScopedFpMode();
  ScopedFpMode(const ScopedFpMode&) = delete;
  ScopedFpMode& operator=(const ScopedFpMode&) = delete;

 private:
  u32 saved_;
};

inline bool uses_fp16_fp64_mode(Type t) { return t == Type::F64 || t == Type::F16; }

}  // namespace rocflash::sim
