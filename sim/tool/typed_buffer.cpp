// Numbers of all the types kernels use, to and from bytes.
#include "tool/typed_buffer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/memory.h"
#include "isa/lane_math.h"

namespace rocflash::sim::tool {
namespace {

template <typename T>
T get(const u8* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void put(u8* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

u64 integer(const nlohmann::json& value) {
  if (value.is_number_unsigned()) return value.get<u64>();
  if (!value.is_number_float()) return static_cast<u64>(value.get<i64>());
  const double x = value.get<double>();
  if (!(std::abs(x) <= 0x1p62)) throw std::invalid_argument(value.dump() + " is not an integer");
  return static_cast<u64>(static_cast<i64>(x));
}

bool is_float(const std::string& type) { return type[0] == 'f' || type[0] == 'b'; }

}  // namespace

u64 type_bytes(const std::string& type) {
  for (const auto& [name, bytes] : {std::pair{"f64", 8},
                                    {"i64", 8},
                                    {"u64", 8},
                                    {"f32", 4},
                                    {"i32", 4},
                                    {"u32", 4},
                                    {"f16", 2},
                                    {"bf16", 2},
                                    {"i16", 2},
                                    {"u16", 2},
                                    {"i8", 1},
                                    {"u8", 1}}) {
    if (type == name) return static_cast<u64>(bytes);
  }
  throw std::invalid_argument("unknown type '" + type +
                              "'; there are f64 f32 f16 bf16 i64 u64 i32 u32 i16 u16 i8 u8");
}

u64 TypedBuffer::bytes() const { return count * type_bytes(type); }

double read_number(const std::string& type, const u8* at) {
  if (type == "f64") return get<double>(at);
  if (type == "f32") return static_cast<double>(get<float>(at));
  if (type == "f16") return static_cast<double>(get<f16>(at));
  if (type == "bf16") return static_cast<double>(float(bf16{get<u16>(at)}));
  if (type == "i64") return static_cast<double>(get<i64>(at));
  if (type == "u64") return static_cast<double>(get<u64>(at));
  if (type == "i32") return get<i32>(at);
  if (type == "u32") return get<u32>(at);
  if (type == "i16") return get<i16>(at);
  if (type == "u16") return get<u16>(at);
  if (type == "i8") return get<i8>(at);
  return get<u8>(at);
}

void write_number(const std::string& type, u8* at, const nlohmann::json& value) {
  if (is_float(type)) {
    const double x = value.get<double>();
    if (type == "f64") put<double>(at, x);
    if (type == "f32") put<float>(at, static_cast<float>(x));
    if (type == "f16") put<f16>(at, static_cast<f16>(x));
    if (type == "bf16") put<u16>(at, to_bf16(static_cast<float>(x)));
    return;
  }
  const u64 bytes = type_bytes(type);
  const u64 x = integer(value);
  // What is left out must be zeros, or the sign's copies.
  const u64 rest = bytes == 8 ? 0 : x >> (8 * bytes - (x >> 63));
  if (rest != 0 && rest != ~u64{0} >> (8 * bytes - 1)) {
    throw std::invalid_argument(fmt::format("{} does not fit {}", value.dump(), type));
  }
  std::memcpy(at, &x, bytes);
}

void reject_unknown_keys(const nlohmann::json& d, const std::string& what,
                         std::initializer_list<const char*> known) {
  if (!d.is_object()) throw std::invalid_argument(what + " must be an object, not " + d.dump());
  for (const auto& [key, value] : d.items()) {
    if (std::ranges::any_of(known, [&](const char* k) { return key == k; })) continue;
    throw std::invalid_argument(
        fmt::format("{} has no '{}'; there are {}", what, key, fmt::join(known, ", ")));
  }
}

TypedBuffer make_buffer(const std::string& name, const nlohmann::json& d,
                        const std::string& directory) {
  reject_unknown_keys(d, "buffer '" + name + "'",
                      {"type", "count", "values", "fill", "iota", "random", "file"});
  TypedBuffer b;
  b.name = name;
  b.type = d.value("type", "f32");
  b.count = d.contains("count") ? integer(d["count"]) : 0;
  const u64 size = type_bytes(b.type);
  std::vector<char> file;
  if (d.contains("file")) {
    const std::string path =
        (std::filesystem::path(directory) / d["file"].get<std::string>()).string();
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::invalid_argument("cannot read " + path);
    file.assign(std::istreambuf_iterator<char>(in), {});
    if (b.count == 0) b.count = file.size() / size;
  }
  if (d.contains("values") && b.count == 0) b.count = d["values"].size();
  if (b.count == 0) throw std::invalid_argument("buffer '" + name + "' needs a count");
  if (b.count <= ~u64{0} / size)
    b.data = static_cast<u8*>(Memory::instance().allocate(b.bytes(), "buffer " + name, true, 0));
  if (b.data == nullptr) {
    throw std::invalid_argument(
        fmt::format("buffer '{}': no memory for {} x {}", name, b.count, b.type));
  }
  if (d.contains("file") && file.size() < b.bytes()) {
    throw std::invalid_argument(fmt::format("buffer '{}': its file has {} bytes; it needs {}", name,
                                            file.size(), b.bytes()));
  }
  const auto fill = [&](auto value_of) {
    for (u64 i = 0; i < b.count; ++i) write_number(b.type, b.data + i * size, value_of(i));
    b.initialized = true;
  };
  if (!file.empty()) {
    std::memcpy(b.data, file.data(), b.bytes());
    b.initialized = true;
  } else if (d.contains("values")) {
    const auto& values = d["values"];
    if (!values.is_array() || values.empty())
      throw std::invalid_argument("buffer '" + name + "': values must be numbers in brackets");
    fill([&](u64 i) { return values.at(i % values.size()); });
  } else if (d.contains("fill")) {
    fill([&](u64) { return d["fill"]; });
  } else if (d.contains("iota")) {
    const double start = d["iota"].get<double>();
    fill([&](u64 i) { return nlohmann::json(start + static_cast<double>(i)); });
  } else if (d.contains("random")) {
    std::mt19937_64 random(integer(d["random"]));
    if (is_float(b.type)) {
      std::normal_distribution<double> normal;
      fill([&](u64) { return nlohmann::json(normal(random)); });
    } else {
      const u64 mask = ~u64{0} >> (64 - 8 * size);
      fill([&](u64) { return nlohmann::json(static_cast<u64>(random()) & mask); });
    }
  }
  if (b.initialized) Memory::instance().mark_defined(b.data, b.bytes());
  return b;
}

std::string format_buffer(const TypedBuffer& b, u64 first, u64 count) {
  std::string out = fmt::format("{} ({} x {}):\n", b.name, b.count, b.type);
  const u64 size = type_bytes(b.type);
  const u64 end = first + std::min(count, b.count - std::min(first, b.count));
  constexpr u64 kPerLine = 8;
  for (u64 i = first; i < end; i += kPerLine) {
    out += fmt::format("  [{:>6}]", i);
    for (u64 j = i; j < std::min(end, i + kPerLine); ++j) {
      out += fmt::format(" {:>12.6g}", read_number(b.type, b.data + j * size));
    }
    out += '\n';
  }
  if (end < b.count) out += fmt::format("  ... {} more\n", b.count - end);
  return out;
}

}  // namespace rocflash::sim::tool
