// Invalid calls: structs and single tensors.
#include <cstdint>

#include "api/refusals.hpp"

namespace rocflash::test {
namespace {

template <class Struct>
std::string size_message(const char* name, std::size_t size, std::size_t least = sizeof(Struct)) {
  return std::string(name) + ".struct_size is " + std::to_string(size) + "; it must be sizeof(*" +
         name + "): at least " + std::to_string(least) + ", at most 4096 and a multiple of 8";
}

// The struct of a newer header: one more field.
template <class Struct>
struct Grown {
  explicit Grown(const Struct& given) : known(given) { known.struct_size = sizeof *this; }
  Struct known;
  std::uint64_t added = 1;
};

template <class Struct>
std::string grown_message(const char* name) {
  return std::string(name) + " has a nonzero byte " + std::to_string(sizeof(Struct)) + " of " +
         std::to_string(sizeof(Grown<Struct>)) +
         "; the caller uses an option newer than this library (0.1)";
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
      {"problem_null", "problem is null; it is required", [](Call&) {},
       [](Call& c) { return rocflash_forward(nullptr, &c.forward_outputs, &c.execution); }},
      {"outputs_null", "outputs is null; it is required", [](Call&) {},
       [](Call& c) { return rocflash_forward(&c.problem, nullptr, &c.execution); }},
      {"tensors_null", "tensors is null; it is required", [](Call&) {},
       [](Call& c) { return rocflash_backward(&c.problem, nullptr, &c.execution); }},
      {"bytes_null", "bytes is null; it receives the workspace size", [](Call&) {},
       [](Call& c) {
         return rocflash_forward_workspace(&c.problem, &c.forward_outputs, &c.execution, nullptr);
       }},
      {"backward_bytes_null", "bytes is null; it receives the workspace size", [](Call&) {},
       [](Call& c) {
         return rocflash_backward_workspace(&c.problem, &c.backward_tensors, &c.execution, nullptr);
       }},
      {"problem_size_unset", size_message<rocflash_problem>("problem", 0, 208),
       [](Call& c) { c.problem.struct_size = 0; }},
      {"problem_size_small",
       size_message<rocflash_problem>("problem", sizeof(rocflash_problem) - 1, 208),
       [](Call& c) { --c.problem.struct_size; }},
      {"problem_size_garbage", size_message<rocflash_problem>("problem", 0x5a5a5a5a5a5a5a5a, 208),
       [](Call& c) { c.problem.struct_size = 0x5a5a5a5a5a5a5a5a; }},
      {"outputs_size_small", size_message<rocflash_forward_outputs>("outputs", 8),
       [](Call& c) { c.forward_outputs.struct_size = 8; }},
      {"execution_size_unset", size_message<rocflash_execution>("execution", 0),
       [](Call& c) { c.execution.struct_size = 0; }},
      {"tensors_size_large", size_message<rocflash_backward_tensors>("tensors", 4097, 80),
       [](Call& c) { c.backward_tensors.struct_size = 4097; }, backward},
      {"problem_newer_option", grown_message<rocflash_problem>("problem"), [](Call&) {},
       [](Call& c) {
         const Grown<rocflash_problem> grown(c.problem);
         return rocflash_forward(&grown.known, &c.forward_outputs, &c.execution);
       },
       ROCFLASH_UNSUPPORTED},
      {"execution_newer_option", grown_message<rocflash_execution>("execution"), [](Call&) {},
       [](Call& c) {
         const Grown<rocflash_execution> grown(c.execution);
         return rocflash_backward(&c.problem, &c.backward_tensors, &grown.known);
       },
       ROCFLASH_UNSUPPORTED},

      {"q_null", "q is null; it is required", [](Call& c) { c.problem.q = nullptr; }},
      {"k_null", "k is null; it is required", [](Call& c) { c.problem.k = nullptr; }},
      {"v_null", "v is null; it is required", [](Call& c) { c.problem.v = nullptr; }, backward},
      {"q_complex",
       "q has DLPack dtype (code 5, bits 64, lanes 1); supported are f32, f16, bf16, f64, i32, "
       "bool "
       "and uint8",
       [](Call& c) { c.q.dl.dtype = {kDLComplex, 64, 1}; }},
      {"k_lanes",
       "k has DLPack dtype (code 2, bits 32, lanes 4); supported are f32, f16, bf16, f64, i32, "
       "bool "
       "and uint8",
       [](Call& c) { c.k.dl.dtype.lanes = 4; }},
      {"v_int64", "v has dtype i64; it must be f32, f16 or bf16",
       [](Call& c) { c.v.dl.dtype = {kDLInt, 64, 1}; }},
      {"q_int", "q has dtype i32; it must be f32 or f16 or bf16 or f64",
       [](Call& c) { c.q.dl.dtype = dl_dtype(DType::i32); }},
      {"q_f64_for_naive", "q has dtype f64; for the naive backend it must be f32, f16 or bf16",
       [](Call& c) {
         for (HostTensor* t : {&c.q, &c.k, &c.v, &c.out}) *t = HostTensor(DType::f64, t->shape());
         c.backend(ROCFLASH_BACKEND_NAIVE);
       },
       forward, ROCFLASH_UNSUPPORTED},
      {"v_dtype_not_that_of_k", "v has dtype f32; it must be f16",
       [](Call& c) { c.k = HostTensor(DType::f16, c.k.shape()); }},
      {"v_other_dtype", "v has dtype bf16; it must be f32",
       [](Call& c) { c.v = HostTensor(DType::bf16, c.v.shape()); }},
      {"q_no_dimensions", "q has 0 dimensions; it must have 1 to 5",
       [](Call& c) { c.q.dl.ndim = 0; }},
      {"k_negative_dimensions", "k has -1 dimensions; it must have 1 to 5",
       [](Call& c) { c.k.dl.ndim = -1; }},
      {"q_five_dimensions",
       "q has shape (1, 3, 2, 4, 1) with 5 dimensions; it must be (b, sq, h, d)",
       [](Call& c) {
         c.q.dl.ndim = 5;
         c.q.dl.shape = five_dims;
         c.q.dl.strides = nullptr;
       }},
      {"q_six_dimensions", "q has 6 dimensions; it must have 1 to 5",
       [](Call& c) { c.q.dl.ndim = 6; }},
      {"q_unlike_k_and_v",
       "q has dtype f16, but k and v have dtype f32; all must have the same (f32 queries may also "
       "have f16 or bf16 keys and values)",
       [](Call& c) { c.q = HostTensor(DType::f16, c.q.shape()); }},
      {"gradients_of_f16_keys", "k has dtype f16; for backward it must have the dtype of q, f32",
       [](Call& c) {
         c.k = HostTensor(DType::f16, c.k.shape());
         c.v = HostTensor(DType::f16, c.v.shape());
       },
       backward, ROCFLASH_UNSUPPORTED},
      {"q_f64_for_cpu", "q has dtype f64; for the CPU backends it must be f32, f16 or bf16",
       [](Call& c) {
         for (HostTensor* t : {&c.q, &c.k, &c.v, &c.out}) *t = HostTensor(DType::f64, t->shape());
         c.backend(ROCFLASH_BACKEND_CPU);
       },
       forward, ROCFLASH_UNSUPPORTED},
      {"q_two_dimensions", "q has shape (3, 5) with 2 dimensions; it must be (b, sq, h, d)",
       [](Call& c) {
         c.q.dl.ndim = 2;
         c.q.dl.shape = two_dims;
         c.q.dl.strides = nullptr;
       }},
      {"q_shape_null", "q has a null shape; it must point to 4 sizes",
       [](Call& c) { c.q.dl.shape = nullptr; }},
      {"q_negative_size", "q has size -3 in dimension 1; it must not be negative",
       [](Call& c) { c.q.dl.shape = negative; }},
      {"q_countless",
       "q has shape (1099511627776, 1099511627776, 2, 4); its number of elements must fit in 63 "
       "bits",
       [](Call& c) {
         c.q.dl.shape = countless;
         c.q.dl.strides = nullptr;
       }},
      {"q_stride_overflow",
       "q has shape (1, 3, 2, 4) and stride 4 in dimension 2; its extent must fit in 64-bit "
       "addresses",
       [](Call& c) { c.q.dl.strides = far_apart; }},
      {"q_stride_sum_overflow",
       "q has shape (1, 3, 2, 4) and stride 4611686018427387903 in dimension 2; its extent must "
       "fit in 64-bit addresses",
       [](Call& c) { c.q.dl.strides = far_in_sum; }},
      {"q_stride_bytes_overflow",
       "q has shape (1, 3, 2, 4) and large strides; its extent must fit in 64-bit addresses",
       [](Call& c) { c.q.dl.strides = far_in_bytes; }},
      {"q_stride_lowest", "q has stride -9223372036854775808 in dimension 1; it must be above that",
       [](Call& c) { c.q.dl.strides = lowest; }},
      {"q_last_stride", "q has stride 2 in its last dimension; it must be 1",
       [](Call& c) { c.q.dl.strides = every_second; }},
      {"q_data_null", "q has null data; with shape (1, 3, 2, 4) it must point to memory",
       [](Call& c) { c.q.dl.data = nullptr; }},
      {"v_misaligned", "v has misaligned data; it must be aligned to its 4-byte elements",
       [](Call& c) { c.v.dl.byte_offset = 2; }},
      {"k_offset_wraps", "k has byte_offset 18446744073709551615; its address must fit in 64 bits",
       [](Call& c) { c.k.dl.byte_offset = UINT64_MAX; }},
      {"reference_on_cuda",
       "backend is 2 (reference) and q is on cuda:1; backend must be 0 (auto) for GPU tensors",
       [](Call& c) { c.q.dl.device = {kDLCUDA, 1}; }},
      {"cpu_on_rocm",
       "backend is 1 (cpu) and q is on rocm:0; backend must be 0 (auto) for GPU tensors",
       [](Call& c) { c.backend(ROCFLASH_BACKEND_CPU).q.dl.device = {kDLROCM, 0}; }, backward},
      {"no_such_backend_on_rocm",
       "backend is 5 and q is on rocm:0; backend must be 0 (auto) for GPU tensors",
       [](Call& c) {
         c.q.dl.device = {kDLROCM, 0};
         c.execution.backend = 5;
       }},
      {"q_on_unknown", "q is on DLPack device type 99; it must be on cpu, rocm or cuda",
       [](Call& c) {
         const int unknown = 99;
         std::memcpy(&c.q.dl.device.device_type, &unknown, sizeof unknown);
       },
       forward, ROCFLASH_UNSUPPORTED},
      {"k_on_rocm", "k is on rocm:2; it must be on cpu, the device of q",
       [](Call& c) { c.k.dl.device = {kDLROCM, 2}; }},
      {"out_on_cuda", "out is on cuda:0; it must be on cpu, the device of q",
       [](Call& c) { c.out.dl.device = {kDLCUDA, 0}; }},
      {"bias_on_metal", "bias is on DLPack device type 8; it must be on cpu, the device of q",
       [](Call& c) { c.with_bias().bias.dl.device = {kDLMetal, 0}; }},
  };
}

}  // namespace rocflash::test
