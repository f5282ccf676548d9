// The plans of Python's calls on GPU tensors, by signature: a bounded cache of rocflash_plan.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "api/python.hpp"

namespace rocflash {

// The tensors of a call: their addresses, and the signature of everything else. Trivially
// destructible and without invariants before `read`, since a thread may end while it exists.
struct GpuCall {
  static constexpr int max_dims = 4;
  static constexpr int max_words = 1 + ROCFLASH_PREPARED_TENSORS * (2 + 2 * max_dims);

  // False if no plan serves the call: tensors on several devices, of more dimensions, or unaligned.
  // The tensors' shapes and strides then are those in `words`, which no other thread changes.
  bool read(const rocflash_prepared& prepared, DLTensor* tensors, std::uint32_t given);
  bool same_signature(const GpuCall& other) const;

  rocflash_plan_arguments arguments;
  DLDevice device;
  int count;  // words in use
  std::uint64_t hash;
  // The serial of the prepared call; of each tensor its index, type and aliasing, shape and
  // strides.
  std::int64_t words[max_words];
};

// Direct-mapped. A plan that is replaced lives until its last run ends. `find` and `create` never
// wait: where another thread, or the parent of a forked process, holds the lock, they go without
// it.
class GpuCallPlans {
 public:
  std::shared_ptr<rocflash_plan> find(const GpuCall& call);
  // Null if the library rejects the call. `structs` has the call's numbers.
  std::shared_ptr<rocflash_plan> create(std::int32_t operation,
                                        const rocflash_prepared_structs& structs,
                                        const GpuCall& call);

 private:
  struct Entry {
    GpuCall call;
    std::shared_ptr<rocflash_plan> plan;
  };
  static constexpr std::size_t max_plans = 512;

  std::mutex mutex_;
  std::unique_ptr<Entry> entries_[max_plans];
};

// Never destroyed: threads may run calls while the process ends.
GpuCallPlans& gpu_call_plans();

}  // namespace rocflash
