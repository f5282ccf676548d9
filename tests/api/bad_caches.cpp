// Bad calls about caches: pages, indices, appended keys, rotary embedding, and the merge of parts.
#include "api/refusals.hpp"

namespace rocflash::test {
namespace {

HostTensor f32(std::vector<std::int64_t> shape) { return HostTensor(DType::f32, std::move(shape)); }
HostTensor i32(std::vector<std::int64_t> shape, std::initializer_list<double> values) {
  HostTensor t(DType::i32, std::move(shape));
  t.assign(values);
  return t;
}

// A good append of two rows behind three used keys of five, with rotary embedding of all four
// columns.
struct Appended {
  explicit Appended(Call& call) : c(call) {
    c.with_used_k({3});
    plug();
  }
  void plug() {
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

void nothing(Call&) {}

// Parts for a merge: two, of one sequence, three queries and two heads.
struct Merge {
  HostTensor out_partial = f32({2, 1, 3, 2, 4}), lse_partial = f32({2, 1, 2, 3}),
             out = f32({1, 3, 2, 4}), lse = f32({1, 2, 3});
  rocflash_status run() {
    return rocflash_combine(&out_partial.dl, &lse_partial.dl, &out.dl, &lse.dl, nullptr);
  }
};

// Tables live as long as the call that points to them.
template <class Table>
void give_table(Call& c, Table table) {
  c.bias = std::move(table);  // a place to keep it; the call has no bias
  c.problem.block_table = &c.bias.dl;
}

}  // namespace

std::vector<BadCall> bad_caches() {
  return {
      {"splits_negative", "num_splits: -1; it must be 0 (choose) to 1024",
       [](Call& c) { c.problem.num_splits = -1; }},
      {"splits_many", "num_splits: 1025; it must be 0 (choose) to 1024",
       [](Call& c) { c.problem.num_splits = 1025; }},
      {"table_dtype", "block_table: dtype f32; it must be i32",
       [](Call& c) { give_table(c, f32({1, 1})); }},
      {"table_dimensions", "block_table: shape (1,) has 1 dimensions; it must be (b, pages)",
       [](Call& c) { give_table(c, i32({1}, {0})); }},
      {"table_rows", "block_table: shape (2, 1); it must have a row for each of 1 sequences",
       [](Call& c) { give_table(c, i32({2, 1}, {0, 0})); }},
      {"table_page_missing", "block_table: 1 at entry 0 of sequence 0; it must be 0 to 0",
       [](Call& c) { give_table(c, i32({1, 1}, {1})); }},
      {"table_page_negative", "block_table: -1 at entry 1 of sequence 0; it must be 0 to 0",
       [](Call& c) { give_table(c, i32({1, 2}, {0, -1})); }},
      {"table_short", "block_table: sequence 0 has 6 keys; there is room for 5",
       [](Call& c) {
         give_table(c, i32({1, 1}, {0}));
         c.with_used_k({6});
       }},
      {"table_gradients",
       "block_table: is given; gradients of a cache are not supported, it must be null",
       [](Call& c) { give_table(c, i32({1, 1}, {0})); }, backward, ROCFLASH_UNSUPPORTED},
      {"index_and_table",
       "cache_batch_idx: cannot be combined with block_table, which says it already",
       [](Call& c) {
         give_table(c, i32({1, 1}, {0}));
         c.with_leftpad({0});
         c.problem.cache_batch_idx = &c.leftpad.dl;
       }},
      {"index_beyond", "cache_batch_idx: 7 at entry 0 of sequence 0; it must be 0 to 0",
       [](Call& c) {
         c.bias = i32({1}, {7});
         c.problem.cache_batch_idx = &c.bias.dl;
       }},
      {"index_shape", "cache_batch_idx: shape (2,); it must be (b,) = (1,)",
       [](Call& c) {
         c.bias = i32({2}, {0, 0});
         c.problem.cache_batch_idx = &c.bias.dl;
       }},

      {"append_size",
       "append.struct_size: 0; it must be sizeof(*append), " +
           std::to_string(sizeof(rocflash_append)) + " or more for a newer caller, at most 4096",
       nothing,
       [](Call& c) {
         Appended a(c);
         a.append.struct_size = 0;
         return a.run();
       }},
      {"append_no_values", "v_new: is null, but the other is given", nothing,
       [](Call& c) {
         Appended a(c);
         a.append.v_new = nullptr;
         return a.run();
       }},
      {"append_dtype", "k_new: dtype f16; it must be f32", nothing,
       [](Call& c) {
         Appended a(c);
         a.k_new = HostTensor(DType::f16, {1, 2, 1, 4});
         return a.run();
       }},
      {"append_shape",
       "v_new: shape (1, 2, 1, 3); it must be (b, s_new, hk, columns) = (1, 2, 1, 4)", nothing,
       [](Call& c) {
         Appended a(c);
         a.v_new = f32({1, 2, 1, 3});
         return a.run();
       }},
      {"append_no_room", "k_new: sequence 0 has 4 keys and gets 2 more; its cache has room for 5",
       nothing,
       [](Call& c) {
         Appended a(c);
         c.used_k.assign({4});
         return a.run();
       }},
      {"append_shares_cache", "k_new: shares memory with k; an output needs memory of its own",
       nothing,
       [](Call& c) {
         Appended a(c);
         a.k_new.dl.data = c.k.dl.data;
         return a.run();
       }},
      {"append_to_repeated_cache",
       "k: stride 0 makes elements of this output overlap; it must be above 0", nothing,
       [](Call& c) {
         Appended a(c);
         static std::int64_t stride[] = {0, 0, 0, 1};
         c.k.dl.strides = stride;
         return a.run();
       }},
      {"append_lengths_without_keys", "cu_seqlens_k_new: is given, but k_new is null", nothing,
       [](Call& c) {
         Appended a(c);
         a.append.cu_seqlens_k_new = &c.used_k.dl;
         a.append.k_new = a.append.v_new = nullptr;
         return a.run();
       }},
      {"append_to_packed",
       "cu_seqlens_k: is given with k_new; packed keys have no room for more, it must be null",
       nothing,
       [](Call& c) {
         Appended a(c);
         c.problem.seqused_k = nullptr;
         return a.run();
       },
       ROCFLASH_INVALID_ARGUMENT, true},
      {"rotary_no_sine", "rotary_sin: is null, but the other is given", nothing,
       [](Call& c) {
         Appended a(c);
         a.append.rotary_sin = nullptr;
         return a.run();
       }},
      {"rotary_shapes", "rotary_sin: shape (8, 2); it must be that of rotary_cos = (9, 2)", nothing,
       [](Call& c) {
         Appended a(c);
         a.sin = f32({8, 2});
         return a.run();
       }},
      {"rotary_wide", "rotary_cos: shape (9, 3); it rotates 6 of 4 columns; it must be 2 to all",
       nothing,
       [](Call& c) {
         Appended a(c);
         a.cos = f32({9, 3});
         a.sin = f32({9, 3});
         return a.run();
       }},
      {"rotary_short", "rotary_cos: 4 positions; sequence 0 needs 5", nothing,
       [](Call& c) {
         Appended a(c);
         a.cos = f32({4, 2});
         a.sin = f32({4, 2});
         return a.run();
       }},
      {"rotary_flag", "rotary_interleaved: 2; it must be 0 or 1", nothing,
       [](Call& c) {
         Appended a(c);
         a.append.rotary_interleaved = 2;
         return a.run();
       }},
      {"rotary_flag_alone", "rotary_interleaved: 1, but rotary_cos is null", nothing,
       [](Call& c) {
         Appended a(c);
         a.append.rotary_cos = a.append.rotary_sin = nullptr;
         a.append.rotary_interleaved = 1;
         return a.run();
       }},
      {"rotary_negative", "rotary_seqlens: -3 for sequence 0; it must not be negative", nothing,
       [](Call& c) {
         Appended a(c);
         a.extra = i32({1}, {-3});
         a.append.rotary_seqlens = &a.extra.dl;
         return a.run();
       }},

      {"combine_null", "out_partial: is null, but it is needed", nothing,
       [](Call&) { return rocflash_combine(nullptr, nullptr, nullptr, nullptr, nullptr); }},
      {"combine_no_lse", "lse_partial: is null, but it is needed", nothing,
       [](Call&) {
         Merge m;
         return rocflash_combine(&m.out_partial.dl, nullptr, &m.out.dl, nullptr, nullptr);
       }},
      {"combine_dimensions",
       "out_partial: shape (1, 3, 2, 4) has 4 dimensions; it must be (parts, b, sq, h, dv)",
       nothing,
       [](Call&) {
         Merge m;
         m.out_partial = f32({1, 3, 2, 4});
         return m.run();
       }},
      {"combine_dtype", "out_partial: dtype bf16; it must be f32", nothing,
       [](Call&) {
         Merge m;
         m.out_partial = HostTensor(DType::bf16, {2, 1, 3, 2, 4});
         return m.run();
       }},
      {"combine_parts",
       "lse_partial: shape (3, 1, 2, 3); it must be (parts, b, h, sq) = (2, 1, 2, 3)", nothing,
       [](Call&) {
         Merge m;
         m.lse_partial = f32({3, 1, 2, 3});
         return m.run();
       }},
      {"combine_out", "out: shape (1, 3, 2, 5); it must be (b, sq, h, dv) = (1, 3, 2, 4)", nothing,
       [](Call&) {
         Merge m;
         m.out = f32({1, 3, 2, 5});
         return m.run();
       }},
      {"combine_out_is_a_part",
       "out: shares memory with out_partial; an output needs memory of its own", nothing,
       [](Call&) {
         Merge m;
         m.out.dl.data = m.out_partial.dl.data;
         return m.run();
       }},
  };
}

}  // namespace rocflash::test
