#include "gpu/plan/reusable.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace rocflash::gpu {
namespace {

// Two plans of one call whose values differ by `shift` show where each value is: in the words that
// differ by it. That holds for every struct of arguments, so none has to list its addresses.
//
// Each argument has an address range of its own, and the workspace the last one, since parts of it
// follow at any distance. The shift keeps the alignment that kernel selection depends on. It
// changes the lowest byte of an address, so a field next to padding cannot look like one.
constexpr std::uint64_t shift = 0x13579bdf0, range = std::uint64_t{1} << 44, alignment_mask = 15;
static_assert((shift & alignment_mask) == 0 && (shift & 0xff) != 0);
constexpr std::uint64_t seed = 0x9e3779b97f4a7c15, offset = 0xbf58476d1ce4e5b9;

std::uint64_t range_of(Argument a) { return (static_cast<std::uint64_t>(a) + 1) * range; }

ArgumentValues recognizable(const ArgumentValues& like, std::uint64_t shifted) {
  ArgumentValues values;
  for (int n = 0; n < tensor_argument_count; ++n) {
    const auto a = static_cast<Argument>(n);
    values[a] = range_of(a) + (like[a] & alignment_mask) + shifted;
  }
  if (like[Argument::v] == like[Argument::k]) values[Argument::v] = values[Argument::k];
  values[Argument::dropout_seed] = seed + shifted;
  values[Argument::dropout_offset] = offset + shifted;
  values[Argument::workspace] = range_of(Argument::workspace) + shifted;
  return values;
}

// The argument whose value, plus an addend, is `word`.
Relocation relocation_of(std::uint64_t word, const ArgumentValues& values) {
  Relocation r;
  if (word == seed || word == offset) {
    r.argument = word == seed ? Argument::dropout_seed : Argument::dropout_offset;
  } else if (word >= range_of(Argument::workspace)) {
    r.argument = Argument::workspace;
  } else {
    r.argument = static_cast<Argument>(word / range - 1);
  }
  r.addend = word - values[r.argument];
  return r;
}

std::uint64_t word_at(const void* bytes, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, static_cast<const std::byte*>(bytes) + at, sizeof word);
  return word;
}

std::uint64_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

bool same_launches(const Plan& one, const Plan& other) {
  const auto same = [](const Launch& a, const Launch& b) {
    return a.kernel == b.kernel && a.argument_bytes == b.argument_bytes &&
           a.tensor_maps.size() == b.tensor_maps.size() && a.shape == b.shape;
  };
  return one.workspace.value() == other.workspace.value() &&
         std::equal(one.launches().begin(), one.launches().end(), other.launches().begin(),
                    other.launches().end(), same);
}

}  // namespace

ReusablePlan::ReusablePlan(const ArgumentValues& like, Fill fill, const void* context) {
  const ArgumentValues values = recognizable(like, 0), shifted = recognizable(like, shift);
  auto plan = std::make_unique<Plan>(), other = std::make_unique<Plan>();
  fill(context, *plan, values);
  fill(context, *other, shifted);
  if (!same_launches(*plan, *other))
    throw Refusal(ROCFLASH_INTERNAL, "kernel selection depends on the addresses of tensors");
  plan_ = std::move(plan);
  find_relocations(*other, values);
}

void ReusablePlan::find_relocations(const Plan& other, const ArgumentValues& values) {
  std::int32_t number = 0;
  for (const Launch& one : plan_->launches()) {
    const Launch& two = other.launches()[static_cast<std::size_t>(number)];
    const auto add = [&](std::vector<Relocation>& to, std::uint64_t word, std::size_t at) {
      Relocation r = relocation_of(word, values);
      r.launch = number;
      r.offset = static_cast<std::uint32_t>(at);
      to.push_back(r);
    };
    for (std::size_t at = 0; at + 8 <= one.argument_bytes; at += 8) {
      const std::uint64_t word = word_at(one.arguments, at);
      if (word_at(two.arguments, at) - word == shift) add(words_, word, at);
    }
    for (std::size_t n = 0; n < one.tensor_maps.size(); ++n) {
      const TensorMapDesc& desc = one.tensor_maps[n];
      add(maps_, address_of(desc.data), address_of(desc.map) - address_of(one.arguments));
    }
    ++number;
  }
}

}  // namespace rocflash::gpu
