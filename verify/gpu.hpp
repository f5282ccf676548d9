// Memory, streams and events of a GPU for the command and the tests. They call the driver that the
// library loaded, since the library has no such functions.
#pragma once

#include <rocflash/rocflash.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace rocflash::verify {

// A parsed device name: "cpu", "hip:0" or its alias "rocm:0", "cuda:1", "sim:gfx942" (the
// simulator). Throws Error for other names.
struct DeviceName {
  explicit DeviceName(const std::string& text);

  std::string driver;  // "hip", "cuda"; empty for the CPU
  int index = 0;
  std::string simulated;  // the architecture that the simulator has; empty for other devices

  bool gpu() const { return !driver.empty(); }
  DLDevice dlpack() const {
    return {!gpu() ? kDLCPU : driver == "hip" ? kDLROCM : kDLCUDA, gpu() ? index : 0};
  }
};

class Gpu {
 public:
  using Stream = void*;
  using Event = void*;

  // Throws Error with the library's reason if the device cannot be used.
  static std::shared_ptr<Gpu> open(const DeviceName& name);
  virtual ~Gpu() = default;

  const rocflash_device& about() const { return about_; }
  DLDevice dlpack() const { return about_.device; }

  // All functions throw Error with the driver's message. Copies and fills are synchronous.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* to, unsigned char value, std::size_t bytes) = 0;

  // Asynchronous device-to-device copy.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;

  virtual Stream make_stream() = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;
  virtual void wait(Stream stream) = 0;

  virtual Event make_event() = 0;
  virtual void destroy_event(Event event) noexcept = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual double seconds(Event begin, Event end) = 0;  // waits for `end`

  // The simulator's counters of the last launch, as JSON. Empty on hardware.
  virtual std::string counters() { return {}; }
  virtual void count_launches(bool) {}
  // Predictions of the simulator's cycle model: the seconds of all launches since predict(true),
  // and the last launch as JSON. 0 and empty on hardware.
  virtual void predict(bool) {}
  virtual double predicted_seconds() { return 0; }
  virtual std::string prediction() { return {}; }

 protected:
  rocflash_device about_{};
};

// Owns GPU memory.
class GpuMemory {
 public:
  GpuMemory(std::shared_ptr<Gpu> gpu, std::size_t bytes)
      : gpu_(std::move(gpu)), bytes_(bytes), data_(bytes > 0 ? gpu_->allocate(bytes) : nullptr) {}
  GpuMemory(GpuMemory&& other) noexcept
      : gpu_(std::move(other.gpu_)),
        bytes_(other.bytes_),
        data_(std::exchange(other.data_, nullptr)) {}
  GpuMemory& operator=(GpuMemory&&) = delete;
  ~GpuMemory() {
    if (data_) gpu_->release(data_);
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return bytes_; }

 private:
  std::shared_ptr<Gpu> gpu_;
  std::size_t bytes_;
  void* data_;
};

}  // namespace rocflash::verify
