#include "verify/device_tensors.hpp"

#include <algorithm>

namespace rocflash::verify {
namespace {

// At most the alignment of driver allocations, and at least the one that kernels depend on.
constexpr std::size_t alignment = 16;

}  // namespace

Tensor DeviceTensors::input(const Tensor& host) {
  const Dims shape = host.shape(), strides = host.strides();
  const auto size = static_cast<std::int64_t>(size_of(host.dtype()));
  std::int64_t lowest = 0, highest = size;
  for (std::size_t n = 0; n < shape.size(); ++n) {
    if (shape[n] == 0) return {nullptr, host.dtype(), shape, strides, gpu_->dlpack()};
    (strides[n] < 0 ? lowest : highest) += (shape[n] - 1) * strides[n] * size;
  }
  const auto* first = static_cast<const std::byte*>(host.data()) + lowest;
  const auto bytes = static_cast<std::size_t>(highest - lowest);
  // The same misalignment as on the host.
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(first) % alignment;
  inputs_.push_back({GpuMemory(gpu_, offset + bytes), first, offset, bytes});
  std::byte* copy = inputs_.back().memory.data() + offset;
  gpu_->upload(copy, first, bytes);
  return {copy - lowest, host.dtype(), shape, strides, gpu_->dlpack()};
}

Tensor DeviceTensors::output(Buffer& buffer) {
  const Tensor host = buffer.tensor();
  const auto& bytes = buffer.bytes();
  outputs_.push_back({GpuMemory(gpu_, bytes.size()), &buffer});
  std::byte* copy = outputs_.back().memory.data();
  gpu_->upload(copy, bytes.data(), bytes.size());
  return {copy + (static_cast<const std::byte*>(host.data()) - bytes.data()), host.dtype(),
          host.shape(), host.strides(), gpu_->dlpack()};
}

Tensor DeviceTensors::view_or_input(const Tensor& host, const Tensor& whole, const Tensor& copy) {
  const Dims own = host.strides(), whole_strides = whole.strides();
  const bool is_view = host.data() == whole.data() && own.size() == whole_strides.size() &&
                       std::equal(own.begin(), own.end(), whole_strides.begin());
  if (!is_view) return input(host);
  return {copy.data(), host.dtype(), host.shape(), host.strides(), gpu_->dlpack()};
}

Problem DeviceTensors::input(const Problem& host) {
  Problem p = host;
  p.q = input(host.q);
  p.k = input(host.k);
  p.v = view_or_input(host.v, host.k, p.k);
  for (auto* t :
       {&p.cu_seqlens_q, &p.cu_seqlens_k, &p.seqused_q, &p.seqused_k, &p.leftpad_k, &p.mask,
        &p.alibi_slopes, &p.bias, &p.sinks, &p.block_table, &p.cache_batch_idx}) {
    if (*t) *t = input(**t);
  }
  if (host.k_descale) p.k_descale = input(*host.k_descale);
  if (host.v_descale)
    p.v_descale = p.k_descale ? view_or_input(*host.v_descale, *host.k_descale, *p.k_descale)
                              : input(*host.v_descale);
  return p;
}

std::string DeviceTensors::copy_back() {
  for (const Input& i : inputs_) {
    std::vector<std::byte> bytes(i.bytes);
    gpu_->download(bytes.data(), i.memory.data() + i.offset, bytes.size());
    if (!std::equal(bytes.begin(), bytes.end(), i.host)) return "an input was changed";
  }
  for (const Output& o : outputs_) {
    std::vector<std::byte> bytes(o.memory.size());
    gpu_->download(bytes.data(), o.memory.data(), bytes.size());
    o.buffer->set_bytes(std::move(bytes));
  }
  return {};
}

}  // namespace rocflash::verify
