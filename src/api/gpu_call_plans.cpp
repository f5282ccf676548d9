#include "api/gpu_call_plans.hpp"

#include <cstddef>
#include <cstring>

namespace rocflash {
namespace {

// Kernel selection depends on the alignment up to this many bytes.
constexpr std::uintptr_t vector_bytes = 16;

std::uintptr_t address_of(const DLTensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.data) + t.byte_offset;
}

}  // namespace

bool GpuCall::read(const rocflash_prepared& prepared, DLTensor* tensors, std::uint32_t given) {
  arguments = {};
  arguments.struct_size = sizeof arguments;
  device = tensors[0].device;
  count = 0;
  words[count++] = static_cast<std::int64_t>(prepared.serial);
  std::uintptr_t together = 0;
  for (std::int32_t n = 0; n < prepared.count; ++n) {
    if (!(given & (1U << n))) continue;
    DLTensor& t = tensors[n];
    if (t.device.device_type != device.device_type || t.device.device_id != device.device_id ||
        t.ndim < 0 || t.ndim > max_dims || !t.strides)
      return false;
    const std::uintptr_t address = address_of(t);
    together |= address;
    std::memcpy(reinterpret_cast<std::byte*>(&arguments) + prepared.address_offset[n], &address,
                sizeof address);
    // Values may be the first columns of the keys' rows: a plan of its own.
    const bool shared = n > 0 && (given & (1U << (n - 1))) && address == address_of(tensors[n - 1]);
    words[count++] = n | std::int64_t{t.ndim} << 8 | std::int64_t{t.dtype.code} << 16 |
                     std::int64_t{t.dtype.bits} << 24 | std::int64_t{t.dtype.lanes} << 32 |
                     std::int64_t{shared} << 48;
    words[count++] = std::int64_t{device.device_type} << 32 | device.device_id;
    for (std::int64_t** sizes : {&t.shape, &t.strides}) {
      std::int64_t* const copy = words + count;
      for (int m = 0; m < t.ndim; ++m) words[count++] = (*sizes)[m];
      *sizes = copy;
    }
  }
  hash = 0;
  for (int n = 0; n < count; ++n)
    hash = (hash ^ static_cast<std::uint64_t>(words[n])) * 0x9e3779b97f4a7c15U;
  hash ^= hash >> 32;
  return together % vector_bytes == 0;
}

bool GpuCall::same_signature(const GpuCall& other) const {
  return count == other.count &&
         std::memcmp(words, other.words, sizeof words[0] * static_cast<std::size_t>(count)) == 0;
}

std::shared_ptr<rocflash_plan> GpuCallPlans::find(const GpuCall& call) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return nullptr;
  const std::unique_ptr<Entry>& entry = entries_[call.hash % max_plans];
  return entry && entry->call.same_signature(call) ? entry->plan : nullptr;
}

std::shared_ptr<rocflash_plan> GpuCallPlans::create(std::int32_t operation,
                                                    const rocflash_prepared_structs& structs,
                                                    const GpuCall& call) {
  rocflash_plan* made = nullptr;
  rocflash_status status = ROCFLASH_UNSUPPORTED;
  switch (operation) {
    case ROCFLASH_PREPARED_FORWARD:
      status = rocflash_plan_create_forward(&structs.problem, &structs.outputs, &structs.execution,
                                            &made);
      break;
    case ROCFLASH_PREPARED_INFER:
      status =
          rocflash_plan_create_infer(&structs.problem, &structs.outputs, &structs.execution, &made);
      break;
    case ROCFLASH_PREPARED_BACKWARD:
      status = rocflash_plan_create_backward(&structs.problem, &structs.tensors, &structs.execution,
                                             &made);
      break;
    case ROCFLASH_PREPARED_DECODE:
      status = rocflash_plan_create_decode(&structs.problem, &structs.append, &structs.outputs,
                                           &structs.execution, &made);
      break;
    default:
      break;
  }
  if (status != ROCFLASH_OK) return nullptr;
  std::shared_ptr<rocflash_plan> plan(made, rocflash_plan_destroy);
  auto entry = std::make_unique<Entry>(Entry{call, plan});
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) entries_[call.hash % max_plans].swap(entry);
  return plan;
}

GpuCallPlans& gpu_call_plans() {
  static GpuCallPlans* const plans = new GpuCallPlans;
  return *plans;
}

}  // namespace rocflash
