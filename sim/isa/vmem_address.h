// Addresses of vector memory instructions: flat, global, scratch and buffer.
#pragma once

#include "isa/memory_access.h"

namespace rocflash::sim {

enum class Space : u8 { Global, Flat, Scratch, Buffer };

// Roles of Op::src in vector memory instructions.
namespace role {
inline constexpr int kAddress = 0;  // vaddr
inline constexpr int kData = 1;     // what is stored
inline constexpr int kScalar = 2;   // saddr or the buffer descriptor
inline constexpr int kSoffset = 3;  // buffer only
}  // namespace role

// A buffer descriptor, unpacked.
struct Buffer {
  u64 base = 0;
  u32 stride = 0;
  u32 records = 0;
  u32 out_of_bounds_mode = 0;  // RDNA's OOB_SELECT
  bool scratch = false;        // the descriptor of this wave's own scratch
  u64 soffset = 0;
};

template <bool Strict>
Buffer read_buffer(Wave& w, const Op& op);

// Everything about one instruction's addresses that does not depend on the lane.
template <bool Strict, Space S>
class Addresses {
 public:
  Addresses(Wave& w, const Op& op);
  // Location of the dword (or smaller element) at `delta` of this lane's access, `bytes` wide.
  // `written` is what a write is about to store (see lds_location).
  Location location(int lane, u32 delta, u32 bytes, Access access,
                    const void* written = nullptr) const;
  // For counting; device addresses only.
  [[nodiscard]] u64 device_address(int lane) const;
  [[nodiscard]] bool contiguous() const { return S == Space::Global; }

 private:
  Wave& w_;
  const Op& op_;
  Vgpr low_{};  // copies: a load may overwrite its own address registers
  Vgpr high_{};
  u64 scalar_ = 0;
  Buffer buffer_;
};

}  // namespace rocflash::sim
