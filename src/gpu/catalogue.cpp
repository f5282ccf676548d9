#include "gpu/catalogue.hpp"

#include <array>
#include <charconv>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

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

struct Slot {
  std::once_flag once;
  std::vector<std::byte> bytes;
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> kernels;  // of PTX
};

// Never destroyed: threads that outlive main may still launch.
Slot& slot_of(std::size_t index) {
  static auto* const slots = new std::array<Slot, ROCFLASH_TARGETS>;
  return (*slots)[index];
}

std::vector<std::byte> decompress(const Embedded& object, std::span<const std::byte> base) {
  const auto size = static_cast<std::size_t>(object.end - object.begin);
  std::vector<std::byte> bytes(ZSTD_getFrameContentSize(object.begin, size));
  ZSTD_DCtx* const context = ZSTD_createDCtx();
  if (!context) throw std::bad_alloc();
  if (!base.empty()) ZSTD_DCtx_refPrefix(context, base.data(), base.size());
  const std::size_t written =
      ZSTD_decompressDCtx(context, bytes.data(), bytes.size(), object.begin, size);
  ZSTD_freeDCtx(context);
  if (ZSTD_isError(written) || written != bytes.size()) {
    throw std::runtime_error(std::string("the library's kernels are damaged: ") +
                             ZSTD_getErrorName(written));
  }
  return bytes;
}

#endif

}  // namespace

std::span<const Target> targets() { return table; }

const Target* target_for(std::string_view arch, std::span<const Target> among) {
  arch = arch.substr(0, arch.find(':'));
  const std::optional<Sm> device = sm_of(arch);
  const Target* best = nullptr;
  Sm best_sm;
  for (const Target& target : among) {
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

const Target* target_for(std::string_view arch) { return target_for(arch, table); }

#if ROCFLASH_TARGETS > 0

std::span<const std::byte> code_object(const Target& target) {
  const auto index = static_cast<std::size_t>(&target - table.data());
  Slot& slot = slot_of(index);
  std::call_once(slot.once, [&] {
    const Embedded& object = embedded[index];
    std::span<const std::byte> base;
    if (object.base != target.arch) base = code_object(*target_for(object.base));
    slot.bytes = decompress(object, base);
    if (sm_of(target.arch)) slot.bytes.push_back(std::byte{0});
  });
  return slot.bytes;
}

std::span<const std::byte> module_for(const Target& target, std::string_view kernel) {
  const std::span<const std::byte> all = code_object(target);
  if (!sm_of(target.arch)) return all;
  Slot& slot = slot_of(static_cast<std::size_t>(&target - table.data()));
  const std::lock_guard lock(slot.mutex);
  auto found = slot.kernels.find(kernel);
  if (found == slot.kernels.end()) {
    const std::string_view text(reinterpret_cast<const char*>(all.data()), all.size() - 1);
    std::string cut = cut_to_kernel(text, kernel);
    if (cut.empty()) return {};
    found = slot.kernels.emplace(kernel, std::move(cut)).first;
  }
  const std::string& module = found->second;
  return std::as_bytes(std::span(module.c_str(), module.size() + 1));
}

#else

std::span<const std::byte> code_object(const Target&) { return {}; }
std::span<const std::byte> module_for(const Target&, std::string_view) { return {}; }

#endif

}  // namespace rocflash::gpu
