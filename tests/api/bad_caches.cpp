// Invalid calls with KV caches: pages, indices, appended keys, rotary embedding, and combine.
#include "api/refusals.hpp"

namespace rocflash::test {
namespace {

HostTensor f32(std::vector<std::int64_t> shape) { return HostTensor(DType::f32, std::move(shape)); }
HostTensor i32(std::vector<std::int64_t> shape, std::initializer_list<double> values) {
  HostTensor t(DType::i32, std::move(shape));
  t.assign(values);
  return t;
}

// A valid append of two rows to a cache with three of five keys in use, with rotary embedding of
// all four columns.
struct Appended {
  explicit Appended(Call& call) : c(call) {
    c.with_used_k({3});
    set_pointers();
  }
  void set_pointers() {
    append.struct_size = sizeof append;
    append.k_new = &k_new.dl;
    append.v_new = &v_new.dl;
    append.rotary_cos = &cos.dl;
    append.rotary_sin = &sin.dl;
  }
  rocflash_status run() {
    alignas(64) static std::byte workspace[1 << 16];
    c.execution.workspace = workspace;
    c.execution.workspace_size = sizeof workspace;
    return rocflash_decode(&c.problem, &append, &c.forward_outputs, &c.execution);
  }

  Call& c;
  HostTensor k_new = f32({1, 2, 1, 4}), v_new = f32({1, 2, 1, 4}), cos = f32({9, 2}),
             sin = f32({9, 2});
  HostTensor extra;
  rocflash_append append{};
};

void unchanged(Call&) {}

// Partial results of two splits, one sequence, three queries and two heads.
struct Combine {
  HostTensor out_partial = f32({2, 1, 3, 2, 4}), lse_partial = f32({2, 1, 2, 3}),
             out = f32({1, 3, 2, 4}), lse = f32({1, 2, 3});
  rocflash_status run() {
    return rocflash_combine(&out_partial.dl, &lse_partial.dl, &out.dl, &lse.dl, nullptr);
  }
};

// The call owns the table, so that its pointer stays valid.
template <class Table>
void set_block_table(Call& c, Table table) {
  c.bias = std::move(table);  // the call has no bias, so its tensor is free
  c.problem.block_table = &c.bias.dl;
}

}  // namespace

std::vector<BadCall> bad_caches() {
  return {
      {"splits_negative", "num_splits is -1; it must be 0 (automatic) to 1024",
       [](Call& c) { c.problem.num_splits = -1; }},
      {"splits_many", "num_splits is 1025; it must be 0 (automatic) to 1024",
       [](Call& c) { c.problem.num_splits = 1025; }},
      {"table_dtype", "block_table has dtype f32; it must be i32",
       [](Call& c) { set_block_table(c, f32({1, 1})); }},
      {"table_dimensions", "block_table has shape (1,) with 1 dimensions; it must be (b, pages)",
       [](Call& c) { set_block_table(c, i32({1}, {0})); }},
      {"table_rows", "block_table has shape (2, 1); it must have one row for each of 1 sequences",
       [](Call& c) { set_block_table(c, i32({2, 1}, {0, 0})); }},
      {"table_page_missing", "block_table is 1 at entry 0 of sequence 0; it must be 0 to 0",
       [](Call& c) { set_block_table(c, i32({1, 1}, {1})); }},
      {"table_page_negative", "block_table is -1 at entry 1 of sequence 0; it must be 0 to 0",
       [](Call& c) { set_block_table(c, i32({1, 2}, {0, -1})); }},
      {"table_short", "block_table has a capacity of 5 keys per sequence; sequence 0 has 6",
       [](Call& c) {
         set_block_table(c, i32({1, 1}, {0}));
         c.with_used_k({6});
       }},
      {"table_gradients",
       "block_table is given; backward through a KV cache is not supported, so it must be null",
       [](Call& c) { set_block_table(c, i32({1, 1}, {0})); }, backward, ROCFLASH_UNSUPPORTED},
      {"index_and_table", "cache_batch_idx is given with block_table; one of them must be null",
       [](Call& c) {
         set_block_table(c, i32({1, 1}, {0}));
         c.with_leftpad({0});
         c.problem.cache_batch_idx = &c.leftpad.dl;
       }},
      {"index_beyond", "cache_batch_idx is 7 at entry 0 of sequence 0; it must be 0 to 0",
       [](Call& c) {
         c.bias = i32({1}, {7});
         c.problem.cache_batch_idx = &c.bias.dl;
       }},
      {"index_shape", "cache_batch_idx has shape (2,); it must be (b,) = (1,)",
       [](Call& c) {
         c.bias = i32({2}, {0, 0});
         c.problem.cache_batch_idx = &c.bias.dl;
       }},

      {"append_size",
       "append.struct_size is 0; it must be sizeof(*append): at least " +
           std::to_string(sizeof(rocflash_append)) + ", at most 4096 and a multiple of 8",
       unchanged,
       [](Call& c) {
         Appended a(c);
         a.append.struct_size = 0;
         return a.run();
       }},
      {"append_no_values", "v_new is null and k_new is given; both or neither must be given",
       unchanged,
       [](Call& c) {
         Appended a(c);
         a.append.v_new = nullptr;
         return a.run();
       }},
      {"append_dtype", "k_new has dtype f16; it must be f32", unchanged,
       [](Call& c) {
         Appended a(c);
         a.k_new = HostTensor(DType::f16, {1, 2, 1, 4});
         return a.run();
       }},
      {"append_shape",
       "v_new has shape (1, 2, 1, 3); it must be (b, s_new, hk, columns) = (1, 2, 1, 4)", unchanged,
       [](Call& c) {
         Appended a(c);
         a.v_new = f32({1, 2, 1, 3});
         return a.run();
       }},
      {"append_exceeds_capacity",
       "k_new exceeds the KV cache: sequence 0 has 4 keys and 2 new ones; its capacity is 5",
       unchanged,
       [](Call& c) {
         Appended a(c);
         c.used_k.assign({4});
         return a.run();
       }},
      {"append_shares_cache",
       "k_new overlaps k in memory; an output must not overlap another tensor", unchanged,
       [](Call& c) {
         Appended a(c);
         a.k_new.dl.data = c.k.dl.data;
         return a.run();
       }},
      {"append_to_repeated_cache",
       "k has stride 0, which makes elements of this output overlap; it must be above 0", unchanged,
       [](Call& c) {
         Appended a(c);
         static std::int64_t stride[] = {0, 0, 0, 1};
         c.k.dl.strides = stride;
         return a.run();
       }},
      {"append_lengths_without_keys", "cu_seqlens_k_new is given; without k_new it must be null",
       unchanged,
       [](Call& c) {
         Appended a(c);
         a.append.cu_seqlens_k_new = &c.used_k.dl;
         a.append.k_new = a.append.v_new = nullptr;
         return a.run();
       }},
      {"append_to_packed",
       "cu_seqlens_k is given with k_new; packed keys cannot grow, so it must be null", unchanged,
       [](Call& c) {
         Appended a(c);
         c.problem.seqused_k = nullptr;
         return a.run();
       },
       ROCFLASH_INVALID_ARGUMENT, true},
      {"rotary_no_sine",
       "rotary_sin is null and rotary_cos is given; both or neither must be given", unchanged,
       [](Call& c) {
         Appended a(c);
         a.append.rotary_sin = nullptr;
         return a.run();
       }},
      {"rotary_shapes", "rotary_sin has shape (8, 2); it must be the shape of rotary_cos = (9, 2)",
       unchanged,
       [](Call& c) {
         Appended a(c);
         a.sin = f32({8, 2});
         return a.run();
       }},
      {"rotary_wide", "rotary_cos has shape (9, 3), which rotates 6 columns; it must rotate 2 to 4",
       unchanged,
       [](Call& c) {
         Appended a(c);
         a.cos = f32({9, 3});
         a.sin = f32({9, 3});
         return a.run();
       }},
      {"rotary_short", "rotary_cos has 4 positions; sequence 0 requires 5", unchanged,
       [](Call& c) {
         Appended a(c);
         a.cos = f32({4, 2});
         a.sin = f32({4, 2});
         return a.run();
       }},
      {"rotary_flag", "rotary_interleaved is 2; it must be 0 or 1", unchanged,
       [](Call& c) {
         Appended a(c);
         a.append.rotary_interleaved = 2;
         return a.run();
       }},
      {"rotary_flag_alone", "rotary_interleaved is 1; without rotary_cos it must be 0", unchanged,
       [](Call& c) {
         Appended a(c);
         a.append.rotary_cos = a.append.rotary_sin = nullptr;
         a.append.rotary_interleaved = 1;
         return a.run();
       }},
      {"rotary_negative", "rotary_seqlens is -3 for sequence 0; it must not be negative", unchanged,
       [](Call& c) {
         Appended a(c);
         a.extra = i32({1}, {-3});
         a.append.rotary_seqlens = &a.extra.dl;
         return a.run();
       }},

      {"combine_null", "out_partial is null; it is required", unchanged,
       [](Call&) { return rocflash_combine(nullptr, nullptr, nullptr, nullptr, nullptr); }},
      {"combine_no_lse", "lse_partial is null; it is required", unchanged,
       [](Call&) {
         Combine m;
         return rocflash_combine(&m.out_partial.dl, nullptr, &m.out.dl, nullptr, nullptr);
       }},
      {"combine_dimensions",
       "out_partial has shape (1, 3, 2, 4) with 4 dimensions; it must be (splits, b, sq, h, dv)",
       unchanged,
       [](Call&) {
         Combine m;
         m.out_partial = f32({1, 3, 2, 4});
         return m.run();
       }},
      {"combine_dtype", "out_partial has dtype bf16; it must be f32", unchanged,
       [](Call&) {
         Combine m;
         m.out_partial = HostTensor(DType::bf16, {2, 1, 3, 2, 4});
         return m.run();
       }},
      {"combine_splits",
       "lse_partial has shape (3, 1, 2, 3); it must be (splits, b, h, sq) = (2, 1, 2, 3)",
       unchanged,
       [](Call&) {
         Combine m;
         m.lse_partial = f32({3, 1, 2, 3});
         return m.run();
       }},
      {"combine_out", "out has shape (1, 3, 2, 5); it must be (b, sq, h, dv) = (1, 3, 2, 4)",
       unchanged,
       [](Call&) {
         Combine m;
         m.out = f32({1, 3, 2, 5});
         return m.run();
       }},
      {"combine_out_is_a_partial",
       "out overlaps out_partial in memory; an output must not overlap another tensor", unchanged,
       [](Call&) {
         Combine m;
         m.out.dl.data = m.out_partial.dl.data;
         return m.run();
       }},
  };
}

}  // namespace rocflash::test
