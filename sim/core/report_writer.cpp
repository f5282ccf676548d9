// JSON of launches' results.
#include "core/report_writer.h"

namespace rocflash::sim {
namespace {

std::string dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string json_line(const nlohmann::ordered_json& fields) { return dump(fields); }

std::string json_line(Fields fields) {
  nlohmann::ordered_json all;
  for (const auto& [name, value] : fields) all[std::string(name)] = value;
  return dump(all);
}

std::string json_text(std::string_view text) { return dump(std::string(text)); }

}  // namespace rocflash::sim
