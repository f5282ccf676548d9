// Reading the metadata note. Its bytes are not trusted: LLVM's own msgpack document ends the
// process on some of what a broken file holds, so this goes through a parser that answers with
// errors.
#include "core/metadata.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace rocflash::sim {
namespace {

using Json = nlohmann::json;

// The parser is recursive; the limit prevents stack overflow.
class DepthCheck final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return ++depth_ < kDeepest; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return ++depth_ < kDeepest; }
  bool end_array() override { return --depth_ >= 0; }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  static constexpr int kDeepest = 32;
  int depth_ = 0;
};

u32 number(const Json& map, const char* key, u32 otherwise = 0) {
  const auto it = map.find(key);
  if (it == map.end()) return otherwise;
  if (it->is_boolean()) return it->get<bool>() ? 1 : 0;
  if (it->is_number_unsigned()) return static_cast<u32>(it->get<u64>());
  if (it->is_number_integer()) return static_cast<u32>(it->get<i64>());
  return otherwise;
}

std::string text(const Json& map, const char* key) {
  const auto it = map.find(key);
  return it != map.end() && it->is_string() ? it->get<std::string>() : std::string();
}

void require(bool condition) {
  if (!condition) throw std::runtime_error("the metadata note is not what the ABI describes");
}

KernelInfo kernel_of(const Json& map) {
  KernelInfo kernel;
  kernel.name = text(map, ".name");
  kernel.wave_size = static_cast<int>(number(map, ".wavefront_size"));
  kernel.kernarg_bytes = number(map, ".kernarg_segment_size");
  kernel.max_threads = number(map, ".max_flat_workgroup_size", 1024);
  kernel.sgprs = number(map, ".sgpr_count");
  kernel.vgprs = number(map, ".vgpr_count");
  kernel.agprs = number(map, ".agpr_count");
  kernel.sgpr_spills = number(map, ".sgpr_spill_count");
  kernel.vgpr_spills = number(map, ".vgpr_spill_count");
  kernel.dynamic_stack = number(map, ".uses_dynamic_stack") != 0;
  if (const auto args = map.find(".args"); args != map.end()) {
    require(args->is_array());
    for (const Json& arg : *args) {
      require(arg.is_object());
      kernel.arguments.push_back({text(arg, ".name"), text(arg, ".value_kind"),
                                  number(arg, ".offset"), number(arg, ".size")});
    }
  }
  return kernel;
}

}  // namespace

Metadata parse_metadata(std::span<const u8> note) {
  DepthCheck check;
  require(Json::sax_parse(note.begin(), note.end(), &check, Json::input_format_t::msgpack));
  const Json root = Json::from_msgpack(note.begin(), note.end());
  require(root.is_object());
  Metadata metadata;
  // "amdgcn-amd-amdhsa--gfx90a"; other compilers spell the triple differently.
  const std::string target = text(root, "amdhsa.target");
  if (const auto at = target.rfind("gfx"); at != target.npos) metadata.target = target.substr(at);
  const auto version = root.find("amdhsa.version");
  if (version != root.end() && version->is_array() && version->size() == 2 &&
      (*version)[1].is_number_unsigned()) {
    metadata.minor = static_cast<int>(std::min<u64>((*version)[1].get<u64>(), 99));
  }
  const auto kernels = root.find("amdhsa.kernels");
  if (kernels == root.end()) return metadata;
  require(kernels->is_array());
  for (const Json& kernel : *kernels) {
    require(kernel.is_object());
    metadata.kernels.push_back(kernel_of(kernel));
    metadata.descriptors.push_back(text(kernel, ".symbol"));
  }
  return metadata;
}

}  // namespace rocflash::sim
