#include "core/error.hpp"

#include <exception>
#include <new>
#include <system_error>

namespace rocflash::core {
namespace {

// A fixed buffer: leaving a message must not need memory, since running out of it is one of the
// messages.
thread_local char message[1024] = "";

rocflash_status leave(rocflash_status status, const char* words) noexcept {
  std::snprintf(message, sizeof message, "%s", words);
  return status;
}

}  // namespace

rocflash_status guarded(void (*body)(void*), void* context) noexcept {
  try {
    body(context);
    return ROCFLASH_OK;
  } catch (const Refusal& refusal) {
    return leave(refusal.status(), refusal.message().c_str());
  } catch (const std::bad_alloc&) {
    return leave(ROCFLASH_OUT_OF_MEMORY, "out of memory");
  } catch (const std::system_error& error) {
    return leave(ROCFLASH_OUT_OF_MEMORY, error.what());
  } catch (const std::exception& error) {
    return leave(ROCFLASH_INTERNAL, error.what());
  } catch (...) {
    return leave(ROCFLASH_INTERNAL, "an unknown exception");
  }
}

const char* last_error() noexcept { return message; }

}  // namespace rocflash::core
