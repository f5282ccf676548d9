// Invalid calls: outputs, and the results of forward that backward takes.
#include "api/refusals.hpp"

namespace rocflash::test {
namespace {

HostTensor f32(std::vector<std::int64_t> shape) { return HostTensor(DType::f32, std::move(shape)); }

std::int64_t same_rows[] = {0, 0, 4, 1};
std::int64_t overlapping_rows[] = {0, 6, 4, 1};
std::int64_t overlapping_lse_heads[] = {0, 2, 1};
std::int64_t spaced_queries[] = {12, 6, 2};
std::int64_t heads_at_one_address[] = {0, 0, 5, 1};

}  // namespace

std::vector<BadCall> bad_outputs() {
  return {
      {"out_null", "out is null; it is required", [](Call& c) { c.forward_outputs.out = nullptr; }},
      {"out_no_data", "out has null data; with shape (1, 3, 2, 4) it must point to memory",
       [](Call& c) { c.out.dl.data = nullptr; }},
      {"out_length", "out has shape (1, 4, 2, 4); it must be (b, sq, h, columns) = (1, 3, 2, 4)",
       [](Call& c) { c.out = f32({1, 4, 2, 4}); }},
      {"out_columns", "out has shape (1, 3, 2, 5); it must be (b, sq, h, columns) = (1, 3, 2, 4)",
       [](Call& c) { c.out = f32({1, 3, 2, 5}); }},
      {"out_packed",
       "out has shape (1, 5, 2, 4) with 4 dimensions; it must be (total_q, h, columns)",
       [](Call& c) { c.out = f32({1, 5, 2, 4}); }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"out_dtype", "out has dtype f16; it must be f32",
       [](Call& c) {
         c.out = HostTensor(DType::f16, {1, 3, 2, 4});
         c.backend(ROCFLASH_BACKEND_NAIVE);
       }},
      {"out_dtype_for_reference", "out has dtype f16; it must be f32 or f64",
       [](Call& c) { c.out = HostTensor(DType::f16, {1, 3, 2, 4}); }},
      {"out_rows_at_one_address",
       "out has stride 0, which makes elements of this output overlap; it must be above 0",
       [](Call& c) { c.out.dl.strides = same_rows; }},
      {"out_rows_overlap",
       "out has stride 6, which makes elements of this output overlap; it must be above 7",
       [](Call& c) { c.out.dl.strides = overlapping_rows; }},
      {"out_is_q", "out overlaps q in memory; an output must not overlap another tensor",
       [](Call& c) { c.out.dl.data = c.q.dl.data; }},
      {"out_reaches_into_v", "out overlaps v in memory; an output must not overlap another tensor",
       [](Call& c) {
         c.out.dl.data = c.v.dl.data;
         c.out.dl.byte_offset = 64;
       }},
      {"lse_is_out", "lse overlaps out in memory; an output must not overlap another tensor",
       [](Call& c) {
         c.lse.dl.data = c.out.dl.data;
         c.lse.dl.byte_offset = 4;
       }},
      {"s_dmask_is_bias",
       "s_dmask overlaps bias in memory; an output must not overlap another tensor",
       [](Call& c) {
         c.with_bias().with_s_dmask();
         c.s_dmask.dl.data = c.bias.dl.data;
       }},
      {"lse_shape", "lse has shape (1, 3, 2); it must be (b, h, sq) = (1, 2, 3)",
       [](Call& c) { c.lse = f32({1, 3, 2}); }},
      {"lse_packed_shape", "lse has shape (2, 4); it must be (h, total_q) = (2, 5)",
       [](Call& c) { c.lse = f32({2, 4}); }, forward, ROCFLASH_INVALID_ARGUMENT, true},
      {"lse_dtype", "lse has dtype f64; it must be f32",
       [](Call& c) { c.lse = HostTensor(DType::f64, {1, 2, 3}); }},
      {"lse_overlaps",
       "lse has stride 2, which makes elements of this output overlap; it must be above 2",
       [](Call& c) { c.lse.dl.strides = overlapping_lse_heads; }},
      {"s_dmask_shape", "s_dmask has shape (1, 1, 3, 5); it must be (b, h, sq, sk) = (1, 2, 3, 5)",
       [](Call& c) { c.with_s_dmask().s_dmask = f32({1, 1, 3, 5}); }},
      {"s_dmask_dtype", "s_dmask has dtype bf16; it must be f32",
       [](Call& c) { c.with_s_dmask().s_dmask = HostTensor(DType::bf16, {1, 2, 3, 5}); }},

      {"dbias_without_bias", "dbias is given; without bias it must be null",
       [](Call& c) {
         c.with_bias().with_option_gradients();
         c.problem.bias = nullptr;
       },
       backward},
      {"dbias_shape", "dbias has shape (1, 1, 3, 5); it must be the shape of bias = (1, 2, 3, 5)",
       [](Call& c) { c.with_bias().with_option_gradients().dbias = f32({1, 1, 3, 5}); }, backward},
      {"dbias_not_broadcast",
       "dbias has shape (1, 2, 3, 5); it must be the shape of bias = (1, 2, 1, 5)",
       [](Call& c) { c.with_bias({1, 2, 1, 5}).with_option_gradients().dbias = f32({1, 2, 3, 5}); },
       backward},
      {"dbias_dimensions",
       "dbias has shape (2, 3, 5) with 3 dimensions; it must be the shape of bias",
       [](Call& c) { c.with_bias().with_option_gradients().dbias = f32({2, 3, 5}); }, backward},
      {"dbias_dtype", "dbias has dtype f16; it must be f32",
       [](Call& c) {
         c.with_bias().with_option_gradients().dbias = HostTensor(DType::f16, {1, 2, 3, 5});
         c.backend(ROCFLASH_BACKEND_NAIVE);
       },
       backward},
      {"dbias_repeated",
       "dbias has stride 0, which makes elements of this output overlap; it must be above 0",
       [](Call& c) {
         c.with_bias().with_option_gradients().dbias.dl.strides = heads_at_one_address;
       },
       backward},
      {"dbias_is_bias", "dbias overlaps bias in memory; an output must not overlap another tensor",
       [](Call& c) {
         c.with_bias().with_option_gradients();
         c.dbias.dl.data = c.bias.dl.data;
       },
       backward},
      {"dalibi_without_alibi", "dalibi_slopes is given; without alibi_slopes it must be null",
       [](Call& c) {
         c.with_alibi().with_option_gradients();
         c.problem.alibi_slopes = nullptr;
       },
       backward},
      {"dalibi_shape", "dalibi_slopes has shape (1, 2); it must be the shape of alibi_slopes",
       [](Call& c) { c.with_alibi().with_option_gradients().dalibi = f32({1, 2}); }, backward},
      {"dalibi_heads", "dalibi_slopes has shape (1,); it must be (h,) = (2,)",
       [](Call& c) { c.with_alibi().with_option_gradients().dalibi = f32({1}); }, backward},
      {"dalibi_batch_shape", "dalibi_slopes has shape (2, 2); it must be (b, h) = (1, 2)",
       [](Call& c) { c.with_alibi(true).with_option_gradients().dalibi = f32({2, 2}); }, backward},
      {"dalibi_dtype", "dalibi_slopes has dtype f64; it must be f32",
       [](Call& c) { c.with_alibi().with_option_gradients().dalibi = HostTensor(DType::f64, {2}); },
       backward},
      {"delta_shape", "delta has shape (1, 2, 4); it must be (b, h, sq) = (1, 2, 3)",
       [](Call& c) { c.with_delta().delta = f32({1, 2, 4}); }, backward},
      {"delta_packed_shape", "delta has shape (2, 4); it must be (h, total_q) = (2, 5)",
       [](Call& c) { c.with_delta().delta = f32({2, 4}); }, backward, ROCFLASH_INVALID_ARGUMENT,
       true},
      {"delta_dtype", "delta has dtype f64; it must be f32",
       [](Call& c) { c.with_delta().delta = HostTensor(DType::f64, {1, 2, 3}); }, backward},
      {"delta_stride", "delta has a last stride of 2; it must be 1",
       [](Call& c) {
         c.with_delta().delta = f32({1, 2, 6});
         c.delta.dl.shape[2] = 3;
         c.delta.dl.strides = spaced_queries;
       },
       backward},
      {"dlse_shape", "dlse has shape (1, 2, 4); it must be (b, h, sq) = (1, 2, 3)",
       [](Call& c) { c.with_dlse().dlse = f32({1, 2, 4}); }, backward},
      {"dlse_packed_shape", "dlse has shape (2, 4); it must be (h, total_q) = (2, 5)",
       [](Call& c) { c.with_dlse().dlse = f32({2, 4}); }, backward, ROCFLASH_INVALID_ARGUMENT,
       true},
      {"dlse_dtype", "dlse has dtype f16; it must be f32",
       [](Call& c) { c.with_dlse().dlse = HostTensor(DType::f16, {1, 2, 3}); }, backward},
      {"no_gradients",
       "dq is null, and so are dk, dv, dsinks, dbias and dalibi_slopes; at least one gradient is "
       "required",
       [](Call& c) {
         c.backward_tensors.dq = c.backward_tensors.dk = c.backward_tensors.dv = nullptr;
       },
       backward},
      {"dout_null", "dout is null; it is required",
       [](Call& c) { c.backward_tensors.dout = nullptr; }, backward},
      {"backward_out_null", "out is null; it is required",
       [](Call& c) { c.backward_tensors.out = nullptr; }, backward},
      {"backward_lse_null", "lse is null; it is required",
       [](Call& c) { c.backward_tensors.lse = nullptr; }, backward},
      {"dout_shape", "dout has shape (1, 3, 1, 4); it must be (b, sq, h, columns) = (1, 3, 2, 4)",
       [](Call& c) { c.dout = f32({1, 3, 1, 4}); }, backward},
      {"dq_shape", "dq has shape (1, 3, 2, 3); it must be (b, sq, h, columns) = (1, 3, 2, 4)",
       [](Call& c) { c.dq = f32({1, 3, 2, 3}); }, backward},
      {"dk_shape", "dk has shape (1, 5, 2, 4); it must be (b, sk, hk, columns) = (1, 5, 1, 4)",
       [](Call& c) { c.dk = f32({1, 5, 2, 4}); }, backward},
      {"dv_packed_shape", "dv has shape (8, 1, 4); it must be (total_k, hk, columns) = (9, 1, 4)",
       [](Call& c) { c.dv = f32({8, 1, 4}); }, backward, ROCFLASH_INVALID_ARGUMENT, true},
      {"dq_overlaps",
       "dq has stride 6, which makes elements of this output overlap; it must be above 7",
       [](Call& c) { c.dq.dl.strides = overlapping_rows; }, backward},
      {"dv_is_dk", "dv overlaps dk in memory; an output must not overlap another tensor",
       [](Call& c) { c.dv.dl.data = c.dk.dl.data; }, backward},
      {"dq_is_dout", "dq overlaps dout in memory; an output must not overlap another tensor",
       [](Call& c) { c.dq.dl.data = c.dout.dl.data; }, backward},
      {"dsinks_without_sinks", "dsinks is given; without sinks it must be null",
       [](Call& c) {
         c.with_sinks();
         c.problem.sinks = nullptr;
       },
       backward},
      {"dsinks_dtype", "dsinks has dtype f16; it must be f32",
       [](Call& c) { c.with_sinks().dsinks = HostTensor(DType::f16, {2}); }, backward},
      {"dsinks_shape", "dsinks has shape (2, 1) with 2 dimensions; it must be (h,)",
       [](Call& c) { c.with_sinks().dsinks = f32({2, 1}); }, backward},
  };
}

}  // namespace rocflash::test
