// Kernels that read their launch configuration.
#include "device.h"

GLOBAL void identities(u32* out) {
  const u32 x = __builtin_amdgcn_workitem_id_x(), y = __builtin_amdgcn_workitem_id_y(),
            z = __builtin_amdgcn_workitem_id_z();
  const u32 sx = __builtin_amdgcn_workgroup_size_x(), sy = __builtin_amdgcn_workgroup_size_y(),
            sz = __builtin_amdgcn_workgroup_size_z();
  const u32 gx = __builtin_amdgcn_workgroup_id_x(), gy = __builtin_amdgcn_workgroup_id_y(),
            gz = __builtin_amdgcn_workgroup_id_z();
  const u32 nx = __builtin_amdgcn_grid_size_x() / sx, ny = __builtin_amdgcn_grid_size_y() / sy;
  const u32 group = (gz * ny + gy) * nx + gx;
  const u32 item = (z * sy + y) * sx + x;
  out[group * sx * sy * sz + item] = gx | gy << 4 | gz << 8 | x << 12 | y << 20 | z << 28;
}

GLOBAL void dynamic_lds(u32* out) {
  extern SHARED u32 dynamic[];
  dynamic[tid()] = tid() * 3;
  sync();
  out[tid()] = dynamic[bdim() - 1 - tid()];
}

// Every workgroup waits until all have arrived: later ones must become resident with earlier ones.
GLOBAL void grid_barrier(u32* counter, u32* out, u32 groups) {
  if (tid() == 0) {
    __hip_atomic_fetch_add(counter, 1u, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
    while (__hip_atomic_load(counter, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) < groups) {
      __builtin_amdgcn_s_sleep(1);
    }
  }
  sync();
  out[gid()] = *counter;
}

GLOBAL void many_arguments(u32* out, u8 a, u16 b, u32 c, u64 d, float e, double f) {
  if (tid() != 0) return;
  out[0] = a;
  out[1] = b;
  out[2] = c;
  out[3] = u32(d >> 32);
  out[4] = u32(e);
  out[5] = u32(f);
}

__attribute__((device)) u32 table[4] = {11, 22, 33, 44};
__attribute__((constant)) const u32 constants[4] = {5, 6, 7, 8};

GLOBAL void globals(u32* out) { out[tid()] = table[tid() & 3] + constants[(tid() >> 2) & 3]; }
