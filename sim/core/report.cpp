// Fault reports as text and as JSON.
#include "core/report.h"

#include <array>

#include "core/report_writer.h"

namespace rocflash::sim {

std::string_view fault_name(Fault fault) {
  constexpr std::array<std::string_view, 13> names = {
      "unknown-instruction", "out-of-bounds", "freed-memory", "lds-out-of-bounds",
      "undefined",           "lds-race",      "global-race",  "missing-wait",
      "divergent-barrier",   "misaligned",    "no-progress",  "trap",
      "bad-program"};
  return names[static_cast<std::size_t>(fault)];
}

void raise(Fault fault, std::string message, int lane) {
  throw FaultError{fault, std::move(message), lane, false, 0};
}

void raise_at(Fault fault, std::string message, int lane, u64 address) {
  throw FaultError{fault, std::move(message), lane, true, address};
}

std::string Report::text() const {
  std::string out =
      fmt::format("rocflash-sim: {}: {}\n  kernel      {}\n", fault_name(fault), message, kernel);
  if (!instruction.empty()) {
    out += fmt::format("  instruction {}   ({}, code offset {:#x})\n", instruction, location, pc);
  }
  if (!source.empty()) out += fmt::format("  source      {}\n", source);
  out += fmt::format("  workgroup   ({}, {}, {})", group[0], group[1], group[2]);
  if (wave >= 0) out += fmt::format("  wave {}", wave);
  if (lane >= 0) out += fmt::format("  lane {}", lane);
  out += '\n';
  if (has_address) out += fmt::format("  address     {:#x}\n", address);
  if (!allocation.empty()) out += fmt::format("  nearest     {}\n", allocation);
  return out;
}

std::string Report::json() const {
  nlohmann::ordered_json j = {{"fault", fault_name(fault)},
                              {"message", message},
                              {"kernel", kernel},
                              {"instruction", instruction},
                              {"location", location},
                              {"source", source},
                              {"pc", pc},
                              {"workgroup", group},
                              {"wave", wave},
                              {"lane", lane}};
  if (has_address) j["address"] = address;
  j["allocation"] = allocation;
  return json_line(j);
}

}  // namespace rocflash::sim
