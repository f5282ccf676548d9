#include "gpu/dispatch/prepare.hpp"

#include "gpu/dispatch/rows.hpp"
#include "gpu/dispatch/sequences.hpp"

namespace rocflash::gpu {
namespace {

// A packed tensor without sequences: all rows are outside any sequence and are written as fully
// masked rows. They become one dense sequence without keys, sinks or other options.
void make_dense_without_keys(Problem& p) {
  p.lengths = {.batch = 1, .rows_q = p.lengths.rows_q};
  p.max_q = p.lengths.rows_q;
  p.max_k = 0;
  p.k.blocks = p.v.blocks = nullptr;
  p.visibility = {};
  p.mask = p.bias = {};
  p.alibi = p.sinks = {};
  p.dropout = {};
}

}  // namespace

void prepare_forward(Problem& p, ForwardOutputs& o) {
  if (has_no_sequences(p)) make_dense_without_keys(p);
  for (Rows* rows : {&p.q, &o.out}) set_single_row_stride(*rows, p.lengths.rows_q);
  for (Rows* rows : {&p.k, &p.v}) set_single_row_stride(*rows, p.lengths.rows_k);
}

Problem decode_problem(const Problem& given) {
  Problem p = given;
  set_single_row_stride(p.q, p.lengths.rows_q);
  for (Rows* rows : {&p.k, &p.v}) set_single_row_stride(*rows, rows->blocks ? 0 : p.lengths.rows_k);
  if (given.values_within_keys()) p.v.row_stride = p.k.row_stride;
  return p;
}

void prepare_backward(Problem& p, BackwardTensors& t) {
  for (Rows* rows : {&p.q, &t.dout, &t.out, &t.dq}) set_single_row_stride(*rows, p.lengths.rows_q);
  for (Rows* rows : {&p.k, &p.v, &t.dk, &t.dv}) set_single_row_stride(*rows, p.lengths.rows_k);
}

}  // namespace rocflash::gpu
