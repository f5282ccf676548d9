#include "core/error.hpp"

#include <exception>
#include <new>
#include <system_error>

namespace rocflash::core {
namespace {

// A fixed buffer: reporting out-of-memory must not allocate.
thread_local char message[1024] = "";

rocflash_status set_error(rocflash_status status, const char* text) noexcept {
  std::snprintf(message, sizeof message, "%s", text);
  return status;
}

}  // namespace

rocflash_status guarded(void (*body)(void*), void* context) noexcept {
  try {
    body(context);
    return ROCFLASH_OK;
  } catch (const Refusal& refusal) {
    return set_error(refusal.status(), refusal.message().c_str());
  } catch (const std::bad_alloc&) {
    return set_error(ROCFLASH_OUT_OF_MEMORY, "out of memory");
  } catch (const std::system_error& error) {
    return set_error(ROCFLASH_OUT_OF_MEMORY, error.what());
  } catch (const std::exception& error) {
    return set_error(ROCFLASH_INTERNAL, error.what());
  } catch (...) {
    return set_error(ROCFLASH_INTERNAL, "an unknown exception");
  }
}

const char* last_error() noexcept { return message; }

}  // namespace rocflash::core
