// Invalid calls with quantized keys and values, and their scales.
#include "api/refusals.hpp"

namespace rocflash::test {
namespace {

void quantize(Call& c, DType dtype) {
  c.k = HostTensor(dtype, c.k.shape());
  c.v = HostTensor(dtype, c.v.shape());
}

// The call has no bias, sinks and slopes, so their tensors are free.
void scale(Call& c, std::vector<std::int64_t> shape, DType dtype = DType::f32) {
  c.bias = HostTensor(dtype, std::move(shape));
  c.problem.k_descale = &c.bias.dl;
}

// Appends keys of this dtype to the last two of five rows.
rocflash_status append(Call& c, DType dtype, bool rotary = false, bool other_scale = false) {
  HostTensor used(DType::i32, {1}), k_new(dtype, {1, 2, 1, 4}), cos(DType::f32, {9, 2}),
      sin(DType::f32, {9, 2}), v_new(dtype, {1, 2, 1, 4}), own(DType::f32, {1});
  used.assign({3});
  c.problem.seqused_k = &used.dl;
  rocflash_append a{};
  a.struct_size = sizeof a;
  a.k_new = &k_new.dl;
  a.v_new = other_scale ? &k_new.dl : &v_new.dl;
  if (other_scale) {
    c.problem.v = c.problem.k;
    c.problem.v_descale = &own.dl;
  }
  if (rotary) {
    a.rotary_cos = &cos.dl;
    a.rotary_sin = &sin.dl;
  }
  return rocflash_decode(&c.problem, &a, &c.forward_outputs, &c.execution);
}

std::string bad_shape(const char* shape) {
  return std::string("k_descale has shape ") + shape +
         "; it must be of one element, (b|1, hk|1) = (1, 1), or the shape of k without its last "
         "dimension, in which any size may be 1, (1, 5, 1)";
}

}  // namespace

std::vector<BadCall> bad_quantized() {
  return {
      {"q_e4m3fn", "q has dtype e4m3fn; it must be f32 or f16 or bf16 or f64",
       [](Call& c) { c.q = HostTensor(DType::e4m3fn, c.q.shape()); }},
      {"q_i8", "q has dtype i8; it must be f32 or f16 or bf16 or f64",
       [](Call& c) { c.q = HostTensor(DType::i8, c.q.shape()); }},
      {"k_and_v_of_different_8_bits", "v has dtype e5m2; it must be e4m3fn",
       [](Call& c) {
         quantize(c, DType::e4m3fn);
         c.v = HostTensor(DType::e5m2, c.v.shape());
       }},
      {"k_e3m4",
       "k has dtype fp8 (DLPack code 7); of 8-bit floats only e4m3fn, e4m3fnuz, e5m2 and e5m2fnuz "
       "are supported",
       [](Call& c) {
         quantize(c, DType::e4m3fn);
         c.k.dl.dtype.code = 7;
       },
       forward, ROCFLASH_UNSUPPORTED},
      {"out_e5m2", "out has dtype e5m2; it must be f32 or f64",
       [](Call& c) { c.out = HostTensor(DType::e5m2, c.out.shape()); }},
      {"gradients_of_e4m3fn", "k has dtype e4m3fn; for backward it must have the dtype of q, f32",
       [](Call& c) { quantize(c, DType::e4m3fn); }, backward, ROCFLASH_UNSUPPORTED},
      {"gradients_of_i8", "k has dtype i8; for backward it must have the dtype of q, f32",
       [](Call& c) { quantize(c, DType::i8); }, backward, ROCFLASH_UNSUPPORTED},
      {"descale_of_f32", "k_descale is given; k has dtype f32 and no scale, so it must be null",
       [](Call& c) { scale(c, {1}); }},
      {"v_descale_of_f32", "v_descale is given; v has dtype f32 and no scale, so it must be null",
       [](Call& c) {
         scale(c, {1});
         std::swap(c.problem.k_descale, c.problem.v_descale);
       }},
      {"descale_dtype", "k_descale has dtype f16; it must be f32",
       [](Call& c) { quantize(c, DType::i8), scale(c, {1}, DType::f16); }},
      {"descale_one_dimension", bad_shape("(2,)"),
       [](Call& c) { quantize(c, DType::e5m2), scale(c, {2}); }},
      {"descale_two_dimensions", bad_shape("(2, 1)"),
       [](Call& c) { quantize(c, DType::e5m2), scale(c, {2, 1}); }},
      {"descale_three_dimensions", bad_shape("(1, 4, 1)"),
       [](Call& c) { quantize(c, DType::e5m2fnuz), scale(c, {1, 4, 1}); }},
      {"descale_four_dimensions", bad_shape("(1, 5, 1, 4)"),
       [](Call& c) { quantize(c, DType::e5m2fnuz), scale(c, {1, 5, 1, 4}); }},
      {"descale_overlaps_out",
       "out overlaps k_descale in memory; an output must not overlap another tensor",
       [](Call& c) {
         quantize(c, DType::e4m3fnuz), scale(c, {1});
         c.bias.dl.data = c.out.dl.data;
       }},
      {"append_other_8_bits", "k_new has dtype e5m2; it must be e4m3fn or f32",
       [](Call& c) { quantize(c, DType::e4m3fn); }, [](Call& c) { return append(c, DType::e5m2); }},
      {"append_f16_under_f32", "k_new has dtype f16; it must be e4m3fn or f32",
       [](Call& c) { quantize(c, DType::e4m3fn); }, [](Call& c) { return append(c, DType::f16); }},
      {"append_rotated_codes",
       "rotary_cos is given and k_new has dtype i8, whose rows are copied as they are; it must be "
       "null",
       [](Call& c) { quantize(c, DType::i8); }, [](Call& c) { return append(c, DType::i8, true); }},
      {"append_two_scales_of_one_cache",
       "v_descale is not k_descale; since v is the first columns of k, new keys of dtype f32 are "
       "quantized once, so both must be the same tensor",
       [](Call& c) { quantize(c, DType::e4m3fn), scale(c, {1}); },
       [](Call& c) { return append(c, DType::f32, false, true); }},
      {"e4m3fn_seqused",
       "seqused_k has dtype fp8 (DLPack code 7); of 8-bit floats only e4m3fn, e4m3fnuz, e5m2 and "
       "e5m2fnuz are supported",
       [](Call& c) {
         c.with_used_k({3});
         c.used_k.dl.dtype = {7, 8, 1};
       },
       forward, ROCFLASH_UNSUPPORTED},
  };
}

}  // namespace rocflash::test
