// Typed buffers of a run description: filled and printed.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "core/types.h"

namespace rocflash::sim::tool {

struct TypedBuffer {
  std::string name;
  std::string type;
  u64 count = 0;
  u8* data = nullptr;
  bool initialized = false;

  [[nodiscard]] u64 bytes() const;
};

u64 type_bytes(const std::string& type);
// Throws where an object has other keys than these: a misspelled one would do nothing.
void reject_unknown_keys(const nlohmann::json& object, const std::string& what,
                         std::initializer_list<const char*> known);
double read_number(const std::string& type, const u8* at);
void write_number(const std::string& type, u8* at, const nlohmann::json& value);

// Allocates and fills device memory by the description. Files are relative to `directory`.
TypedBuffer make_buffer(const std::string& name, const nlohmann::json& description,
                        const std::string& directory);
std::string format_buffer(const TypedBuffer& buffer, u64 first, u64 count);

}  // namespace rocflash::sim::tool
