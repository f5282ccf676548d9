// Bad calls, first part: structs, and what can be wrong with a tensor on its own.
#include <cstdint>

#include "api/refusals.hpp"

namespace rocflash::test {
namespace {

template <class Struct>
std::string size_message(const char* name, std::size_t size) {
  return std::string(name) + ".struct_size: " + std::to_string(size) + "; it must be sizeof(*" +
         name + "), " + std::to_string(sizeof(Struct)) +
         " or more for a newer caller, at most 4096";
}

// A struct of tomorrow: today's, with a field after it.
template <class Struct>
struct Grown {
  explicit Grown(const Struct& given) : today(given) { today.struct_size = sizeof *this; }
  Struct today;
  std::uint64_t tomorrow = 1;
};

template <class Struct>
std::string grown_message(const char* name) {
  return std::string(name) + ": byte " + std::to_string(sizeof(Struct)) + " of " +
         std::to_string(sizeof(Grown<Struct>)) +
         " is set; the caller uses an option newer than this library (0.1)";
}

std::int64_t two_dims[] = {3, 5};
std::int64_t five_dims[] = {1, 3, 2, 4, 1};
std::int64_t negative[] = {1, -3, 2, 4};
std::int64_t countless[] = {1LL << 40, 1LL << 40, 2, 4};
std::int64_t far_apart[] = {0, INT64_MAX / 2, 4, 1};
std::int64_t far_in_sum[] = {0, INT64_MAX / 2, INT64_MAX / 2, 1};
std::int64_t far_in_bytes[] = {0, INT64_MAX / 8, 4, 1};
std::int64_t lowest[] = {0, INT64_MIN, 4, 1};
std::int64_t every_second[] = {0, 16, 8, 2};

}  // namespace

std::vector<BadCall> bad_structs_and_tensors() {
  return {
      {"problem_null", "problem: is null", [](Call&) {},
       [](Call& c) { return rocflash_forward(nullptr, &c.forward_outputs, &c.execution); }},
      {"outputs_null", "outputs: is null", [](Call&) {},
       [](Call& c) { return rocflash_forward(&c.problem, nullptr, &c.execution); }},
      {"tensors_null", "tensors: is null", [](Call&) {},
       [](Call& c) { return rocflash_backward(&c.problem, nullptr, &c.execution); }},
      {"bytes_null", "bytes: is null, but it is where the answer goes", [](Call&) {},
       [](Call& c) {
         return rocflash_forward_workspace(&c.problem, &c.forward_outputs, &c.execution, nullptr);
       }},
      {"backward_bytes_null", "bytes: is null, but it is where the answer goes", [](Call&) {},
       [](Call& c) {
         return rocflash_backward_workspace(&c.problem, &c.backward_tensors, &c.execution, nullptr);
       }},
      {"problem_size_unset", size_message<rocflash_problem>("problem", 0),
       [](Call& c) { c.problem.struct_size = 0; }},
      {"problem_size_small",
       size_message<rocflash_problem>("problem", sizeof(rocflash_problem) - 1),
       [](Call& c) { --c.problem.struct_size; }},
      {"problem_size_garbage", size_message<rocflash_problem>("problem", 0x5a5a5a5a5a5a5a5a),
       [](Call& c) { c.problem.struct_size = 0x5a5a5a5a5a5a5a5a; }},
      {"outputs_size_small", size_message<rocflash_forward_outputs>("outputs", 8),
       [](Call& c) { c.forward_outputs.struct_size = 8; }},
      {"execution_size_unset", size_message<rocflash_execution>("execution", 0),
       [](Call& c) { c.execution.struct_size = 0; }},
      {"tensors_size_large", size_message<rocflash_backward_tensors>("tensors", 4097),
       [](Call& c) { c.backward_tensors.struct_size = 4097; }, backward},
      {"problem_newer_option", grown_message<rocflash_problem>("problem"), [](Call&) {},
       [](Call& c) {
         const Grown<rocflash_problem> grown(c.problem);
         return rocflash_forward(&grown.today, &c.forward_outputs, &c.execution);
       },
       ROCFLASH_UNSUPPORTED},
      {"execution_newer_option", grown_message<rocflash_execution>("execution"), [](Call&) {},
       [](Call& c) {
         const Grown<rocflash_execution> grown(c.execution);
         return rocflash_backward(&c.problem, &c.backward_tensors, &grown.today);
       },
       ROCFLASH_UNSUPPORTED},

      {"q_null", "q: is null, but it is needed", [](Call& c) { c.problem.q = nullptr; }},
      {"k_null", "k: is null, but it is needed", [](Call& c) { c.problem.k = nullptr; }},
      {"v_null", "v: is null, but it is needed", [](Call& c) { c.problem.v = nullptr; }, backward},
      {"q_complex",
       "q: DLPack dtype (code 5, bits 64, lanes 1); allowed are f32, f16, bf16, and where they are "
       "asked "
       "for i32, bool, uint8 and f64",
       [](Call& c) { c.q.dl.dtype = {kDLComplex, 64, 1}; }},
      {"k_lanes",
       "k: DLPack dtype (code 2, bits 32, lanes 4); allowed are f32, f16, bf16, and where they are "
       "asked "
       "for i32, bool, uint8 and f64",
       [](Call& c) { c.k.dl.dtype.lanes = 4; }},
      {"v_int64",
       "v: dtype i64; allowed are f32, f16 and bf16, and i32 where whole numbers are asked for",
       [](Call& c) { c.v.dl.dtype = {kDLInt, 64, 1}; }},
      {"q_int", "q: dtype i32; it must be f32 or f16 or bf16 or f64",
       [](Call& c) { c.q.dl.dtype = dl_dtype(DType::i32); }},
      {"q_f64_for_plain", "q: dtype f64; the plain backend takes f32, f16 and bf16",
       [](Call& c) {
         for (HostTensor* t : {&c.q, &c.k, &c.v, &c.out}) *t = HostTensor(DType::f64, t->shape());
         c.backend(ROCFLASH_BACKEND_PLAIN);
       },
       forward, ROCFLASH_UNSUPPORTED},
      {"v_is_not_as_k", "v: dtype f32; it must be f16",
       [](Call& c) { c.k = HostTensor(DType::f16, c.k.shape()); }},
      {"v_other_dtype", "v: dtype bf16; it must be f32",
       [](Call& c) { c.v = HostTensor(DType::bf16, c.v.shape()); }},
      {"q_no_dimensions", "q: 0 dimensions; allowed are 1 to 5", [](Call& c) { c.q.dl.ndim = 0; }},
      {"k_negative_dimensions", "k: -1 dimensions; allowed are 1 to 5",
       [](Call& c) { c.k.dl.ndim = -1; }},
      {"q_five_dimensions", "q: shape (1, 3, 2, 4, 1) has 5 dimensions; it must be (b, sq, h, d)",
       [](Call& c) {
         c.q.dl.ndim = 5;
         c.q.dl.shape = five_dims;
         c.q.dl.strides = nullptr;
       }},
      {"q_six_dimensions", "q: 6 dimensions; allowed are 1 to 5", [](Call& c) { c.q.dl.ndim = 6; }},
      {"k_wider_than_q", "k: dtype f32; it must be f16",
       [](Call& c) { c.q = HostTensor(DType::f16, c.q.shape()); }},
      {"gradients_of_halved_keys", "k: dtype f16; gradients need the dtype of q, f32",
       [](Call& c) {
         c.k = HostTensor(DType::f16, c.k.shape());
         c.v = HostTensor(DType::f16, c.v.shape());
       },
       backward, ROCFLASH_UNSUPPORTED},
      {"q_f64_for_cpu",
       "q: dtype f64; only the reference backend takes it, others f32, f16 and bf16",
       [](Call& c) {
         for (HostTensor* t : {&c.q, &c.k, &c.v, &c.out}) *t = HostTensor(DType::f64, t->shape());
         c.backend(ROCFLASH_BACKEND_CPU);
       },
       forward, ROCFLASH_UNSUPPORTED},
      {"q_two_dimensions", "q: shape (3, 5) has 2 dimensions; it must be (b, sq, h, d)",
       [](Call& c) {
         c.q.dl.ndim = 2;
         c.q.dl.shape = two_dims;
         c.q.dl.strides = nullptr;
       }},
      {"q_shape_null", "q: shape is null, but it has 4 dimensions",
       [](Call& c) { c.q.dl.shape = nullptr; }},
      {"q_negative_size", "q: size -3 in dimension 1; it must not be negative",
       [](Call& c) { c.q.dl.shape = negative; }},
      {"q_countless",
       "q: shape (1099511627776, 1099511627776, 2, 4) has more elements than 64 bits can count",
       [](Call& c) {
         c.q.dl.shape = countless;
         c.q.dl.strides = nullptr;
       }},
      {"q_stride_overflow",
       "q: shape (1, 3, 2, 4) with stride 4 in dimension 2 reaches beyond 64-bit addresses",
       [](Call& c) { c.q.dl.strides = far_apart; }},
      {"q_stride_sum_overflow",
       "q: shape (1, 3, 2, 4) with stride 4611686018427387903 in dimension 2 reaches beyond 64-bit "
       "addresses",
       [](Call& c) { c.q.dl.strides = far_in_sum; }},
      {"q_stride_bytes_overflow",
       "q: shape (1, 3, 2, 4) and its strides reach beyond 64-bit addresses",
       [](Call& c) { c.q.dl.strides = far_in_bytes; }},
      {"q_stride_lowest", "q: stride -9223372036854775808 in dimension 1; it must be above that",
       [](Call& c) { c.q.dl.strides = lowest; }},
      {"q_last_stride", "q: stride 2 in its last dimension; it must be 1",
       [](Call& c) { c.q.dl.strides = every_second; }},
      {"q_data_null", "q: data is null, but its shape is (1, 3, 2, 4)",
       [](Call& c) { c.q.dl.data = nullptr; }},
      {"v_misaligned", "v: data is not aligned to its 4-byte elements",
       [](Call& c) { c.v.dl.byte_offset = 2; }},
      {"k_offset_wraps", "k: byte_offset 18446744073709551615 reaches beyond 64-bit addresses",
       [](Call& c) { c.k.dl.byte_offset = UINT64_MAX; }},
      {"reference_on_cuda", "backend: 2 (reference); q is on cuda:1, where it must be 0 (auto)",
       [](Call& c) { c.q.dl.device = {kDLCUDA, 1}; }},
      {"cpu_on_rocm", "backend: 1 (cpu); q is on rocm:0, where it must be 0 (auto)",
       [](Call& c) { c.backend(ROCFLASH_BACKEND_CPU).q.dl.device = {kDLROCM, 0}; }, backward},
      {"no_such_backend_on_rocm", "backend: 5; q is on rocm:0, where it must be 0 (auto)",
       [](Call& c) {
         c.q.dl.device = {kDLROCM, 0};
         c.execution.backend = 5;
       }},
      {"q_on_unknown", "q: is on DLPack device type 99; allowed are cpu, rocm and cuda",
       [](Call& c) {
         const int unknown = 99;
         std::memcpy(&c.q.dl.device.device_type, &unknown, sizeof unknown);
       },
       forward, ROCFLASH_UNSUPPORTED},
      {"k_on_rocm", "k: is on rocm:2; all tensors must be on cpu, where q is",
       [](Call& c) { c.k.dl.device = {kDLROCM, 2}; }},
      {"out_on_cuda", "out: is on cuda:0; all tensors must be on cpu, where q is",
       [](Call& c) { c.out.dl.device = {kDLCUDA, 0}; }},
      {"bias_on_metal", "bias: is on DLPack device type 8; all tensors must be on cpu, where q is",
       [](Call& c) { c.with_bias().bias.dl.device = {kDLMetal, 0}; }},
  };
}

}  // namespace rocflash::test
