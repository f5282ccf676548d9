// Initial state of kernels, as LLVM's AMDGPU ABI for code objects 5 and 6 defines it.
#include "core/kernel_abi.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "core/launch.h"

namespace rocflash::sim {
namespace {

constexpr u64 kDynamicStackBytes = 16384;  // for recursion and indirect calls
constexpr u64 kPacketBytes = 64;

template <typename T>
void put(u8* base, u64 offset, T value) {
  std::memcpy(base + offset, &value, sizeof value);
}

void put_hidden(u8* kernarg, const KernelArgument& argument, const LaunchRequest& r) {
  const std::string_view kind = argument.kind;
  const auto axis = [&] { return std::min<std::size_t>(static_cast<u8>(kind.back() - 'x'), 2); };
  u64 value = 0;
  if (kind.starts_with("hidden_block_count_")) {
    value = r.grid[axis()];
  } else if (kind.starts_with("hidden_group_size_")) {
    value = r.block[axis()];
  } else if (kind == "hidden_grid_dims") {
    value = r.grid[2] * r.block[2] > 1 ? 3 : r.grid[1] * r.block[1] > 1 ? 2 : 1;
  } else if (kind == "hidden_dynamic_lds_size") {
    value = r.dynamic_lds;
  } else if (kind == "hidden_private_base") {
    value = kPrivateAperture >> 32;
  } else if (kind == "hidden_shared_base") {
    value = kSharedAperture >> 32;
  }
  // Remainders are zero because grids are whole blocks; the rest (heap, queues, printf) is absent.
  std::memcpy(kernarg + argument.offset, &value, std::min<std::size_t>(argument.size, 8));
}

}  // namespace

KernelAbi::KernelAbi(const LaunchRequest& r) {
  const KernelInfo& kernel = *r.kernel;
  Memory& memory = Memory::instance();
  u64 end = std::max<u64>(kernel.kernarg_bytes, r.arguments.size());
  for (const auto& a : kernel.arguments) end = std::max<u64>(end, a.offset + a.size);
  const u32 preload = kernel.kernarg_preload;
  end = std::max<u64>(end, 4 * ((preload >> 7) + (preload & 0x7f)));
  // Scalar loads may read a whole cache line past the last argument.
  kernarg_bytes_ = (end + 63) / 64 * 64 + 64;
  kernarg_ = static_cast<u8*>(memory.allocate(kernarg_bytes_, "kernel arguments", false, 0));
  packet_ = static_cast<u8*>(memory.allocate(kPacketBytes, "dispatch packet", false, 0));
  if (kernarg_ == nullptr || packet_ == nullptr) {
    release();
    throw std::bad_alloc();
  }
  std::memset(kernarg_, 0, kernarg_bytes_);
  if (!r.arguments.empty()) std::memcpy(kernarg_, r.arguments.data(), r.arguments.size());
  for (const auto& a : kernel.arguments) {
    if (a.kind.starts_with("hidden_")) put_hidden(kernarg_, a, r);
  }

  std::memset(packet_, 0, kPacketBytes);
  put<u16>(packet_, 2, 3);
  for (u64 i = 0; i < 3; ++i) {
    put<u16>(packet_, 4 + 2 * i, static_cast<u16>(r.block[i]));
    put<u32>(packet_, 12 + 4 * i, r.grid[i] * r.block[i]);
  }
  put<u32>(packet_, 24, kernel.scratch_bytes);
  put<u32>(packet_, 28, kernel.lds_bytes + r.dynamic_lds);
  put<u64>(packet_, 40, reinterpret_cast<u64>(kernarg_));
}

KernelAbi::~KernelAbi() { release(); }

void KernelAbi::release() {
  if (kernarg_ != nullptr) Memory::instance().release(kernarg_);
  if (packet_ != nullptr) Memory::instance().release(packet_);
}

u64 KernelAbi::scratch_bytes(const KernelInfo& kernel) const {
  const u64 fixed = kernel.scratch_bytes + (kernel.dynamic_stack ? kDynamicStackBytes : 0);
  return (fixed + 15) / 16 * 16;
}

void KernelAbi::initialize(Wave& w, const KernelInfo& kernel, const u32 block[3]) const {
  const Target& target = *w.target;
  const auto set = [&w](int index, u32 value) {
    w.sgpr[index] = value;
    w.sgpr_undef[index] = 0;
  };
  const auto set64 = [&](int index, u64 value) {
    set(index, u32(value));
    set(index + 1, u32(value >> 32));
  };
  int at = 0;
  const u16 properties = kernel.properties;
  if ((properties & 1) != 0) {
    const u64 scratch = reinterpret_cast<u64>(w.scratch.data());
    set(at, u32(scratch));
    set(at + 1, u32(scratch >> 32) | 1u << 31);  // swizzled
    set(at + 2, ~0u);
    set(at + 3, 0x00e00000u);
    at += 4;
  }
  if ((properties & 2) != 0) set64(std::exchange(at, at + 2), reinterpret_cast<u64>(packet_));
  if ((properties & 4) != 0) set64(std::exchange(at, at + 2), 0);
  if ((properties & 8) != 0) set64(std::exchange(at, at + 2), reinterpret_cast<u64>(kernarg_));
  if ((properties & 16) != 0) set64(std::exchange(at, at + 2), 0);
  if ((properties & 32) != 0) set64(std::exchange(at, at + 2), 0);
  if ((properties & 64) != 0) set(at++, kernel.scratch_bytes);
  u64 entry = kernel.entry;
  const u32 preload = kernel.kernarg_preload & 0x7fu;
  if (preload != 0) {
    const u32 offset = kernel.kernarg_preload >> 7 & 0x1ffu;
    for (u32 i = 0; i < preload; ++i) {
      u32 value;
      std::memcpy(&value, kernarg_ + 4 * (offset + i), 4);
      set(at++, value);
    }
    entry += 256;  // past the code that loads them on firmware without preloading
  }
  // System registers follow the declared number of user registers, which may be padded.
  at = static_cast<int>(kernel.rsrc2 >> 1 & 31);
  const Workgroup& g = *w.group;
  if (target.architected_group_ids) {
    set(sreg::kTtmp0 + 8, static_cast<u32>(w.index) << 25);  // the wave's number in the group
    set(sreg::kTtmp0 + 9, g.id[0]);
    set(sreg::kTtmp0 + 7, (g.id[1] & 0xffff) | g.id[2] << 16);
  } else {
    if ((kernel.rsrc2 >> 7 & 1) != 0) set(at++, g.id[0]);
    if ((kernel.rsrc2 >> 8 & 1) != 0) set(at++, g.id[1]);
    if ((kernel.rsrc2 >> 9 & 1) != 0) set(at++, g.id[2]);
    if ((kernel.rsrc2 >> 10 & 1) != 0) set(at++, 0);
  }
  if ((kernel.rsrc2 & 1) != 0 && !target.architected_scratch) set(at++, 0);
  set64(sreg::kFlatScratch, 0);
  set64(sreg::kXnackMask, 0);

  // Work-item ids, and which lanes exist.
  const u32 threads = block[0] * block[1] * block[2];
  const u32 first = static_cast<u32>(w.index) * static_cast<u32>(w.size);
  u64 exec = 0;
  const u32 wanted = kernel.rsrc2 >> 11 & 3;  // how many of x, y, z
  for (int lane = 0; lane < w.size; ++lane) {
    const u32 id = first + static_cast<u32>(lane);
    if (id < threads) exec |= 1ull << lane;
    const u32 x = id % block[0];
    const u32 y = id / block[0] % block[1];
    const u32 z = id / block[0] / block[1];
    if (target.packed_work_item_ids) {
      w.vgpr[0].lane[lane] = x | y << 10 | z << 20;
    } else {
      w.vgpr[0].lane[lane] = x;
      w.vgpr[1].lane[lane] = y;
      w.vgpr[2].lane[lane] = z;
    }
  }
  if (w.strict) {
    const u32 rows = target.packed_work_item_ids ? 1 : 1 + wanted;
    for (u32 i = 0; i < rows; ++i) {
      std::memset(static_cast<void*>(&w.vgpr_undef[i]), 0, sizeof(Vgpr));
      w.vgpr_dirty[i] = 0;
    }
  }
  set64(sreg::kExec, exec);
  w.initial_exec = exec;
  w.mode = (kernel.rsrc1 >> 12 & 0xff) | (kernel.rsrc1 >> 21 & 1) << 8 |
           (kernel.rsrc1 >> 23 & 1) << 9 | (kernel.rsrc1 >> 26 & 1) << kModeOverflowBit;
  w.mode_default = (w.mode & 0xff) == 0xf0;
  w.next = w.program->at(entry);
  if (w.next == nullptr) raise(Fault::BadProgram, "the kernel's entry is not an instruction");
}

}  // namespace rocflash::sim
