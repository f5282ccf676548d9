// How a call is refused inside the library, and the text it leaves for rocflash_last_error.
#pragma once

#include <rocflash/rocflash.h>

#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "core/names.hpp"

namespace rocflash::core {

// Thrown by checks, caught at the door. Never crosses the C ABI.
class Refusal {
 public:
  Refusal(rocflash_status status, std::string message)
      : status_(status), message_(std::move(message)) {}
  rocflash_status status() const { return status_; }
  const std::string& message() const { return message_; }

 private:
  rocflash_status status_;
  std::string message_;
};

inline std::string to_text(std::string_view s) { return std::string(s); }
inline std::string to_text(std::integral auto n) { return std::to_string(n); }
inline std::string to_text(std::floating_point auto x) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", static_cast<double>(x));
  return buffer;
}

template <class... Parts>
std::string text(const Parts&... parts) {
  return (std::string() + ... + to_text(parts));
}

// "argument: what it is; what is allowed"
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Refusal(ROCFLASH_INVALID_ARGUMENT, text(parts...));
}
template <class... Parts>
[[noreturn]] void refuse_unsupported(const Parts&... parts) {
  throw Refusal(ROCFLASH_UNSUPPORTED, text(parts...));
}

// Runs body and turns whatever it throws into a status and this thread's message.
rocflash_status guarded(void (*body)(void*), void* context) noexcept;

template <class Body>
rocflash_status guarded(Body body) noexcept {
  return guarded([](void* b) { (*static_cast<Body*>(b))(); }, &body);
}

const char* last_error() noexcept;

}  // namespace rocflash::core
