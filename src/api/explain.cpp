// The explain functions of the C ABI: kernel selection as JSON.
#include "gpu/explain.hpp"

#include <charconv>
#include <cstring>
#include <string>

#include "api/check.hpp"
#include "core/error.hpp"
#include "gpu/backend.hpp"
#include "gpu/family.hpp"

namespace rocflash {
namespace {

// A JSON value under construction. Objects and arrays separate their own entries.
class JsonText {
 public:
  JsonText& key(const char* name) {
    string(name);
    text_ += ':';
    separate_ = false;
    return *this;
  }
  void string(std::string_view value) {
    entry();
    text_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += static_cast<unsigned char>(c) < ' ' ? ' ' : c;  // messages have no other controls
    }
    text_ += '"';
  }
  void number(std::int64_t value) {
    entry();
    char digits[24];
    text_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  void literal(const char* value) {
    entry();
    text_ += value;
  }
  template <class Fill>
  void nested(const char* brackets, const Fill& fill) {
    entry();
    text_ += brackets[0];
    separate_ = false;
    fill();
    text_ += brackets[1];
    separate_ = true;
  }
  const std::string& text() const { return text_; }

 private:
  void entry() {
    if (separate_) text_ += ',';
    separate_ = true;
  }

  std::string text_;
  bool separate_ = false;
};

void write(JsonText& json, const gpu::ExplainedKernel& kernel) {
  json.key("kernel").string(kernel.name);
  json.key("operation").string(kernel.operation);
  json.key("schedule").string(kernel.schedule);
}

void write(JsonText& json, const gpu::ExplainedLaunch& launch) {
  json.nested("{}", [&] {
    write(json, launch.kernel);
    json.key("family").string(launch.family);
    json.key("grid").nested("[]", [&] {
      for (const std::uint32_t n : launch.grid) json.number(n);
    });
    json.key("block").number(launch.threads);
    json.key("dynamic_lds").number(launch.dynamic_shared);
    json.key("cluster").number(launch.cluster);
    json.key("pdl").literal(launch.pdl ? "true" : "false");
  });
}

void write(JsonText& json, const gpu::Explanation& e) {
  json.key("refusal");
  e.refusal.empty() ? json.literal("null") : json.string(e.refusal);
  json.key("features").nested("[]", [&] {
    for (const std::string& feature : e.features) json.string(feature);
  });
  json.key("splits").number(e.splits);
  json.key("workspace_bytes").number(e.workspace);
  json.key("launches").nested("[]", [&] {
    for (const gpu::ExplainedLaunch& launch : e.launches) write(json, launch);
  });
  json.key("rejected").nested("[]", [&] {
    for (const gpu::ExplainedRejection& r : e.rejected) {
      json.nested("{}", [&] {
        write(json, r.kernel);
        json.key("reason").string(r.reason);
      });
    }
  });
}

struct Selected {
  std::string arch;
  gpu::Chip chip;
};

Selected selected_chip(const char* name, const DLTensor* x, const char* arch, int units) {
  if (units < 0 || units > 1 << 16)
    refuse("units is ", units, "; it must be 0 (the default) to ", 1 << 16);
  if (arch) {
    const auto chip = gpu::chip_of(arch, units);
    if (!chip) refuse("arch is ", arch, "; it must be one of ", gpu::known_archs());
    return {arch, *chip};
  }
  if (x->device.device_type == kDLCPU)
    refuse("arch is null and ", name, " is on cpu; arch must name one of ", gpu::known_archs());
  if (units != 0) refuse("units is ", units, " and arch is null; it must be 0");
  const GpuDescription found = describe_gpu(x->device.device_type, x->device.device_id);
  return {found.arch, found.chip};
}

void write_text(const std::string& text, char* json, std::size_t* size) {
  const std::size_t needed = text.size() + 1;
  if (json && *size >= needed) std::memcpy(json, text.c_str(), needed);
  *size = needed;
}

// On the device of `x`, the argument `name`, unless `arch` names one.
template <class Call>
void explain_call(const Checked<Call>& checked, const char* name, const DLTensor* x,
                  const char* arch, int units, char* json, std::size_t* size) {
  if (!size) refuse("size is null; it receives the size of the text");
  const Selected selected = selected_chip(name, x, arch, units);
  const gpu::Explanation e = gpu::explain(checked.call, selected.chip);
  JsonText text;
  text.nested("{}", [&] {
    text.key("arch").string(selected.arch);
    text.key("family").string(
        gpu::name_of(selected.chip.has_sm90 ? kernel::Family::sm90 : selected.chip.family));
    text.key("units").number(selected.chip.units);
    write(text, e);
  });
  write_text(text.text(), json, size);
}

}  // namespace
}  // namespace rocflash

using namespace rocflash;

rocflash_status rocflash_forward_explain(const rocflash_problem* problem,
                                         const rocflash_forward_outputs* outputs, const char* arch,
                                         int32_t units, char* json, size_t* size) {
  return guarded([&] {
    explain_call(check_forward(problem, outputs, nullptr, Data::may_be_null), "q", problem->q, arch,
                 units, json, size);
  });
}

rocflash_status rocflash_backward_explain(const rocflash_problem* problem,
                                          const rocflash_backward_tensors* tensors,
                                          const char* arch, int32_t units, char* json,
                                          size_t* size) {
  return guarded([&] {
    explain_call(check_backward(problem, tensors, nullptr, Data::may_be_null), "q", problem->q,
                 arch, units, json, size);
  });
}

rocflash_status rocflash_decode_explain(const rocflash_problem* problem,
                                        const rocflash_append* append,
                                        const rocflash_forward_outputs* outputs, const char* arch,
                                        int32_t units, char* json, size_t* size) {
  return guarded([&] {
    explain_call(check_decode(problem, append, outputs, nullptr, Data::may_be_null), "q",
                 problem->q, arch, units, json, size);
  });
}

rocflash_status rocflash_combine_explain(const DLTensor* out_partial, const DLTensor* lse_partial,
                                         const DLTensor* out, const DLTensor* lse, const char* arch,
                                         int32_t units, char* json, size_t* size) {
  return guarded([&] {
    explain_call(check_combine(out_partial, lse_partial, out, lse, nullptr, Data::may_be_null),
                 "out_partial", out_partial, arch, units, json, size);
  });
}

rocflash_status rocflash_rotate_explain(const DLTensor* x, const DLTensor* cos, const DLTensor* sin,
                                        const DLTensor* cu_seqlens, const DLTensor* first,
                                        int32_t interleaved, const DLTensor* out, const char* arch,
                                        int32_t units, char* json, size_t* size) {
  return guarded([&] {
    explain_call(
        check_rotate(x, cos, sin, cu_seqlens, first, interleaved, out, nullptr, Data::may_be_null),
        "x", x, arch, units, json, size);
  });
}
