// Versioned structs of the C ABI. They grow at the end only, so a caller may have been compiled
// with fewer fields than this library, or with more.
#pragma once

#include <rocflash/rocflash.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/error.hpp"

namespace rocflash {

// Struct sizes of version 0.1.0, the oldest that a caller can have. They are literals because
// sizeof grows with the struct and would reject old callers. Other structs have not grown.
template <class Struct>
inline constexpr std::size_t first_size = sizeof(Struct);
template <>
inline constexpr std::size_t first_size<rocflash_problem> = 208;
template <>
inline constexpr std::size_t first_size<rocflash_forward_outputs> = 32;
template <>
inline constexpr std::size_t first_size<rocflash_backward_tensors> = 80;
template <>
inline constexpr std::size_t first_size<rocflash_append> = 64;
template <>
inline constexpr std::size_t first_size<rocflash_execution> = 40;
template <>
inline constexpr std::size_t first_size<rocflash_plan_arguments> = 304;
template <>
inline constexpr std::size_t first_size<rocflash_limits> = 24;
template <>
inline constexpr std::size_t first_size<rocflash_device> = 48;
template <>
inline constexpr std::size_t first_size<rocflash_driver> = 40;
template <>
inline constexpr std::size_t first_size<rocflash_target> = 32;

// Larger than any struct of the ABI: struct_size was not initialized.
inline constexpr std::size_t largest_size = 4096;

template <class Struct>
void check_size(const char* name, std::size_t size) {
  static_assert(sizeof(Struct) >= first_size<Struct>, "a struct of the ABI never shrinks");
  // sizeof is always a multiple of alignof.
  if (size < first_size<Struct> || size > largest_size || size % alignof(Struct) != 0) {
    refuse(name, ".struct_size is ", size, "; it must be sizeof(*", name, "): at least ",
           first_size<Struct>, ", at most ", largest_size, " and a multiple of ", alignof(Struct));
  }
}

// Copies the caller's struct. Fields that the caller does not know are zero, which means absent.
template <class Struct>
Struct read_struct(const char* name, const Struct* in) {
  if (!in) refuse(name, " is null; it is required");
  check_size<Struct>(name, in->struct_size);
  Struct out{};
  std::memcpy(&out, in, std::min(in->struct_size, sizeof(Struct)));
  // Fields of a newer caller must be zero: they would be ignored.
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (std::size_t n = sizeof(Struct); n < in->struct_size; ++n) {
    if (bytes[n] != 0) {
      refuse_unsupported(name, " has a nonzero byte ", n, " of ", in->struct_size,
                         "; the caller uses an option newer than this library (",
                         ROCFLASH_VERSION_MAJOR, ".", ROCFLASH_VERSION_MINOR, ")");
    }
  }
  return out;
}

template <class Struct>
void write_struct(const char* name, Struct* out, Struct value) {
  if (!out) refuse(name, " is null; it is required");
  check_size<Struct>(name, out->struct_size);
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, std::min(out->struct_size, sizeof(Struct)));
}

}  // namespace rocflash
