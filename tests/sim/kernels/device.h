// Attributes and builtins of the tests' device code; no HIP header is needed.
#pragma once

#define GLOBAL extern "C" __attribute__((global))
#define DEVICE __attribute__((device))
#define SHARED __attribute__((shared))
#define NOINLINE __attribute__((noinline))
#define BOUNDS(n) __attribute__((amdgpu_flat_work_group_size(1, n)))

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using f16 = _Float16;

DEVICE inline u32 tid() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE inline u32 bid() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE inline u32 bdim() { return __builtin_amdgcn_workgroup_size_x(); }
DEVICE inline u32 gid() { return bid() * bdim() + tid(); }
DEVICE inline u32 lane() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
}
DEVICE inline void sync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
