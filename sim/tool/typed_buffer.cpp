// Numbers of all the types kernels use, to and from bytes.
#include "tool/typed_buffer.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/memory.h"
#include "isa/scalar_math.h"

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
  const u64 x = value.is_number_float() ? static_cast<u64>(static_cast<i64>(value.get<double>()))
                : value.is_number_unsigned() ? value.get<u64>()
                                             : static_cast<u64>(value.get<i64>());
  std::memcpy(at, &x, type_bytes(type));
}

TypedBuffer make_buffer(const std::string& name, const nlohmann::json& d,
                        const std::string& directory) {
  TypedBuffer b;
  b.name = name;
  b.type = d.value("type", "f32");
  b.count = d.value("count", u64{0});
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
  b.data = static_cast<u8*>(Memory::instance().allocate(b.bytes(), "buffer " + name, true, 0));
  if (b.data == nullptr) throw std::bad_alloc();
  const auto fill = [&](auto value_of) {
    for (u64 i = 0; i < b.count; ++i) write_number(b.type, b.data + i * size, value_of(i));
    b.initialised = true;
  };
  if (!file.empty()) {
    std::memcpy(b.data, file.data(), std::min<u64>(file.size(), b.bytes()));
    b.initialised = true;
  } else if (d.contains("values")) {
    const auto& values = d["values"];
    fill([&](u64 i) { return values.at(i % values.size()); });
  } else if (d.contains("fill")) {
    fill([&](u64) { return d["fill"]; });
  } else if (d.contains("iota")) {
    const double start = d["iota"].get<double>();
    fill([&](u64 i) { return nlohmann::json(start + static_cast<double>(i)); });
  } else if (d.contains("random")) {
    std::mt19937_64 random(d["random"].get<u64>());
    if (is_float(b.type)) {
      std::normal_distribution<double> normal;
      fill([&](u64) { return nlohmann::json(normal(random)); });
    } else {
      fill([&](u64) { return nlohmann::json(static_cast<u64>(random())); });
    }
  }
  if (b.initialised) Memory::instance().mark_defined(b.data, b.bytes());
  return b;
}

std::string format_buffer(const TypedBuffer& b, u64 first, u64 count) {
  std::string out = fmt::format("{} ({} x {}):\n", b.name, b.count, b.type);
  const u64 size = type_bytes(b.type);
  const u64 end = std::min(b.count, first + count);
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
