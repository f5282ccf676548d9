// The kernel list of table/kernels.inc in C++: device code instantiates from it and the host looks
// up in it, so the two cannot disagree. Every kernel has a number, its index in the list, and a
// name, its symbol in the code objects.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "table/families.hpp"

namespace rocflash::kernel {

// What a kernel computes, and how.
enum class Op : std::uint8_t {
#define ROCFLASH_OPERATION(name) name,
#include "table/kernels.inc"
};
enum class Schedule : std::uint8_t {
#define ROCFLASH_SCHEDULE(name) name,
#include "table/kernels.inc"
};

namespace detail {
inline constexpr int op_count = 0
#define ROCFLASH_OPERATION(name) +1
#include "table/kernels.inc"
    ;
inline constexpr int schedule_count = 0
#define ROCFLASH_SCHEDULE(name) +1
#include "table/kernels.inc"
    ;
}  // namespace detail

// `specialized` is the hot path: any lengths, causal, window and chunk masks, 16-byte aligned rows,
// head dimensions that are multiples of 16 bytes. `generic` adds all other options, as uniform
// branches. Operations without variants have `any`.
enum class Variant : std::uint8_t { specialized, generic, any };

// What one kernel is compiled for.
struct KernelSpec {
  Op op;
  Schedule schedule;
  DType dtype;
  int bucket;  // the largest supported head dimension, or what BucketOf says; 0: any
  Variant variant;

  friend constexpr bool operator==(const KernelSpec& a, const KernelSpec& b) {
    return a.op == b.op && a.schedule == b.schedule && a.dtype == b.dtype && a.bucket == b.bucket &&
           a.variant == b.variant;
  }
};

namespace detail {

struct KernelLine {
  Op op;
  Schedule schedule;
  DType dtype;
  Variant variant;
  FamilySet families;
  int buckets[16];  // the rest is 0

  constexpr bool has(int n) const { return n == 0 || (n < 16 && buckets[n] != 0); }
};

namespace lines {
using namespace family_set;
inline constexpr KernelLine all_lines[] = {
#define ROCFLASH_KERNELS(op, schedule, dtype, variant, families, ...) \
  {Op::op, Schedule::schedule, DType::dtype, Variant::variant, families, {__VA_ARGS__}},
#include "table/kernels.inc"
};
}  // namespace lines

constexpr int count_kernels() {
  int count = 0;
  for (const KernelLine& line : lines::all_lines)
    for (int n = 0; line.has(n); ++n) ++count;
  return count;
}

}  // namespace detail

inline constexpr int kernel_count = detail::count_kernels();

namespace detail {

struct KernelList {
  KernelSpec spec[kernel_count];
  FamilySet families[kernel_count];
};

constexpr KernelList list_kernels() {
  KernelList list{};
  int count = 0;
  for (const KernelLine& line : lines::all_lines) {
    for (int n = 0; line.has(n); ++n, ++count) {
      list.spec[count] = {line.op, line.schedule, line.dtype, line.buckets[n], line.variant};
      list.families[count] = line.families;
    }
  }
  return list;
}

inline constexpr KernelList kernel_list = list_kernels();

}  // namespace detail

constexpr const KernelSpec& kernel_spec(int number) { return detail::kernel_list.spec[number]; }

// Whether a family has the kernel.
constexpr bool has_kernel(Family family, int number) {
  return contains(detail::kernel_list.families[number], family);
}

namespace detail {

constexpr int pair_of(Op op, Schedule schedule) {
  return static_cast<int>(op) * schedule_count + static_cast<int>(schedule);
}
// The numbers of the kernels by operation and schedule: a call looks up a dozen kernels, and the
// list has hundreds.
struct KernelIndex {
  int number[kernel_count];
  int first[op_count * schedule_count + 1];  // index into `number`
};
constexpr KernelIndex index_kernels() {
  KernelIndex index{};
  for (const KernelSpec& spec : kernel_list.spec)
    ++index.first[pair_of(spec.op, spec.schedule) + 1];
  for (int n = 0; n < op_count * schedule_count; ++n) index.first[n + 1] += index.first[n];
  int filled[op_count * schedule_count] = {};
  for (int n = 0; n < kernel_count; ++n) {
    const int pair = pair_of(kernel_spec(n).op, kernel_spec(n).schedule);
    index.number[index.first[pair] + filled[pair]++] = n;
  }
  return index;
}
inline constexpr KernelIndex kernel_index = index_kernels();

struct KernelNumbers {
  const int *first, *last;
  constexpr const int* begin() const { return first; }
  constexpr const int* end() const { return last; }
};

}  // namespace detail

// The numbers of the kernels that compute an operation by a schedule, in the order of the list.
constexpr detail::KernelNumbers kernels_of(Op op, Schedule schedule) {
  const int pair = detail::pair_of(op, schedule);
  return {detail::kernel_index.number + detail::kernel_index.first[pair],
          detail::kernel_index.number + detail::kernel_index.first[pair + 1]};
}

// A kernel's number, or -1 where the list has no such kernel.
constexpr int kernel_number(const KernelSpec& spec) {
  for (const int n : kernels_of(spec.op, spec.schedule))
    if (kernel_spec(n) == spec) return n;
  return -1;
}

// The smallest bucket that holds the head dimension, among the kernels that one of the families
// has; 0: none.
constexpr int bucket_of(Op op, Schedule schedule, DType dtype, int head_dim,
                        FamilySet families = family_set::all) {
  int found = 0;
  for (const int n : kernels_of(op, schedule)) {
    const KernelSpec& spec = kernel_spec(n);
    if (spec.dtype == dtype && spec.bucket >= head_dim &&
        (detail::kernel_list.families[n] & families) != 0 && (found == 0 || spec.bucket < found))
      found = spec.bucket;
  }
  return found;
}

// The largest head dimension that a schedule has kernels for; 0 if it has none for the dtype.
constexpr int largest_bucket(Op op, Schedule schedule, DType dtype) {
  int largest = 0;
  for (const int n : kernels_of(op, schedule)) {
    const KernelSpec& spec = kernel_spec(n);
    if (spec.dtype == dtype && spec.bucket > largest) largest = spec.bucket;
  }
  return largest;
}

constexpr const char* name_of(Op op) {
  constexpr const char* names[] = {
#define ROCFLASH_OPERATION(name) #name,
#include "table/kernels.inc"
  };
  return names[static_cast<int>(op)];
}
constexpr const char* name_of(Schedule schedule) {
  constexpr const char* names[] = {
#define ROCFLASH_SCHEDULE(name) #name,
#include "table/kernels.inc"
  };
  return names[static_cast<int>(schedule)];
}
constexpr const char* name_of(Variant variant) {
  return variant == Variant::specialized ? "specialized"
         : variant == Variant::generic   ? "generic"
                                         : "any";
}

struct KernelName {
  char text[64] = {};
  int length = 0;

  constexpr void add(const char* part) {
    if (length > 0) text[length++] = '_';
    for (; *part != '\0'; ++part) text[length++] = *part;
  }
};

// Kernel names: forward_f16_64_specialized, decode_cluster_f16_64, weights_f16.
constexpr KernelName name_of(const KernelSpec& spec) {
  KernelName name;
  name.add(name_of(spec.op));
  if (spec.schedule != Schedule::tiled) name.add(name_of(spec.schedule));
  name.add(name_of(spec.dtype));
  if (spec.bucket > 0) {
    char digits[8] = {};
    int first = 7;
    for (int rest = spec.bucket; rest > 0; rest /= 10)
      digits[--first] = static_cast<char>('0' + rest % 10);
    name.add(digits + first);
  }
  if (spec.variant != Variant::any) name.add(name_of(spec.variant));
  return name;
}

constexpr bool is_named(const KernelSpec& spec, const char* text) {
  const KernelName name = name_of(spec);
  for (int n = 0; n <= name.length; ++n)
    if (name.text[n] != text[n]) return false;
  return true;
}

namespace detail {

struct KernelNames {
  KernelName name[kernel_count];
};
constexpr KernelNames name_kernels() {
  KernelNames names;
  for (int n = 0; n < kernel_count; ++n) names.name[n] = name_of(kernel_spec(n));
  return names;
}
inline constexpr KernelNames kernel_names = name_kernels();

}  // namespace detail

// Static storage.
constexpr const char* kernel_name(int number) { return detail::kernel_names.name[number].text; }

}  // namespace rocflash::kernel
