// Memory, streams and events of a GPU, for the command and the tests: through the very driver that
// the library found, but not through the library, which does none of this.
#pragma once

#include <rocflash/rocflash.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace rocflash::verify {

// A device by the name that people type: "cpu", "hip:0", "cuda:1". Throws Error for other names.
struct DeviceName {
  explicit DeviceName(const std::string& text);

  std::string driver;  // "hip", "cuda"; empty for the CPU
  int index = 0;

  bool gpu() const { return !driver.empty(); }
  DLDevice dlpack() const {
    return {!gpu() ? kDLCPU : driver == "hip" ? kDLROCM : kDLCUDA, gpu() ? index : 0};
  }
};

class Gpu {
 public:
  using Stream = void*;
  using Event = void*;

  // Throws Error with the library's reason when that device cannot be used.
  static std::shared_ptr<Gpu> open(const DeviceName& name);
  virtual ~Gpu() = default;

  const rocflash_device& about() const { return about_; }
  DLDevice dlpack() const { return about_.device; }

  // All of them throw Error with the driver's message. Copies and fills have happened when they
  // return.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* to, unsigned char value, std::size_t bytes) = 0;

  // From memory of the GPU to memory of the GPU, on a stream.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;

  virtual Stream make_stream() = 0;
  virtual void drop_stream(Stream stream) noexcept = 0;
  virtual void wait(Stream stream) = 0;

  virtual Event make_event() = 0;
  virtual void drop_event(Event event) noexcept = 0;
  virtual void record(Event event, Stream stream) = 0;
  virtual double seconds(Event begin, Event end) = 0;  // waits for the second

  // Of the last launch: what the simulator counted, as JSON. Empty on hardware.
  virtual std::string counters() { return {}; }
  virtual void count_launches(bool) {}
  // What the simulator's cycle model says: all launches since predict(true), in seconds, and the
  // last one as JSON. 0 and empty on hardware.
  virtual void predict(bool) {}
  virtual double predicted_seconds() { return 0; }
  virtual std::string prediction() { return {}; }

 protected:
  rocflash_device about_{};
};

// Memory of a GPU that frees itself.
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
