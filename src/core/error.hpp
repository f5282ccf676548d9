// Exceptions of validation, and the message of rocflash_last_error.
#pragma once

#include <rocflash/rocflash.h>

#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "core/names.hpp"

namespace rocflash::core {

// Thrown by validation and caught by the entry points; never crosses the C ABI.
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

template <class... Values>
std::string text(const Values&... values) {
  return (std::string() + ... + to_text(values));
}

// Messages are sentences: "argument is value; it must be ..."
template <class... Values>
[[noreturn]] void refuse(const Values&... values) {
  throw Refusal(ROCFLASH_INVALID_ARGUMENT, text(values...));
}
template <class... Values>
[[noreturn]] void refuse_unsupported(const Values&... values) {
  throw Refusal(ROCFLASH_UNSUPPORTED, text(values...));
}

// Runs body and converts exceptions to a status and this thread's error message.
rocflash_status guarded(void (*body)(void*), void* context) noexcept;

template <class Body>
rocflash_status guarded(Body body) noexcept {
  return guarded([](void* b) { (*static_cast<Body*>(b))(); }, &body);
}

const char* last_error() noexcept;

}  // namespace rocflash::core
