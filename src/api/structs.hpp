// Structs of the C ABI grow at their end only. A caller may know fewer fields than we do, or more.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/error.hpp"

namespace rocflash {

// The sizes that version 0.1 knew: no caller can have an older struct.
template <class Struct>
inline constexpr std::size_t first_size = sizeof(Struct);

// No struct of ours will ever be as large: such a size was never set.
inline constexpr std::size_t largest_size = 4096;

template <class Struct>
void check_size(const char* name, std::size_t size) {
  if (size < first_size<Struct> || size > largest_size) {
    refuse(name, ".struct_size: ", size, "; it must be sizeof(*", name, "), ", first_size<Struct>,
           " or more for a newer caller, at most ", largest_size);
  }
}

// Our view of the caller's struct: fields it does not know are zero, which means absent.
template <class Struct>
Struct read_struct(const char* name, const Struct* in) {
  if (!in) refuse(name, ": is null");
  check_size<Struct>(name, in->struct_size);
  Struct out{};
  std::memcpy(&out, in, std::min(in->struct_size, sizeof(Struct)));
  // A newer caller may have fields we do not know: fine as long as it does not use them.
  const auto* bytes = reinterpret_cast<const unsigned char*>(in);
  for (std::size_t n = sizeof(Struct); n < in->struct_size; ++n) {
    if (bytes[n] != 0) {
      refuse_unsupported(name, ": byte ", n, " of ", in->struct_size,
                         " is set; the caller uses an option newer than this library (",
                         ROCFLASH_VERSION_MAJOR, ".", ROCFLASH_VERSION_MINOR, ")");
    }
  }
  return out;
}

template <class Struct>
void write_struct(const char* name, Struct* out, Struct value) {
  if (!out) refuse(name, ": is null");
  check_size<Struct>(name, out->struct_size);
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, std::min(out->struct_size, sizeof(Struct)));
}

}  // namespace rocflash
