// The one face of a GPU driver: what a launch needs, and nothing that allocates, copies or waits.
// Failures are thrown as refusals with ROCFLASH_DEVICE_ERROR and the driver's own message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "arch/tensor_map.hpp"
#include "core/dtype.hpp"
#include "gpu/driver/library.hpp"

namespace rocflash::gpu {

using Module = void*;
using Function = void*;

struct DeviceFacts {
  std::string name;  // "AMD Instinct MI300X"
  std::string arch;  // "gfx942:sramecc+:xnack-", "sm_90"
  int units = 0;     // compute units or multiprocessors
  // Bytes of shared memory that one workgroup may have; 0: as kernels/table/families.inc says.
  int group_shared = 0;
};

// A device made current for this thread, and what to restore.
struct Entry {
  std::uint64_t context = 0;  // modules belong to it: a number that is never given twice
  int device = 0;             // current before, where drivers think in devices
  bool changed = false;
};

struct LaunchShape {
  std::uint32_t groups = 0, threads = 0, dynamic_shared = 0;
  // Hopper: workgroups in two more dimensions, how many in the first form a cluster, and whether the launch may
  // start while the one before it still runs; its kernel then waits for that one's results.
  std::uint32_t groups_y = 1, groups_z = 1, cluster = 1;
  bool early = false;
};

// A tensor of 16-bit numbers for a GPU's copy engine: columns, rows, heads, batches, and the box that
// one copy takes of it.
struct TensorBox {
  const void* data = nullptr;
  DType dtype = DType::f16;
  std::uint64_t sizes[4] = {};
  std::uint64_t strides[3] = {};  // from row to row, head to head, batch to batch, in bytes
  std::uint32_t columns = 0, rows = 0;
  kernel::TensorMap* map = nullptr;  // to be written

  static constexpr int dimensions = 4;
};

class Driver {
 public:
  virtual ~Driver() = default;

  // Once, before anything else.
  virtual int device_count() = 0;
  virtual DeviceFacts facts(int device) = 0;

  virtual Entry enter(int device) = 0;
  virtual void leave(const Entry& entry) noexcept = 0;

  // Whether the driver can do what Hopper's kernels need: write maps of tensors, launch clusters.
  virtual bool serves_hopper() const { return false; }
  virtual void map(const TensorBox&) {}

  // These three act on the device that was entered.
  virtual Module load(const std::byte* image) = 0;
  virtual Function function(Module module, const char* name, std::uint32_t dynamic_shared) = 0;
  virtual void launch(Function function, const LaunchShape& shape, void* stream,
                      const void* arguments) = 0;
};

// A driver's function, and what it was called for, as messages name them.
inline std::string call_text(const char* call, const char* of) {
  return of ? std::string(call) + "(" + of + ")" : call;
}

// Null and a reason when the library lacks a function that is needed.
std::unique_ptr<Driver> make_hip_driver(const Library& library, std::string& reason);
std::unique_ptr<Driver> make_cuda_driver(const Library& library, std::string& reason);

// Makes a device current and restores what was, also when something is thrown in between.
class Current {
 public:
  Current(Driver& driver, int device) : driver_(driver), entry_(driver.enter(device)) {}
  ~Current() { driver_.leave(entry_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  std::uint64_t context() const { return entry_.context; }

 private:
  Driver& driver_;
  Entry entry_;
};

}  // namespace rocflash::gpu
