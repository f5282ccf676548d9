// Address generation for vector memory.
#include "isa/vmem_address.h"

#include <bit>

namespace rocflash::sim {
namespace {

// The vector address must be defined in every active lane.
void check_rows(const Wave& w, const Source& s, int dwords) {
  need_vgpr(w, s.index, dwords);
  if (!w.checks->undefined) return;
  for (int i = 0; i < dwords; ++i) {
    if (w.vgpr_dirty[s.index + i] == 0) continue;
    for (u64 m = w.exec(); m != 0; m &= m - 1) {
      const int lane = std::countr_zero(m);
      check_defined(w, w.vgpr_undef[s.index + i].lane[lane] != 0, "an address", lane);
    }
  }
}

// Whether bytes up to `end` (vector plus instruction offset plus size) are inside. gfx9 decides by
// the instruction, RDNA by the descriptor's OOB_SELECT; the scalar offset counts where bytes are
// compared with num_records.
bool in_range(const Wave& w, const Buffer& b, bool indexed, u32 index, u64 end) {
  const bool bytes_fit = end + b.soffset <= b.records;
  if (w.gfx9()) return indexed && b.stride != 0 ? index < b.records : bytes_fit;
  switch (b.out_of_bounds_mode) {
    case 0:
      if (b.stride == 0 && b.records != 0) {
        raise(Fault::BadProgram,
              "a buffer descriptor without stride has OOB_SELECT 0, which puts every byte out of "
              "range; 3 (bits 29:28 of the last dword) checks raw buffers");
      }
      return index < b.records && end <= b.stride;
    case 1:
      return index < b.records;
    case 2:
      return b.records != 0;
    default:
      return bytes_fit;
  }
}

}  // namespace

template <bool Strict>
Buffer read_buffer(Wave& w, const Op& op) {
  const int d = op.src[role::kScalar].index;
  if constexpr (Strict) {
    need_sgpr(w, d, 4);
    check_defined(w, (w.sgpr_undef[d] | w.sgpr_undef[d + 1] | w.sgpr_undef[d + 2]) != 0,
                  "a buffer descriptor");
    if (!w.gfx9()) check_defined(w, w.sgpr_undef[d + 3] != 0, "a buffer descriptor");
  }
  Buffer b;
  b.base = w.sgpr64(d) & 0xffffffffffffull;
  b.stride = w.sgpr[d + 1] >> 16 & 0x3fff;
  b.records = w.sgpr[d + 2];
  b.out_of_bounds_mode = w.sgpr[d + 3] >> 28 & 3;
  b.scratch = !w.scratch.empty() && b.base == reinterpret_cast<u64>(w.scratch.data());
  u32 unknown = 0;
  b.soffset = read_scalar(w, op.src[role::kSoffset], &unknown);
  if constexpr (Strict) check_defined(w, unknown != 0, "an address");
  return b;
}

template <bool Strict, Space S>
Addresses<Strict, S>::Addresses(Wave& w, const Op& op) : w_(w), op_(op) {
  const Source& v = op.src[role::kAddress];
  const Source& s = op.src[role::kScalar];
  if (v.file == File::Vgpr) {
    const int dwords = S == Space::Scratch ? 1 : v.dwords;
    if constexpr (Strict) check_rows(w, v, dwords);
    low_ = w.vgpr[v.index];
    if (dwords > 1) high_ = w.vgpr[v.index + 1];
  }
  if constexpr (S == Space::Buffer) {
    buffer_ = read_buffer<Strict>(w, op);
  } else if (s.file == File::Sgpr && s.index != sreg::kNull) {
    u64 unknown = 0;
    if constexpr (S == Space::Scratch) {
      u32 unknown32 = 0;
      scalar_ = read_scalar(w, s, &unknown32);
      unknown = unknown32;
    } else {
      scalar_ = read_scalar64(w, s, &unknown);
    }
    if constexpr (Strict) check_defined(w, unknown != 0, "an address");
  }
}

template <bool Strict, Space S>
u64 Addresses<Strict, S>::device_address(int lane) const {
  if constexpr (S == Space::Buffer) {
    const u32 index = op_.idxen ? low_.lane[lane] : 0;
    const u32 voffset = op_.offen ? (op_.idxen ? high_.lane[lane] : low_.lane[lane]) : 0;
    return buffer_.base + buffer_.soffset + u64{buffer_.stride} * index +
           (voffset + u32(op_.offset));
  } else {
    const u64 v = u64{low_.lane[lane]} | u64{high_.lane[lane]} << 32;
    return scalar_ + v + static_cast<u64>(i64{op_.offset});
  }
}

template <bool Strict, Space S>
Location Addresses<Strict, S>::location(int lane, u32 delta, u32 bytes, Access access,
                                        [[maybe_unused]] const void* written) const {
  if constexpr (S == Space::Global) {
    return device_location(w_, device_address(lane) + delta, bytes, lane, access);
  } else if constexpr (S == Space::Flat) {
    return flat_location(w_, device_address(lane) + delta, bytes, lane, access, written);
  } else if constexpr (S == Space::Scratch) {
    const u64 offset = static_cast<u64>(i64{op_.offset}) + scalar_ + low_.lane[lane] + delta;
    return scratch_location(w_, u32(offset), bytes, lane);
  } else {
    const u32 index = op_.idxen ? low_.lane[lane] : 0;
    const u32 voffset = op_.offen ? (op_.idxen ? high_.lane[lane] : low_.lane[lane]) : 0;
    // The vector and the instruction's offset are added in 32 bits.
    const u64 offset = u64{voffset + u32(op_.offset)} + delta;
    if (buffer_.scratch) {
      // The stack pointer counts bytes of the whole wave.
      return scratch_location(w_, buffer_.soffset / static_cast<u64>(w_.size) + offset, bytes,
                              lane);
    }
    if (!in_range(w_, buffer_, op_.idxen, index, offset + bytes)) return {};
    return device_location(w_, device_address(lane) + delta, bytes, lane, access);
  }
}

template Buffer read_buffer<false>(Wave&, const Op&);
template Buffer read_buffer<true>(Wave&, const Op&);
template class Addresses<false, Space::Global>;
template class Addresses<true, Space::Global>;
template class Addresses<false, Space::Flat>;
template class Addresses<true, Space::Flat>;
template class Addresses<false, Space::Scratch>;
template class Addresses<true, Space::Scratch>;
template class Addresses<false, Space::Buffer>;
template class Addresses<true, Space::Buffer>;

}  // namespace rocflash::sim
