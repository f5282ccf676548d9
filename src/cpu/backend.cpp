#include "cpu/backend.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/combine.hpp"
#include "core/error.hpp"
#include "core/unused.hpp"
#include "core/workspace.hpp"
#include "cpu/kernels.hpp"
#include "cpu/plan.hpp"
#include "cpu/thread_pool.hpp"

namespace rocflash {
namespace {

using cpu::BiasSharing;
using cpu::DecodeParts;
using cpu::Delta;
using cpu::Kernels;
using cpu::OptionSums;
using cpu::PartialQueryGradients;
using cpu::Scores;
using cpu::WorkItem;
using cpu::WorkList;

// The caller's workspace, cut into pieces as they are asked for. Pieces beyond its end are null:
// whether it was large enough is seen from `used`, at the end.
class Pieces {
 public:
  Pieces() = default;
  explicit Pieces(const Resources& r)
      : memory_(r.workspace), size_(Size::of_bytes(r.workspace_size)) {}

  template <class Element>
  Element* take(Size count) {
    const Size begin = used_;
    used_ += (count * sizeof(Element)).rounded_up(workspace_alignment);
    const bool inside = memory_ && used_.fits() && used_.value() <= size_.value();
    return inside ? reinterpret_cast<Element*>(memory_ + begin.value()) : nullptr;
  }
  Size used() const { return used_; }

 private:
  std::byte* memory_ = nullptr;
  Size size_ = 0, used_ = 0;
};

struct Memory {
  std::int64_t* table;  // of the work list
  float* scratch;       // `scratch_floats` for each thread
  std::int64_t scratch_floats;
  int threads;
  int block;  // queries of a work item of forward
  Delta delta;
  PartialQueryGradients dq;
  BiasSharing sharing;
  OptionSums options;
  DecodeParts parts;
  Scores scores;
};

enum class Kind { tiled, decode, standard };

// Backward recomputes the scores, and f32 gradients are only as good as those agree with the ones
// behind lse. Decode sums in another order, so f32 problems that may see a backward (they ask for
// lse) stay with the tiled kernels.
Kind kind_of(const Problem& p, const ForwardOutputs& o) {
  const bool free_order = p.inference || !o.lse || p.dtype != DType::f32;
  return cpu::is_decode(p) && !o.s_dmask && free_order ? Kind::decode : Kind::tiled;
}

// More threads than items of work would only cost memory.
int useful_threads(const Problem& p, const Execution& e, Kind kind) {
  if (kind == Kind::tiled && cpu::is_tiny(p)) return 1;
  const std::int64_t items = kind == Kind::decode
                                 ? p.batch() * cpu::decode_head_groups(p) * cpu::decode_splits(p)
                                 : p.batch() * p.heads * cpu::blocks_of(larger(p.max_q, p.max_k));
  return static_cast<int>(smaller(e.threads, larger(items, 1)));
}

std::int64_t planes(const Problem& p) { return p.batch() * p.heads; }

// The gradient of a bias whose elements serve several scores. Rows are whole panels of keys.
cpu::BiasSums bias_sums(Pieces& w, const Problem& p, const BackwardTensors& t, int slots,
                        int parts) {
  cpu::BiasSums s{};
  if (cpu::is_bias_unshared(p, t)) return s;
  const ScoreSizes sizes = t.dbias_sizes(p);
  s.key_step = t.dbias.key_stride ? 1 : 0;
  const Size row = s.key_step ? Size(sizes.keys).rounded_up(cpu::lane_rows) : Size(1),
             head = row * sizes.queries, batch = head * sizes.heads, copy = batch * sizes.batch;
  s.copies = s.key_step ? slots : slots * parts;
  s.data = w.take<float>(copy * s.copies);
  s.copy_stride = copy.value();
  s.batch_stride = t.dbias.batch_stride ? batch.value() : 0;
  s.head_stride = t.dbias.head_stride ? head.value() : 0;
  s.query_stride = t.dbias.query_stride ? row.value() : 0;
  return s;
}

Memory lay_out(Pieces& w, const Problem& p, const Execution& e, Kind kind,
               const BackwardTensors* gradients) {
  Memory m{};
  m.table = w.take<std::int64_t>(Size(p.batch()) + 1);
  m.threads = useful_threads(p, e, kind);
  m.block = cpu::forward_block(p, m.threads);
  m.scratch_floats = kind == Kind::standard ? cpu::standard_scratch(p, gradients != nullptr)
                     : gradients            ? cpu::backward_scratch(p)
                     : kind == Kind::decode ? cpu::decode_scratch(p)
                                            : cpu::forward_scratch(p, m.block);
  m.scratch = w.take<float>(Size(m.scratch_floats) * m.threads);
  if (kind == Kind::decode) {
    const int splits = cpu::decode_splits(p);
    const std::int64_t rows = p.group() * p.max_q, row = cpu::decode_part_row(p);
    m.parts = {w.take<float>(Size(p.batch()) * p.kv_heads * splits * rows * row), splits, rows,
               row};
  }
  // Strides below are used only once all of the sizes they are part of are known to fit.
  const std::int64_t sequences = p.lengths.packed_q() ? 1 : p.batch(), rows = p.lengths.rows_q;
  const std::int64_t plane_rows = (Size(p.heads) * rows).value();
  if (gradients) {
    m.delta = {w.take<float>(Size(plane_rows) * sequences), p.lengths.packed_q() ? 0 : plane_rows,
               rows};
  }
  if (gradients && kind == Kind::tiled) {
    const std::int64_t row = cpu::padded(p.head_dim);
    const Size head = Size(row) * rows, batch = head * p.heads, copy = batch * sequences;
    m.sharing = cpu::bias_sharing(p, *gradients);
    const cpu::GradientParts parts = cpu::gradient_parts(p, m.sharing.sets * m.sharing.slots);
    m.dq = {w.take<float>(copy * parts.copies),
            parts,
            copy.value(),
            p.lengths.packed_q() ? 0 : batch.value(),
            head.value(),
            row,
            {},
            0};
    if (p.sinks) {
      m.dq.means_copy_stride = copy.value() / row;
      m.dq.means = {w.take<float>(Size(m.dq.means_copy_stride) * parts.copies),
                    m.delta.batch_stride, m.delta.head_stride};
    }
    if (gradients->dbias)
      m.options.bias = bias_sums(w, p, *gradients, m.sharing.slots, parts.parts);
    if (gradients->dalibi)
      m.options.slopes = {w.take<double>(Size(planes(p)) * parts.parts), p.heads, parts.parts};
  }
  if (kind == Kind::standard) {
    const Size scores = Size(planes(p)) * p.max_q * p.max_k;
    m.scores = {w.take<float>(scores), gradients ? w.take<float>(scores) : nullptr, p.max_q,
                p.max_k};
  }
  return m;
}

// Runs one step over all blocks of queries or keys. Long blocks of a causal problem go first: the
// last queries see most, and the first keys are seen most.
class Steps {
 public:
  Steps(const Problem& p, const Memory& m) : p_(p), m_(m) {}

  template <class Step>
  void over_queries(Step step, std::int64_t block = cpu::lane_rows) const {
    run(WorkList(p_.lengths, p_.heads, WorkList::Rows::queries, block,
                 WorkList::Order::last_block_first, m_.table),
        step);
  }
  // Blocks of keys, once per query head or once per key head.
  template <class Step>
  void over_keys(std::int64_t heads, Step step) const {
    run(WorkList(p_.lengths, heads, WorkList::Rows::keys, cpu::lane_rows,
                 WorkList::Order::first_block_first, m_.table),
        step);
  }
  // Parts of the keys of each sequence and key head, or group of them: item.block is the part.
  template <class Step>
  void over_parts(std::int64_t heads, std::int64_t parts, Step step) const {
    parallel_for(p_.batch() * heads * parts, m_.threads, [&](std::int64_t item, int worker) {
      const std::int64_t plane = item / parts;
      step(WorkItem{plane / heads, plane % heads, item % parts},
           m_.scratch + worker * m_.scratch_floats);
    });
  }

 private:
  template <class Step>
  void run(const WorkList& list, Step step) const {
    parallel_for(list.size(), m_.threads, [&](std::int64_t item, int worker) {
      step(list[item], m_.scratch + worker * m_.scratch_floats);
    });
  }

  const Problem& p_;
  const Memory& m_;
};

// The sink takes weight but gives no value: its gradient is minus its weight times delta, summed
// over all queries. `mean_of` gives the latter.
template <class MeanOf>
void sink_gradients(const Problem& p, const BackwardTensors& t, int threads, MeanOf mean_of) {
  if (!t.dsinks) return;
  parallel_for(p.heads, threads, [&](std::int64_t h, int) {
    const double sink = p.sinks.at(0, h);
    double sum = 0;
    for (std::int64_t b = 0; b < p.batch(); ++b) {
      const Sequence s = p.lengths.sequence(b);
      for (std::int64_t i = 0; i < s.sq; ++i) {
        const double weight = std::exp(sink - static_cast<double>(t.lse.at(b, h, s.q_row + i)));
        const double mean = mean_of(b, h, i);
        // Where the sink has all the weight, dout has no influence, whatever is in it.
        if (weight != 0 && (weight != 1 || std::isfinite(mean))) sum -= weight * mean;
      }
    }
    store_double(t.dsinks.data, t.dsinks.dtype, h * t.dsinks.head_stride,
                 sum * static_cast<double>(p.dropout.scale()));
  });
}

void run_tiled(const Kernels& k, const Problem& p, const ForwardOutputs& o, const Steps& steps,
               const Memory& m) {
  steps.over_queries(
      [&](WorkItem item, float* scratch) { k.forward(p, o, item, m.block, scratch); }, m.block);
}

void run_decode(const Kernels& k, const Problem& p, const ForwardOutputs& o, const Steps& steps,
                const Memory& m) {
  const std::int64_t groups = cpu::decode_head_groups(p), parts = m.parts.splits,
                     items = p.batch() * groups * parts;
  const auto merge = [&](WorkItem item, float* scratch) { k.merge(p, o, m.parts, item, scratch); };
  parallel_for(items, m.threads, [&](std::int64_t n, int worker) {
    const auto item_of = [&](std::int64_t i) {
      return WorkItem{i / parts / groups, i / parts % groups, i % parts};
    };
    const WorkItem item = item_of(n);
    // Threads take turns, more or less.
    const WorkItem next = item_of(smaller(n + m.threads, items - 1));
    float* scratch = m.scratch + worker * m.scratch_floats;
    k.decode(p, m.parts, item, {n < m.threads, n + m.threads < items ? &next : nullptr}, scratch);
    if (parts > 1) return;
    const std::int64_t heads = cpu::decode_heads(p), begin = item.head * heads;
    for (std::int64_t h = begin; h < smaller(begin + heads, p.kv_heads); ++h)
      merge({item.batch, h, 0}, scratch);
  });
  if (parts > 1) steps.over_parts(p.kv_heads, 1, merge);
}

void run_standard(const Kernels& k, const Problem& p, const ForwardOutputs& o, const Steps& steps,
                  const Memory& m) {
  steps.over_keys(p.heads, [&](WorkItem item, float* scratch) {
    k.standard_scores(p, m.scores, item, scratch);
  });
  steps.over_queries(
      [&](WorkItem item, float* scratch) { k.standard_softmax(p, o, m.scores, item, scratch); });
  steps.over_queries(
      [&](WorkItem item, float* scratch) { k.standard_output(p, o, m.scores, item, scratch); });
}

constexpr std::int64_t rows_together = 64;
constexpr std::int64_t rotated_together = 32;  // rows of all heads, per turn of a thread

template <class Body>
void over_bias_rows(const Problem& p, const BackwardTensors& t, int threads, Body body) {
  const ScoreSizes s = t.dbias_sizes(p);
  const std::int64_t rows = s.batch * s.heads * s.queries;
  parallel_for(cpu::blocks_of(rows, rows_together), threads, [&](std::int64_t item, int) {
    body(Range{item * rows_together, smaller(rows, (item + 1) * rows_together)});
  });
}

// Sums start at 0. So does a gradient that is stored at once: tiles that nobody sees are left out.
void clear_sums(const Problem& p, const BackwardTensors& t, const Memory& m) {
  if (t.dalibi) std::fill_n(m.options.slopes.data, planes(p) * m.options.slopes.parts, 0.0);
  if (!t.dbias) return;
  const cpu::BiasSums& sums = m.options.bias;
  if (sums.data) {
    constexpr std::int64_t piece = 1 << 16;
    const std::int64_t floats = sums.copies * sums.copy_stride;
    parallel_for(cpu::blocks_of(floats, piece), m.threads, [&](std::int64_t n, int) {
      std::fill_n(sums.data + n * piece, smaller(piece, floats - n * piece), 0.0f);
    });
    return;
  }
  const ScoreSizes sizes = t.dbias_sizes(p);
  over_bias_rows(p, t, m.threads, [&](Range rows) {
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      std::byte* row = t.dbias.row(r / sizes.queries / sizes.heads, r / sizes.queries % sizes.heads,
                                   r % sizes.queries);
      const auto size = static_cast<std::int64_t>(size_of(t.dbias.dtype));
      for (std::int64_t j = 0; j < sizes.keys && t.dbias.key_stride != 1; ++j)
        std::memset(row + j * t.dbias.key_stride * size, 0, static_cast<std::size_t>(size));
      if (t.dbias.key_stride == 1) std::memset(row, 0, static_cast<std::size_t>(sizes.keys * size));
    }
  });
}

void add_bias_sums(const Kernels& k, const Problem& p, const BackwardTensors& t, const Memory& m) {
  if (!m.options.bias.data) return;
  over_bias_rows(p, t, m.threads,
                 [&](Range rows) { k.bias_gradients(p, t, m.options.bias, rows); });
}

void slope_gradients(const Problem& p, const BackwardTensors& t, const Memory& m) {
  const cpu::SlopeSums& sums = m.options.slopes;
  for (std::int64_t b = 0; b < (t.dalibi.batch_stride ? p.batch() : 1); ++b) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      double sum = 0;
      const std::int64_t end = t.dalibi.batch_stride ? b + 1 : p.batch();
      for (std::int64_t n = b; n < end; ++n)
        for (int part = 0; part < sums.parts; ++part) sum += sums.at(n, h, part);
      store_double(t.dalibi.data, t.dalibi.dtype,
                   b * t.dalibi.batch_stride + h * t.dalibi.head_stride,
                   sum * static_cast<double>(p.dropout.scale()));
    }
  }
}

void run_tiled(const Kernels& k, const Problem& p, const BackwardTensors& t, const Steps& steps,
               const Memory& m) {
  clear_sums(p, t, m);
  const BiasSharing& sharing = m.sharing;
  const std::int64_t parts = m.dq.parts.parts;
  parallel_for(sharing.sets * sharing.slots * parts, m.threads, [&](std::int64_t item, int worker) {
    const std::int64_t part = item % parts, slot = item / parts % sharing.slots,
                       set = item / parts / sharing.slots;
    OptionSums own = m.options;
    own.bias = own.bias.copy(own.bias.key_step ? slot : slot * parts + part);
    for (std::int64_t n = slot; n < sharing.members; n += sharing.slots) {
      const auto [batch, kv_head] = sharing.plane(set, n);
      k.gradients(p, t, m.delta, m.dq, own, {batch, kv_head, part},
                  m.scratch + worker * m.scratch_floats);
    }
  });
  if (t.dbias) add_bias_sums(k, p, t, m);
  if (t.dalibi) slope_gradients(p, t, m);
  if (t.dq) steps.over_queries([&](WorkItem item, float*) { k.query_gradients(p, t, m.dq, item); });
  sink_gradients(p, t, m.threads, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const Sequence s = p.lengths.sequence(b);
    double mean = 0;
    m.dq.over_copies(visible_keys(p.visibility, i, s.sq, s.sk), [&](std::int64_t copy) {
      mean += static_cast<double>(*m.dq.mean_rows(copy, b, h, s.q_row + i));
    });
    return mean;
  });
}

void run_standard(const Kernels& k, const Problem& p, const BackwardTensors& t, const Steps& steps,
                  const Memory& m) {
  steps.over_keys(p.heads, [&](WorkItem item, float* scratch) {
    k.standard_weights(p, t, m.delta, m.scores, item, scratch);
  });
  if (t.dq) {
    steps.over_queries([&](WorkItem item, float* scratch) {
      k.standard_query_gradients(p, t, m.scores, item, scratch);
    });
  }
  if (t.dk || t.dv) {
    steps.over_keys(p.kv_heads, [&](WorkItem item, float* scratch) {
      k.standard_key_gradients(p, t, m.scores, item, scratch);
    });
  }
  sink_gradients(p, t, m.threads, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    return static_cast<double>(*m.delta.rows(b, h, p.lengths.sequence(b).q_row + i));
  });
}

class CpuBackend final : public Backend {
 public:
  // Either tiled, which may become decode, or standard.
  explicit constexpr CpuBackend(Kind kind) : kind_(kind) {}

  std::string refusal(const ForwardCall& c) const override { return refusal(c.problem); }
  std::string refusal(const DecodeCall& c) const override { return refusal(c.problem); }
  std::string refusal(const BackwardCall& c) const override {
    const char* given = c.tensors.dbias ? "dbias" : c.tensors.dalibi ? "dalibi_slopes" : nullptr;
    if (kind_ == Kind::standard && given)
      return text(given, ": is given; the standard backend does not compute it, it must be null");
    return refusal(c.problem);
  }

  Size workspace(const ForwardCall& c) const override {
    Pieces pieces;
    lay_out(pieces, c.problem, c.resources, forward_kind(c.problem, c.outputs), nullptr);
    return pieces.used();
  }
  Size workspace(const DecodeCall& c) const override {
    return AppendedProblem::bytes(c.problem, c.append) +
           workspace(static_cast<const ForwardCall&>(c));
  }
  Size workspace(const BackwardCall& c) const override {
    Pieces pieces;
    lay_out(pieces, c.problem, c.resources, kind_, &c.tensors);
    return pieces.used();
  }

  void run(const ForwardCall& c) const override {
    Pieces pieces(c.resources);
    attend(c.problem, c, pieces, [] {});
  }
  // The new keys are in the cache before any thread attends to it.
  void run(const DecodeCall& c) const override {
    Pieces pieces(c.resources);
    std::byte* const own = pieces.take<std::byte>(AppendedProblem::bytes(c.problem, c.append));
    // Appending changes lengths and addresses, but none of what the layout depends on.
    Problem after = c.problem;
    attend(after, c, pieces, [&] {
      const AppendedProblem appended(c.problem, c.append, own);
      parallel_for(append_rows(c.problem, c.append), c.resources.threads,
                   [&](std::int64_t row, int) { append_row(c.problem, c.append, appended, row); });
      after = appended.problem;
    });
  }
  void run(const BackwardCall& c) const override {
    const Problem& p = c.problem;
    const BackwardTensors& t = c.tensors;
    Pieces pieces(c.resources);
    const Memory m = lay_out(pieces, p, c.resources, kind_, &t);
    check_workspace(c.resources, pieces.used(), p);
    const Steps steps(p, m);
    const Kernels& k = cpu::chosen_kernels();
    clear_unused(p, t);
    steps.over_queries(
        [&](WorkItem item, float* scratch) { k.delta(p, t, m.delta, item, scratch); });
    kind_ == Kind::tiled ? run_tiled(k, p, t, steps, m) : run_standard(k, p, t, steps, m);
  }
  void run(const CombineCall& c) const override {
    parallel_for(combine_rows(c), c.resources.threads,
                 [&](std::int64_t row, int) { combine_row(c, row); });
  }
  void run(const RotateCall& c) const override {
    const std::int64_t rows = query_rows(c.problem),
                       items = (rows + rotated_together - 1) / rotated_together;
    const Kernels& k = cpu::chosen_kernels();
    parallel_for(items, c.resources.threads, [&](std::int64_t item, int) {
      const Range some{item * rotated_together, smaller(rows, (item + 1) * rotated_together)};
      k.rotate(c.problem, c.rotary, c.out, some);
    });
  }

 private:
  using Forward = void (*)(const Kernels&, const Problem&, const ForwardOutputs&, const Steps&,
                           const Memory&);

  // Forward of `p` in the pieces that are left of the workspace; `prepare` comes when that is known
  // to be large enough, and before anything is written.
  template <class Prepare>
  void attend(const Problem& p, const ForwardCall& c, Pieces& pieces, Prepare prepare) const {
    const ForwardOutputs& o = c.outputs;
    const Kind kind = forward_kind(p, o);
    const Memory m = lay_out(pieces, p, c.resources, kind, nullptr);
    check_workspace(c.resources, pieces.used(), p);
    prepare();
    clear_unused(p, o);
    const auto step = kind == Kind::tiled    ? static_cast<Forward>(run_tiled)
                      : kind == Kind::decode ? static_cast<Forward>(run_decode)
                                             : static_cast<Forward>(run_standard);
    step(cpu::chosen_kernels(), p, o, Steps(p, m), m);
  }

  std::string refusal(const Problem& p) const {
    if (p.dtype == DType::f64)
      return "q: dtype f64; only the reference backend takes it, others f32, f16 and bf16";
    if (kind_ == Kind::standard && exceeds_memory(p))
      return "backend: standard keeps all scores in memory, and those of this problem exceed "
             "64-bit addresses";
    cpu::chosen_kernels();  // refuses a bad ROCFLASH_CPU_ISA
    check_thread_source();
    return {};
  }

  Kind forward_kind(const Problem& p, const ForwardOutputs& o) const {
    return kind_ == Kind::tiled ? kind_of(p, o) : kind_;
  }
  static bool exceeds_memory(const Problem& p) {
    return !(Size(planes(p)) * p.max_q * p.max_k * 16).fits();
  }

  Kind kind_;
};

constinit const CpuBackend tiled(Kind::tiled), standard(Kind::standard);

}  // namespace

const Backend& cpu_backend() { return tiled; }

const Backend& standard_backend() { return standard; }

}  // namespace rocflash
