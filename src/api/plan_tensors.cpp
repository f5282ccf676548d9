#include "api/plan_tensors.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <string_view>

#include "core/error.hpp"

namespace rocflash {
namespace {

// The names of the tensors, in the order of Argument.
constexpr const char* names[] = {"q",
                                 "k",
                                 "v",
                                 "cu_seqlens_q",
                                 "cu_seqlens_k",
                                 "seqused_q",
                                 "seqused_k",
                                 "leftpad_k",
                                 "mask",
                                 "alibi_slopes",
                                 "bias",
                                 "sinks",
                                 "block_table",
                                 "cache_batch_idx",
                                 "k_new",
                                 "v_new",
                                 "cu_seqlens_k_new",
                                 "rotary_cos",
                                 "rotary_sin",
                                 "rotary_seqlens",
                                 "out",
                                 "lse",
                                 "s_dmask",
                                 "dout",
                                 "dq",
                                 "dk",
                                 "dv",
                                 "dsinks",
                                 "dbias",
                                 "dalibi_slopes",
                                 "delta",
                                 "dlse",
                                 "k_descale",
                                 "v_descale"};
static_assert(std::size(names) == tensor_argument_count);
// The tensors of version 0.1.0, in one block; newer ones are at the end of the struct.
constexpr int first_tensors = static_cast<int>(Argument::dlse) + 1;
static_assert(offsetof(rocflash_plan_arguments, q) == 8 &&
                  offsetof(rocflash_plan_arguments, dlse) == 8 * first_tensors &&
                  offsetof(rocflash_plan_arguments, v_descale) + 8 ==
                      sizeof(rocflash_plan_arguments),
              "the arguments are copied in blocks");

const char* name_of(Argument a) { return names[static_cast<std::size_t>(a)]; }

Argument argument_of(std::string_view name) {
  const auto* const found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names))
    throw Refusal(ROCFLASH_INTERNAL, text("plans have no tensor named ", name));
  return static_cast<Argument>(found - std::begin(names));
}

std::uint64_t bit(Argument a) { return std::uint64_t{1} << static_cast<int>(a); }

std::uint64_t address_of(const std::byte* data) { return reinterpret_cast<std::uintptr_t>(data); }

// The largest alignment that kernel selection depends on: vector loads and TMA.
constexpr std::uint64_t vector_bytes = 16;

// Where a tensor that has no data at creation is assumed: aligned, and apart from all others.
std::uint64_t separate_address(Argument a) { return (static_cast<std::uint64_t>(a) + 1) << 44; }

// For an empty tensor, which a run may leave null.
alignas(64) std::byte placeholder[64];

}  // namespace

PlanTensors::PlanTensors(const TensorRecord& record) {
  std::vector<Access> access;
  for (const RecordedTensor& r : record) {
    const Argument argument = argument_of(r.tensor.name);
    Tensor at_zero = r.tensor;
    at_zero.data = nullptr;
    const std::uint64_t address =
        r.is_null ? separate_address(argument) : address_of(r.tensor.data);
    const std::uint64_t alignment = std::min(address & -address, vector_bytes);
    tensors_.push_back({argument, alignment, Extent(at_zero)});
    access.push_back(r.access);
    like_[argument] = address;
    present_ |= bit(argument);
    if (!tensors_.back().extent.empty) required_ |= bit(argument);
  }
  const auto prefix = [&](Argument part, Argument whole) {
    const auto recorded = [&](Argument a) {
      return std::find_if(record.begin(), record.end(), [&](const RecordedTensor& r) {
        return std::string_view(r.tensor.name) == name_of(a);
      });
    };
    const auto one = recorded(part), other = recorded(whole);
    return one != record.end() && other != record.end() && !one->is_null && !other->is_null &&
           is_column_prefix(one->tensor, other->tensor);
  };
  same_caches_ = prefix(Argument::v, Argument::k);
  same_new_ = same_caches_ && prefix(Argument::v_new, Argument::k_new);
  const auto dtype_of = [&](Argument a) {
    const auto found = std::find_if(record.begin(), record.end(), [&](const RecordedTensor& r) {
      return std::string_view(r.tensor.name) == name_of(a);
    });
    return found == record.end() ? DType::f32 : found->tensor.dtype;
  };
  same_scales_ = same_new_ && (present_ & bit(Argument::k_descale)) != 0 &&
                 dtype_of(Argument::k_new) != dtype_of(Argument::k);
  for (std::size_t n = 0; n < tensors_.size(); ++n) {
    for (std::size_t m = 0; m < n; ++m) {
      const bool caches = tensors_[n].argument == Argument::v &&
                          tensors_[m].argument == Argument::k && same_caches_;
      if ((access[n] == Access::write || access[m] == Access::write) && !caches &&
          !tensors_[n].extent.empty && !tensors_[m].extent.empty)
        separate_.push_back({static_cast<std::uint8_t>(n), static_cast<std::uint8_t>(m)});
    }
  }
}

void PlanTensors::refuse_presence(const ArgumentValues& values) const {
  for (int n = 0; n < tensor_argument_count; ++n) {
    const auto a = static_cast<Argument>(n);
    if (values[a] == 0 && (required_ & bit(a)))
      refuse(name_of(a), " is null; this plan was created with it, so it is required");
    if (values[a] != 0 && !(present_ & bit(a)))
      refuse(name_of(a), " is given; this plan was created without it, so it must be null");
  }
  throw Refusal(ROCFLASH_INTERNAL, "a plan found no wrong tensor");
}

void PlanTensors::check_overlap(Pair pair, const ArgumentValues& values) const {
  Extent extents[2];
  int n = 0;
  for (const std::uint8_t index : {pair.one, pair.other}) {
    Extent& e = extents[n++] = tensors_[index].extent;
    const std::uint64_t address = values[tensors_[index].argument];
    e.first += address;
    e.last += address;
  }
  if (overlap(extents[0], extents[1]))
    refuse(name_of(tensors_[pair.one].argument), " overlaps ",
           name_of(tensors_[pair.other].argument),
           " in memory; an output must not overlap another tensor");
}

ArgumentValues PlanTensors::read(const rocflash_plan_arguments& in) const {
  ArgumentValues values;
  std::memcpy(values.value.data(),
              reinterpret_cast<const std::byte*>(&in) + offsetof(rocflash_plan_arguments, q),
              sizeof values.value[0] * first_tensors);
  values[Argument::dropout_seed] = in.dropout_seed;
  values[Argument::dropout_offset] = in.dropout_offset;
  values[Argument::k_descale] = address_of(static_cast<const std::byte*>(in.k_descale));
  values[Argument::v_descale] = address_of(static_cast<const std::byte*>(in.v_descale));
  std::uint64_t given = 0;
  for (int n = 0; n < tensor_argument_count; ++n)
    given |= std::uint64_t{values.value[static_cast<std::size_t>(n)] != 0} << n;
  if ((given & required_) != required_ || (given & ~present_) != 0) refuse_presence(values);
  for (const PlanTensor& t : tensors_) {
    std::uint64_t& address = values[t.argument];
    if (address == 0) address = address_of(placeholder);
    if (const std::uint64_t past = address & (t.alignment - 1); past != 0)
      refuse(name_of(t.argument), " is ", past, " bytes past a multiple of ", t.alignment,
             "; this plan was created for addresses aligned to ", t.alignment, " bytes");
  }
  if (same_caches_ && values[Argument::v] != values[Argument::k])
    refuse(
        "v has its own memory; in this plan it is the first columns of k, so its address must "
        "be that of k");
  if (same_new_ && values[Argument::v_new] != values[Argument::k_new])
    refuse(
        "v_new has its own memory; in this plan it is the first columns of k_new, so its address "
        "must be that of k_new");
  if (same_scales_ && values[Argument::v_descale] != values[Argument::k_descale])
    refuse(
        "v_descale is not k_descale; in this plan new keys and values are quantized once, so both "
        "must be the same tensor");
  for (const Pair pair : separate_) {
    const PlanTensor &one = tensors_[pair.one], &other = tensors_[pair.other];
    const std::uint64_t a = values[one.argument], b = values[other.argument];
    if (a + one.extent.last >= b + other.extent.first &&
        b + other.extent.last >= a + one.extent.first)
      check_overlap(pair, values);
  }
  return values;
}

}  // namespace rocflash
