#include "gpu/catalogue.hpp"

#include <array>
#include <atomic>
#include <charconv>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/fork_mutex.hpp"
#include "gpu/ptx.hpp"

// Written by the build: the number of targets as ROCFLASH_TARGETS and, in the catalogue's order,
// ROCFLASH_TARGET(name, family, base), where base is the target whose object the compressed one
// refers to, or itself.
#include "targets.inc"

#if ROCFLASH_TARGETS > 0
#include <zstd.h>

#define ROCFLASH_TARGET(name, family, base)                       \
  asm(".pushsection .rodata.rocflash_kernels,\"a\",@progbits\n"   \
      ".globl embedded_" #name ", embedded_end_" #name            \
      "\n"                                                        \
      ".hidden embedded_" #name ", embedded_end_" #name           \
      "\n"                                                        \
      "embedded_" #name ": .incbin \"" ROCFLASH_KERNELS "/" #name \
      ".zst\"\n"                                                  \
      "embedded_end_" #name                                       \
      ":\n"                                                       \
      ".popsection");                                             \
  extern "C" [[gnu::visibility("hidden")]] const std::byte embedded_##name[], embedded_end_##name[];
#include "targets.inc"
#undef ROCFLASH_TARGET
#endif

namespace rocflash::gpu {
namespace {

#define ROCFLASH_TARGET(name, family, base) Target{#name, kernel::Family::family},
constexpr std::array<Target, ROCFLASH_TARGETS> table = {
#include "targets.inc"
};
#undef ROCFLASH_TARGET

// The number in "sm_90a", and whether the code is for that architecture's own features.
struct Sm {
  int number = 0;
  bool own = false;
};

std::optional<Sm> sm_of(std::string_view arch) {
  if (!arch.starts_with("sm_")) return std::nullopt;
  Sm sm;
  const char* const end = arch.data() + arch.size();
  const auto [rest, error] = std::from_chars(arch.data() + 3, end, sm.number);
  if (error != std::errc()) return std::nullopt;
  sm.own = rest + 1 == end && *rest == 'a';
  if (rest != end && !sm.own) return std::nullopt;
  return sm;
}

#if ROCFLASH_TARGETS > 0

struct Embedded {
  const std::byte* begin;
  const std::byte* end;
  std::string_view base;
};

#define ROCFLASH_TARGET(name, family, base) Embedded{embedded_##name, embedded_end_##name, #base},
const std::array<Embedded, ROCFLASH_TARGETS> embedded = {
#include "targets.inc"
};
#undef ROCFLASH_TARGET

// One kernel cut out of a target's PTX, in a list that only grows.
struct Cut {
  std::string kernel, module;
  const Cut* next;
};

// What has been unpacked of a target. Never destroyed: threads that outlive main may still launch.
struct Slot {
  ForkMutex mutex;
  std::atomic<const std::vector<std::byte>*> bytes{nullptr};
  std::atomic<const Cut*> cuts{nullptr};
};

constinit std::array<Slot, ROCFLASH_TARGETS> slots;

[[noreturn]] void refuse_damaged(const Target& target, const char* why) {
  throw Refusal(ROCFLASH_INTERNAL,
                text("the kernels of ", target.arch, " in this library are damaged: ", why,
                     "; the library must be installed again"));
}

std::vector<std::byte> room_for(const Target& target, std::size_t size) try {
  std::vector<std::byte> bytes;
  bytes.reserve(size + 1);  // PTX ends with a 0
  bytes.resize(size);
  return bytes;
} catch (const std::bad_alloc&) {
  throw Refusal(ROCFLASH_OUT_OF_MEMORY, text("not enough memory to unpack the kernels of ",
                                             target.arch, ", ", size, " bytes"));
}

std::vector<std::byte> decompress(const Target& target, const Embedded& object,
                                  std::span<const std::byte> base) {
  constexpr unsigned long long largest = 1ull << 30;
  const auto packed = static_cast<std::size_t>(object.end - object.begin);
  const auto size = ZSTD_getFrameContentSize(object.begin, packed);
  if (size > largest) refuse_damaged(target, "their size is not known");  // also zstd's errors
  std::vector<std::byte> bytes = room_for(target, static_cast<std::size_t>(size));
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(),
                                                                     &ZSTD_freeDCtx);
  if (!context) {
    throw Refusal(ROCFLASH_OUT_OF_MEMORY,
                  text("not enough memory to unpack the kernels of ", target.arch));
  }
  if (!base.empty()) ZSTD_DCtx_refPrefix(context.get(), base.data(), base.size());
  const std::size_t written =
      ZSTD_decompressDCtx(context.get(), bytes.data(), bytes.size(), object.begin, packed);
  if (ZSTD_isError(written)) refuse_damaged(target, ZSTD_getErrorName(written));
  if (written != bytes.size()) refuse_damaged(target, "they are shorter than they should be");
  return bytes;
}

const Cut* find_cut(const Slot& slot, std::string_view kernel) {
  const Cut* cut = slot.cuts.load(std::memory_order_acquire);
  while (cut && cut->kernel != kernel) cut = cut->next;
  return cut;
}

#endif

}  // namespace

namespace {

const Target* find(std::string_view arch, std::span<const Target> among, bool additions) {
  arch = arch.substr(0, arch.find(':'));
  const std::optional<Sm> device = sm_of(arch);
  const Target* best = nullptr;
  Sm best_sm;
  for (const Target& target : among) {
    if (kernel::is_addition(target.family) != additions) continue;
    if (!device) {
      if (target.arch == arch) return &target;
      continue;
    }
    const std::optional<Sm> sm = sm_of(target.arch);
    if (!sm || (sm->own ? sm->number != device->number : sm->number > device->number)) continue;
    if (!best || sm->number > best_sm.number || (sm->number == best_sm.number && sm->own)) {
      best = &target;
      best_sm = *sm;
    }
  }
  return best;
}

}  // namespace

std::span<const Target> targets() { return table; }

const Target* target_for(std::string_view arch, std::span<const Target> among) {
  return find(arch, among, false);
}
const Target* target_for(std::string_view arch) { return target_for(arch, table); }
const Target* addition_for(std::string_view arch, std::span<const Target> among) {
  return find(arch, among, true);
}
const Target* addition_for(std::string_view arch) { return addition_for(arch, table); }
const Target* target_named(std::string_view arch) {
  for (const Target& target : table)
    if (target.arch == arch) return &target;
  return nullptr;
}

#if ROCFLASH_TARGETS > 0

// An exception must not pass through std::call_once: that is glibc's pthread_once, and unwinding
// through it ends the process where the unwinder is linked statically.
std::span<const std::byte> code_object(const Target& target) {
  const auto index = static_cast<std::size_t>(&target - table.data());
  Slot& slot = slots[index];
  if (const auto* bytes = slot.bytes.load(std::memory_order_acquire)) return *bytes;
  const Embedded& object = embedded[index];
  std::span<const std::byte> base;
  if (object.base != target.arch) base = code_object(*target_named(object.base));
  const std::lock_guard lock(slot.mutex);
  if (const auto* bytes = slot.bytes.load(std::memory_order_acquire)) return *bytes;
  auto bytes = std::make_unique<std::vector<std::byte>>(decompress(target, object, base));
  if (sm_of(target.arch)) bytes->push_back(std::byte{0});
  slot.bytes.store(bytes.get(), std::memory_order_release);
  return *bytes.release();
}

std::span<const std::byte> module_for(const Target& target, std::string_view kernel) {
  const std::span<const std::byte> all = code_object(target);
  if (!sm_of(target.arch)) return all;
  Slot& slot = slots[static_cast<std::size_t>(&target - table.data())];
  const std::lock_guard lock(slot.mutex);
  const Cut* cut = find_cut(slot, kernel);
  if (!cut) {
    const std::string_view text(reinterpret_cast<const char*>(all.data()), all.size() - 1);
    auto fresh = std::make_unique<Cut>(std::string(kernel), cut_to_kernel(text, kernel),
                                       slot.cuts.load(std::memory_order_acquire));
    if (fresh->module.empty()) return {};
    cut = fresh.release();
    slot.cuts.store(cut, std::memory_order_release);
  }
  return std::as_bytes(std::span(cut->module.c_str(), cut->module.size() + 1));
}

#else

std::span<const std::byte> code_object(const Target&) { return {}; }
std::span<const std::byte> module_for(const Target&, std::string_view) { return {}; }

#endif

}  // namespace rocflash::gpu
