// Invalid calls: shapes that do not match, and sequence lengths.
#include "api/refusals.hpp"

namespace rocflash::test {
namespace {

HostTensor f32(std::vector<std::int64_t> shape) { return HostTensor(DType::f32, std::move(shape)); }

std::int64_t backwards[] = {-1};

}  // namespace

std::vector<BadCall> bad_shapes_and_lengths() {
  return {
      {"k_head_dim", "k has shape (1, 5, 1, 3); its head dimension must be that of q, 4",
       [](Call& c) { c.k = f32({1, 5, 1, 3}); }},
      {"k_batch", "k has shape (2, 5, 1, 4); its batch size must be that of q, 1",
       [](Call& c) {
         c.k = f32({2, 5, 1, 4});
         c.v = f32({2, 5, 1, 4});
       }},
      {"v_batch", "v has shape (2, 5, 1, 4); size 2 in dimension 0 must be that of k, 1",
       [](Call& c) { c.v = f32({2, 5, 1, 4}); }},
      {"v_length", "v has shape (1, 6, 1, 4); size 6 in dimension 1 must be that of k, 5",
       [](Call& c) { c.v = f32({1, 6, 1, 4}); }},
      {"v_heads", "v has shape (1, 5, 2, 4); its number of heads must be that of k, 1",
       [](Call& c) { c.v = f32({1, 5, 2, 4}); }},
      {"heads_not_a_multiple", "k has 3 heads; the 2 heads of q must be a multiple of that",
       [](Call& c) {
         c.k = f32({1, 5, 3, 4});
         c.v = f32({1, 5, 3, 4});
       }},
      {"more_key_heads", "k has 4 heads; the 2 heads of q must be a multiple of that",
       [](Call& c) {
         c.k = f32({1, 5, 4, 4});
         c.v = f32({1, 5, 4, 4});
       }},
      {"no_query_head", "q has shape (1, 3, 0, 4); it must have at least one head",
       [](Call& c) { c.q = f32({1, 3, 0, 4}); }},
      {"no_key_head", "k has shape (1, 5, 0, 4); it must have at least one head",
       [](Call& c) {
         c.k = f32({1, 5, 0, 4});
         c.v = f32({1, 5, 0, 4});
       }},
      {"head_dim_zero", "q has head dimension 0; it must be 1 to 576",
       [](Call& c) {
         c.q = f32({1, 3, 2, 0});
         c.k = f32({1, 5, 1, 0});
       }},
      {"head_dim_large", "q has head dimension 577; it must be 1 to 576",
       [](Call& c) {
         c.q = f32({1, 3, 2, 577});
         c.k = f32({1, 5, 1, 577});
       }},
      {"value_dim_large", "v has head dimension 1024; it must be 1 to 576",
       [](Call& c) { c.v = f32({1, 5, 1, 1024}); }},
      {"k_three_dimensions", "k has shape (5, 1, 4) with 3 dimensions; it must be (b, sk, hk, d)",
       [](Call& c) { c.k = f32({5, 1, 4}); }},
      {"v_three_dimensions", "v has shape (5, 1, 4) with 3 dimensions; it must be (b, sk, hk, d)",
       [](Call& c) { c.v = f32({5, 1, 4}); }},
      {"too_many_keys",
       "q has 1 sequences of 3 queries, 4294967296 keys and 2 heads; each, and sequences times "
       "heads, must be below 2^32",
       [](Call& c) {
         static std::int64_t shape[] = {1, std::int64_t{1} << 32, 1, 4}, stride[] = {0, 0, 0, 1};
         for (HostTensor* t : {&c.k, &c.v}) {
           t->dl.shape = shape;
           t->dl.strides = stride;
         }
       }},

      {"packed_q_four_dimensions",
       "q has shape (1, 3, 2, 4) with 4 dimensions; it must be (total_q, h, d) with cu_seqlens_q",
       [](Call& c) { c.q = f32({1, 3, 2, 4}); }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"packed_k_four_dimensions",
       "k has shape (1, 9, 1, 4) with 4 dimensions; it must be (total_k, hk, d) with cu_seqlens_k",
       [](Call& c) { c.k = f32({1, 9, 1, 4}); }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"packed_v_rows", "v has shape (8, 1, 4); size 8 in dimension 0 must be that of k, 9",
       [](Call& c) { c.v = f32({8, 1, 4}); }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"cu_q_missing",
       "cu_seqlens_q is null and cu_seqlens_k is given; packed keys require packed queries",
       [](Call& c) { c.problem.cu_seqlens_q = nullptr; }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"cu_k_missing", "k has shape (9, 1, 4) with 3 dimensions; it must be (b, sk, hk, d)",
       [](Call& c) { c.problem.cu_seqlens_k = nullptr; }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"cu_q_float", "cu_seqlens_q has dtype f32; it must be i32",
       [](Call& c) { c.cu_q = f32({3}); }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"cu_q_empty", "cu_seqlens_q has shape (0,); it must be (b + 1,)",
       [](Call& c) { c.cu_q = HostTensor(DType::i32, {0}); }, forward, ROCFLASH_INVALID_ARGUMENT,
       true},
      {"cu_q_two_dimensions",
       "cu_seqlens_q has shape (3, 1) with 2 dimensions; it must be (b + 1,)",
       [](Call& c) { c.cu_q = HostTensor(DType::i32, {3, 1}); }, forward, ROCFLASH_INVALID_ARGUMENT,
       true},
      {"cu_k_other_batch", "cu_seqlens_k has shape (4,); it must be (b + 1,) = (3,)",
       [](Call& c) { c.cu_k = HostTensor(DType::i32, {4}); }, forward, ROCFLASH_INVALID_ARGUMENT,
       true},
      {"cu_q_backwards", "cu_seqlens_q has stride -1; it must be 1",
       [](Call& c) { c.cu_q.dl.strides = backwards; }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"cu_q_no_data", "cu_seqlens_q has null data; with shape (3,) it must point to memory",
       [](Call& c) { c.cu_q.dl.data = nullptr; },
       [](Call& c) {
         std::size_t bytes = 0;
         return rocflash_forward_workspace(&c.problem, &c.forward_outputs, &c.execution, &bytes);
       },
       ROCFLASH_INVALID_ARGUMENT, true},
      {"cu_q_negative", "cu_seqlens_q begins with -1; it must not be negative",
       [](Call& c) { c.cu_q.assign({-1, 3, 5}); }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"cu_q_decreasing", "cu_seqlens_q decreases from 3 to 2 at sequence 1; it must not decrease",
       [](Call& c) { c.cu_q.assign({0, 3, 2}); }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"cu_k_beyond",
       "cu_seqlens_k ends with 10; it must be at most 9, the number of rows of the packed tensor",
       [](Call& c) { c.cu_k.assign({0, 5, 10}); }, backward, ROCFLASH_INVALID_ARGUMENT, true},
      {"max_q_negative", "max_seqlen_q is -1; it must not be negative",
       [](Call& c) { c.problem.max_seqlen_q = -1; }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"max_q_small", "max_seqlen_q is 2; it must be at least the longest sequence length, 3",
       [](Call& c) { c.problem.max_seqlen_q = 2; }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"max_k_small", "max_seqlen_k is 4; it must be at least the longest sequence length, 5",
       [](Call& c) { c.problem.max_seqlen_k = 4; }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"max_k_huge",
       "q has 2 sequences of 3 queries, 9223372036854775807 keys and 2 heads; each, and sequences "
       "times heads, must be below 2^32",
       [](Call& c) { c.problem.max_seqlen_k = INT64_MAX; }, forward, ROCFLASH_INVALID_ARGUMENT,
       true},
      {"max_k_without_packing",
       "max_seqlen_k is 6; without cu_seqlens it must be 0 or the sequence length, 5",
       [](Call& c) { c.problem.max_seqlen_k = 6; }},
      {"used_q_negative", "seqused_q is -1 for sequence 0; it must be 0 to its length, 3",
       [](Call& c) { c.with_used_q({-1}); }},
      {"used_q_long", "seqused_q is 3 for sequence 1; it must be 0 to its length, 2",
       [](Call& c) { c.with_used_q({3, 3}); }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"used_k_long", "seqused_k is 6 for sequence 0; it must be 0 to its length, 5",
       [](Call& c) { c.with_used_k({6}); }},
      {"used_k_negative", "seqused_k is -2147483648 for sequence 0; it must be 0 to its length, 5",
       [](Call& c) { c.with_used_k({-2147483648.0}); }, backward},
      {"used_k_shape", "seqused_k has shape (2,); it must be (b,) = (1,)",
       [](Call& c) { c.with_used_k({1}).used_k = HostTensor(DType::i32, {2}); }},
      {"used_q_dtype", "seqused_q has dtype f32; it must be i32",
       [](Call& c) { c.with_used_q({1}).used_q = f32({1}); }},
      {"leftpad_negative", "leftpad_k is -1 for sequence 0; it must be 0 to its number of keys, 5",
       [](Call& c) { c.with_leftpad({-1}); }},
      {"leftpad_beyond_used",
       "leftpad_k is 4 for sequence 0; it must be 0 to its number of keys, 3",
       [](Call& c) { c.with_used_k({3}).with_leftpad({4}); }},
      {"leftpad_shape", "leftpad_k has shape (1, 1) with 2 dimensions; it must be (b,)",
       [](Call& c) { c.with_leftpad({1}).leftpad = HostTensor(DType::i32, {1, 1}); }},
      {"leftpad_on_gpu", "leftpad_k is on rocm:0; it must be on cpu, the device of q",
       [](Call& c) { c.with_leftpad({1}).leftpad.dl.device = {kDLROCM, 0}; }},
  };
}

}  // namespace rocflash::test
