#include "fuzz/corrupt.hpp"

#include <cstring>
#include <limits>

namespace rocflash::fuzz {

void corrupt_tensor(Bytes& bytes, Tensor& t) {
  DLTensor& dl = t.dl;
  const int dim = bytes.range(0, 4);
  constexpr std::int64_t extreme[] = {0, -1, INT64_MIN, INT64_MAX, 1LL << 62, 1LL << 31};
  switch (bytes.range(0, 11)) {
    case 0:
      dl.data = nullptr;
      break;
    case 1:
      dl.byte_offset = bytes.chance(128) ? bytes.raw<std::uint64_t>() | 1 : 1;
      break;
    case 2:
      dl.ndim = bytes.raw<std::int8_t>();
      break;
    case 3:
      dl.shape = nullptr;
      break;
    case 4:
      dl.strides = nullptr;
      break;  // contiguous: no larger than the memory
    case 5:
      t.shape[dim] = bytes.pick(extreme);
      break;
    case 6:
      t.shape[dim] += bytes.range(-2, 2);
      break;
    case 7:
      // Beyond 64-bit addresses for elements of two bytes or more.
      t.stride[dim] = t.dtype() == DType::boolean || bytes.chance(128)
                          ? INT64_MIN
                          : (1LL << 62) + bytes.raw<std::uint16_t>();
      break;
    case 8:
      dl.dtype.code = bytes.byte();
      break;
    case 9:
      dl.dtype.bits = bytes.byte();
      break;
    case 10:
      dl.dtype.lanes = bytes.raw<std::uint16_t>();
      break;
    default: {
      const std::int32_t type = bytes.range(0, 20);
      std::memcpy(&dl.device.device_type, &type, sizeof type);
      dl.device.device_id = bytes.range(-1, 2);
    }
  }
  // byte_offset 1 is misaligned for all but booleans, whose memory has space for it; larger ones
  // must be odd and out of range.
  if (dl.byte_offset > 1 && t.dtype() == DType::boolean) dl.byte_offset = UINT64_MAX;
}

namespace {

void corrupt_option(Bytes& bytes, Problem& p, rocflash_problem& c) {
  switch (bytes.range(0, 15)) {
    case 0:
      c.causal = bytes.raw<std::int32_t>();
      break;
    case 1:
      p.window[0] = bytes.raw<std::int64_t>();
      p.window[1] = bytes.raw<std::int64_t>();
      c.window = p.window;
      break;
    case 2:
      c.attention_chunk = bytes.raw<std::int64_t>();
      break;
    case 3:
      p.scale = bytes.raw<float>();
      c.softmax_scale = &p.scale;
      break;
    case 4:
      c.softcap = bytes.raw<float>();
      break;
    case 5:
      c.dropout_p = bytes.raw<float>();
      break;
    case 6:
      c.deterministic = bytes.raw<std::int32_t>();
      break;
    case 7:
      c.max_seqlen_q = bytes.chance(128) ? bytes.raw<std::int64_t>() : bytes.range(0, 20);
      break;
    case 8:
      c.max_seqlen_k = bytes.chance(128) ? bytes.raw<std::int64_t>() : bytes.range(0, 20);
      break;
    case 9:
      c.num_splits = bytes.raw<std::int32_t>();
      break;
    case 10:
      c.q = nullptr;
      break;
    case 11:
      c.k = nullptr;
      break;
    case 12:
      c.v = nullptr;
      break;
    case 13:
      c.cu_seqlens_q = nullptr;
      break;
    case 14:
      c.cu_seqlens_k = nullptr;
      break;
    default:
      c.sinks = nullptr;
  }
}

void corrupt_values(Bytes& bytes, Problem& p) {
  Tensor* const ints[] = {&p.cu_q, &p.cu_k, &p.used_q, &p.used_k, &p.leftpad};
  Tensor& t = *bytes.pick(ints);
  if (t.size() == 0) return;
  const std::int64_t at = bytes.range(0, static_cast<int>(t.size()) - 1);
  t.set(at, bytes.chance(128) ? bytes.raw<std::int32_t>() : t.get(at) + bytes.range(-3, 3));
}

void corrupt_execution(Bytes& bytes, rocflash_execution& e) {
  switch (bytes.range(0, 2)) {
    case 0:
      e.backend = bytes.chance(128) ? bytes.raw<std::int32_t>() : bytes.range(-1, 6);
      break;
    case 1:
      e.num_threads = bytes.raw<std::int16_t>();
      break;
    default:
      e.stream = &e;
  }
}

}  // namespace

void corrupt(Bytes& bytes, Problem& p, Outputs& o, Call& call) {
  const auto outputs = [&]() -> Tensor& { return *o.all[bytes.byte() % std::size(o.all)]; };
  switch (bytes.range(0, 9)) {
    case 0:
    case 1: {
      const std::vector<Tensor*> all = p.inputs();
      corrupt_tensor(bytes, *all[bytes.byte() % all.size()]);
      break;
    }
    case 2:
    case 3:
      if (Tensor& t = outputs(); t) corrupt_tensor(bytes, t);
      break;
    case 4:
      corrupt_option(bytes, p, call.problem.s);
      break;
    case 5:
      corrupt_values(bytes, p);
      break;
    case 6:
      corrupt_execution(bytes, call.execution.s);
      break;
    case 7:
      switch (bytes.range(0, 3)) {
        case 0:
          corrupt_size(bytes, call.problem);
          break;
        case 1:
          corrupt_size(bytes, call.forward);
          break;
        case 2:
          corrupt_size(bytes, call.backward);
          break;
        default:
          corrupt_size(bytes, call.execution);
      }
      break;
    case 8: {  // an output that aliases another tensor
      Tensor &one = outputs(), &two = outputs();
      if (one && two && one.size() == two.size()) one.dl.data = two.dl.data;
      break;
    }
    default:
      switch (bytes.range(0, 4)) {
        case 0:
          call.forward.s.out = nullptr;
          break;
        case 1:
          call.backward.s.dout = nullptr;
          break;
        case 2:
          call.backward.s.lse = nullptr;
          break;
        case 3:
          call.backward.s.dbias = call.backward.s.dbias ? call.problem.s.bias : call.problem.s.q;
          break;
        default:
          call.backward.s.dq = call.backward.s.dk = call.backward.s.dv = nullptr;
      }
  }
}

}  // namespace rocflash::fuzz
