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
using cpu::DecodePartials;
using cpu::Delta;
using cpu::DqAccumulators;
using cpu::Kernels;
using cpu::OptionAccumulators;
using cpu::Scores;
using cpu::WorkItem;
using cpu::WorkList;

// Carves the caller's workspace into aligned arrays. Arrays beyond its end are null; `used` gives
// the required size.
class WorkspaceAllocator {
 public:
  WorkspaceAllocator() = default;
  explicit WorkspaceAllocator(const Resources& r)
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

struct Workspace {
  std::int64_t* table;  // of the work list
  float* scratch;       // scratch_floats per thread
  std::int64_t scratch_floats;
  int threads;
  int block;  // queries per work item of forward
  Delta delta;
  DqAccumulators dq;
  BiasSharing sharing;
  OptionAccumulators options;
  DecodePartials parts;
  Scores scores;
};

enum class Schedule { tiled, decode, standard };

// Backward recomputes the scores, and f32 gradients need the same rounding as the scores of
// lse. Decode sums in another order, so f32 problems that may need a backward (they write lse) use
// the tiled kernels.
Schedule schedule_of(const Problem& p, const ForwardOutputs& o) {
  const bool free_order = p.inference || !o.lse || p.dtype != DType::f32;
  return cpu::is_decode(p) && !o.s_dmask && free_order ? Schedule::decode : Schedule::tiled;
}

// More threads than work items would only take memory.
int useful_threads(const Problem& p, const Execution& e, Schedule schedule) {
  if (schedule == Schedule::tiled && cpu::is_tiny(p)) return 1;
  const std::int64_t items = schedule == Schedule::decode
                                 ? p.batch() * cpu::decode_head_blocks(p) * cpu::decode_splits(p)
                                 : p.batch() * p.heads * cpu::blocks_of(larger(p.max_q, p.max_k));
  return static_cast<int>(smaller(e.threads, larger(items, 1)));
}

std::int64_t bh_count(const Problem& p) { return p.batch() * p.heads; }

// Accumulators of a broadcast bias gradient. Rows are whole panels of keys.
cpu::BiasAccumulators bias_accumulators(WorkspaceAllocator& w, const Problem& p,
                                        const BackwardTensors& t, int slots, int parts) {
  cpu::BiasAccumulators s{};
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

Workspace plan_workspace(WorkspaceAllocator& w, const Problem& p, const Execution& e,
                         Schedule schedule, const BackwardTensors* gradients) {
  Workspace m{};
  m.table = w.take<std::int64_t>(Size(p.batch()) + 1);
  m.threads = useful_threads(p, e, schedule);
  m.block = cpu::forward_block(p, m.threads);
  m.scratch_floats = schedule == Schedule::standard ? cpu::standard_scratch(p, gradients != nullptr)
                     : gradients                    ? cpu::backward_scratch(p)
                     : schedule == Schedule::decode ? cpu::decode_scratch(p)
                                                    : cpu::forward_scratch(p, m.block);
  m.scratch = w.take<float>(Size(m.scratch_floats) * m.threads);
  if (schedule == Schedule::decode) {
    const int splits = cpu::decode_splits(p);
    const std::int64_t rows = p.gqa_group() * p.max_q, row = cpu::decode_partial_row(p);
    m.parts = {w.take<float>(Size(p.batch()) * p.kv_heads * splits * rows * row), splits, rows,
               row};
  }
  // Strides below are used only after all sizes are known to fit.
  const std::int64_t sequences = p.lengths.packed_q() ? 1 : p.batch(), rows = p.lengths.rows_q;
  const std::int64_t bh_rows = (Size(p.heads) * rows).value();
  if (gradients) {
    const Size all_rows = Size(bh_rows) * sequences;
    m.delta = {w.take<float>(all_rows), p.lengths.packed_q() ? 0 : bh_rows, rows,
               w.take<float>(all_rows), w.take<float>(all_rows)};
  }
  if (gradients && schedule == Schedule::tiled) {
    const std::int64_t row = cpu::padded(p.head_dim);
    const Size head = Size(row) * rows, batch = head * p.heads, copy = batch * sequences;
    m.sharing = cpu::bias_sharing(p, *gradients);
    const cpu::KeyPartition parts = cpu::key_partition(p, m.sharing.sets * m.sharing.slots);
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
      m.options.bias = bias_accumulators(w, p, *gradients, m.sharing.slots, parts.parts);
    if (gradients->dalibi)
      m.options.slopes = {w.take<double>(Size(bh_count(p)) * parts.parts), p.heads, parts.parts};
  }
  if (schedule == Schedule::standard) {
    const Size scores = Size(bh_count(p)) * p.max_q * p.max_k;
    m.scores = {w.take<float>(scores), gradients ? w.take<float>(scores) : nullptr, p.max_q,
                p.max_k};
  }
  return m;
}

// Runs one stage over all blocks of queries or keys. Blocks with the most work of a causal problem
// go first (LPT order): the last queries and the first keys.
class Stages {
 public:
  Stages(const Problem& p, const Workspace& m) : p_(p), m_(m) {}

  template <class Step>
  void over_queries(Step step, std::int64_t block = cpu::lane_rows) const {
    run(WorkList(p_.lengths, p_.heads, WorkList::Rows::queries, block,
                 WorkList::Order::last_block_first, m_.table),
        step);
  }
  // Blocks of keys, per query head or per KV head.
  template <class Step>
  void over_keys(std::int64_t heads, Step step) const {
    run(WorkList(p_.lengths, heads, WorkList::Rows::keys, cpu::lane_rows,
                 WorkList::Order::first_block_first, m_.table),
        step);
  }
  // Splits of the keys of each sequence and KV head, or block of KV heads: item.block is the split.
  template <class Step>
  void over_splits(std::int64_t heads, std::int64_t parts, Step step) const {
    parallel_for(p_.batch() * heads * parts, m_.threads, [&](std::int64_t item, int worker) {
      const std::int64_t bh = item / parts;
      step(WorkItem{bh / heads, bh % heads, item % parts}, m_.scratch + worker * m_.scratch_floats);
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
  const Workspace& m_;
};

// Copies delta of a block of queries to the caller's tensor.
void store_delta(const Problem& p, const cpu::Delta& from, WorkItem item, const RowStatistic& to) {
  if (!to) return;
  const Sequence s = p.lengths.sequence(item.batch);
  const std::int64_t begin = item.block * cpu::lane_rows,
                     end = smaller(s.sq, begin + cpu::lane_rows);
  std::copy_n(from.rows(item.batch, item.head, s.q_row + begin), larger(end - begin, 0),
              &to.at(item.batch, item.head, s.q_row + begin));
}

// The sink has weight but no value: its gradient is minus its weight times delta, summed over all
// queries. `mean_of` returns delta.
template <class MeanOf>
void sink_gradients(const Problem& p, const BackwardTensors& t, const Workspace& m,
                    MeanOf mean_of) {
  if (!t.dsinks) return;
  parallel_for(p.heads, m.threads, [&](std::int64_t h, int) {
    const double sink = p.sinks.at(0, h);
    double sum = 0;
    for (std::int64_t b = 0; b < p.batch(); ++b) {
      const Sequence s = p.lengths.sequence(b);
      for (std::int64_t i = 0; i < s.sq; ++i) {
        const std::ptrdiff_t row = m.delta.rows(b, h, s.q_row + i) - m.delta.data;
        const double weight = std::exp(sink - static_cast<double>(m.delta.base[row]) -
                                       static_cast<double>(m.delta.log_sum[row]));
        const double mean = mean_of(b, h, i);
        // If the sink has all the weight, dout has no influence, not even a NaN.
        if (weight != 0 && (weight != 1 || std::isfinite(mean))) sum -= weight * mean;
      }
    }
    store_double(t.dsinks.data, t.dsinks.dtype, h * t.dsinks.head_stride,
                 sum * static_cast<double>(p.dropout.scale()));
  });
}

void run_tiled(const Kernels& k, const Problem& p, const ForwardOutputs& o, const Stages& steps,
               const Workspace& m) {
  steps.over_queries(
      [&](WorkItem item, float* scratch) { k.forward(p, o, item, m.block, scratch); }, m.block);
}

void run_decode(const Kernels& k, const Problem& p, const ForwardOutputs& o, const Stages& steps,
                const Workspace& m) {
  const std::int64_t groups = cpu::decode_head_blocks(p), parts = m.parts.splits,
                     items = p.batch() * groups * parts;
  const auto combine = [&](WorkItem item, float* scratch) {
    k.combine(p, o, m.parts, item, scratch);
  };
  parallel_for(items, m.threads, [&](std::int64_t n, int worker) {
    const auto item_of = [&](std::int64_t i) {
      return WorkItem{i / parts / groups, i / parts % groups, i % parts};
    };
    const WorkItem item = item_of(n);
    // Threads take items approximately round-robin.
    const WorkItem next = item_of(smaller(n + m.threads, items - 1));
    float* scratch = m.scratch + worker * m.scratch_floats;
    k.decode(p, m.parts, item, {n < m.threads, n + m.threads < items ? &next : nullptr}, scratch);
    if (parts > 1) return;
    const std::int64_t heads = cpu::decode_heads(p), begin = item.head * heads;
    for (std::int64_t h = begin; h < smaller(begin + heads, p.kv_heads); ++h)
      combine({item.batch, h, 0}, scratch);
  });
  if (parts > 1) steps.over_splits(p.kv_heads, 1, combine);
}

void run_standard(const Kernels& k, const Problem& p, const ForwardOutputs& o, const Stages& steps,
                  const Workspace& m) {
  steps.over_keys(p.heads, [&](WorkItem item, float* scratch) {
    k.standard_scores(p, m.scores, item, scratch);
  });
  steps.over_queries(
      [&](WorkItem item, float* scratch) { k.standard_softmax(p, o, m.scores, item, scratch); });
  steps.over_queries(
      [&](WorkItem item, float* scratch) { k.standard_output(p, o, m.scores, item, scratch); });
}

constexpr std::int64_t rows_together = 64;
constexpr std::int64_t rotary_rows_per_item = 32;  // rows of all heads

template <class Body>
void over_bias_rows(const Problem& p, const BackwardTensors& t, int threads, Body body) {
  const ScoreSizes s = t.dbias_sizes(p);
  const std::int64_t rows = s.batch * s.heads * s.queries;
  parallel_for(cpu::blocks_of(rows, rows_together), threads, [&](std::int64_t item, int) {
    body(Range{item * rows_together, smaller(rows, (item + 1) * rows_together)});
  });
}

// Accumulators start at 0. So do gradients that are stored directly, since fully masked tiles are
// skipped.
void clear_accumulators(const Problem& p, const BackwardTensors& t, const Workspace& m) {
  if (t.dalibi) std::fill_n(m.options.slopes.data, bh_count(p) * m.options.slopes.parts, 0.0);
  if (!t.dbias) return;
  const cpu::BiasAccumulators& sums = m.options.bias;
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

void store_bias_gradients(const Kernels& k, const Problem& p, const BackwardTensors& t,
                          const Workspace& m) {
  if (!m.options.bias.data) return;
  over_bias_rows(p, t, m.threads,
                 [&](Range rows) { k.bias_gradients(p, t, m.options.bias, rows); });
}

void slope_gradients(const Problem& p, const BackwardTensors& t, const Workspace& m) {
  const cpu::SlopeAccumulators& sums = m.options.slopes;
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

void run_tiled(const Kernels& k, const Problem& p, const BackwardTensors& t, const Stages& steps,
               const Workspace& m) {
  clear_accumulators(p, t, m);
  const BiasSharing& sharing = m.sharing;
  const std::int64_t parts = m.dq.parts.parts;
  parallel_for(sharing.sets * sharing.slots * parts, m.threads, [&](std::int64_t item, int worker) {
    const std::int64_t part = item % parts, slot = item / parts % sharing.slots,
                       set = item / parts / sharing.slots;
    OptionAccumulators own = m.options;
    own.bias = own.bias.copy(own.bias.key_step ? slot : slot * parts + part);
    for (std::int64_t n = slot; n < sharing.members; n += sharing.slots) {
      const auto [batch, kv_head] = sharing.bh(set, n);
      k.gradients(p, t, m.delta, m.dq, own, {batch, kv_head, part},
                  m.scratch + worker * m.scratch_floats);
    }
  });
  if (t.dbias) store_bias_gradients(k, p, t, m);
  if (t.dalibi) slope_gradients(p, t, m);
  if (t.dq) steps.over_queries([&](WorkItem item, float*) { k.query_gradients(p, t, m.dq, item); });
  sink_gradients(p, t, m, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const Sequence s = p.lengths.sequence(b);
    double mean = 0;
    m.dq.for_each_copy(visible_keys(p.visibility, i, s.sq, s.sk), [&](std::int64_t copy) {
      mean += static_cast<double>(*m.dq.mean_rows(copy, b, h, s.q_row + i));
    });
    return mean - static_cast<double>(m.delta.lse_gradient(p, t, b, h, s.q_row + i));
  });
}

void run_standard(const Kernels& k, const Problem& p, const BackwardTensors& t, const Stages& steps,
                  const Workspace& m) {
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
  sink_gradients(p, t, m, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    return static_cast<double>(*m.delta.rows(b, h, p.lengths.sequence(b).q_row + i));
  });
}

class CpuBackend final : public Backend {
 public:
  // Either tiled, which may select decode, or standard.
  explicit constexpr CpuBackend(Schedule schedule) : schedule_(schedule) {}

  std::string refusal(const ForwardCall& c) const override { return refusal(c.problem); }
  std::string refusal(const DecodeCall& c) const override { return refusal(c.problem); }
  std::string refusal(const BackwardCall& c) const override {
    const char* given = c.tensors.dbias ? "dbias" : c.tensors.dalibi ? "dalibi_slopes" : nullptr;
    if (schedule_ == Schedule::standard && given)
      return text(given, " is given; the standard backend does not compute it, so it must be null");
    return refusal(c.problem);
  }

  Size workspace(const ForwardCall& c) const override {
    WorkspaceAllocator pieces;
    plan_workspace(pieces, c.problem, c.resources, forward_schedule(c.problem, c.outputs), nullptr);
    return pieces.used();
  }
  Size workspace(const DecodeCall& c) const override {
    return AppendedProblem::bytes(c.problem, c.append) +
           workspace(static_cast<const ForwardCall&>(c));
  }
  Size workspace(const BackwardCall& c) const override {
    WorkspaceAllocator pieces;
    plan_workspace(pieces, c.problem, c.resources, schedule_, &c.tensors);
    return pieces.used();
  }

  void run(const ForwardCall& c) const override {
    WorkspaceAllocator pieces(c.resources);
    attend(c.problem, c, pieces, [] {});
  }
  // New keys are in the KV cache before any thread reads it.
  void run(const DecodeCall& c) const override {
    WorkspaceAllocator pieces(c.resources);
    std::byte* const own = pieces.take<std::byte>(AppendedProblem::bytes(c.problem, c.append));
    // Appending changes lengths and addresses, but nothing that the workspace layout depends on.
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
    WorkspaceAllocator pieces(c.resources);
    Workspace m = plan_workspace(pieces, p, c.resources, schedule_, &t);
    m.delta.dlse = c.dlse;
    check_workspace(c.resources, pieces.used(), p);
    const Stages steps(p, m);
    const Kernels& k = cpu::chosen_kernels();
    clear_unused(p, t, c.delta);
    const auto statistics = schedule_ == Schedule::tiled ? k.statistics : k.standard_statistics;
    steps.over_queries([&](WorkItem item, float* scratch) {
      k.delta(p, t, m.delta, item, scratch);
      statistics(p, t, m.delta, item, scratch);
      store_delta(p, m.delta, item, c.delta);
    });
    schedule_ == Schedule::tiled ? run_tiled(k, p, t, steps, m) : run_standard(k, p, t, steps, m);
  }
  void run(const CombineCall& c) const override {
    parallel_for(combine_rows(c), c.resources.threads,
                 [&](std::int64_t row, int) { combine_row(c, row); });
  }
  void run(const RotateCall& c) const override {
    const std::int64_t rows = query_rows(c.problem),
                       items = (rows + rotary_rows_per_item - 1) / rotary_rows_per_item;
    const Kernels& k = cpu::chosen_kernels();
    parallel_for(items, c.resources.threads, [&](std::int64_t item, int) {
      const Range some{item * rotary_rows_per_item,
                       smaller(rows, (item + 1) * rotary_rows_per_item)};
      k.rotate(c.problem, c.rotary, c.out, some);
    });
  }

 private:
  using Forward = void (*)(const Kernels&, const Problem&, const ForwardOutputs&, const Stages&,
                           const Workspace&);

  // Forward in the rest of the workspace. `prepare` runs once the workspace is known to be large
  // enough, before anything is written.
  template <class Prepare>
  void attend(const Problem& p, const ForwardCall& c, WorkspaceAllocator& pieces,
              Prepare prepare) const {
    const ForwardOutputs& o = c.outputs;
    const Schedule schedule = forward_schedule(p, o);
    const Workspace m = plan_workspace(pieces, p, c.resources, schedule, nullptr);
    check_workspace(c.resources, pieces.used(), p);
    prepare();
    clear_unused(p, o);
    const auto step = schedule == Schedule::tiled    ? static_cast<Forward>(run_tiled)
                      : schedule == Schedule::decode ? static_cast<Forward>(run_decode)
                                                     : static_cast<Forward>(run_standard);
    step(cpu::chosen_kernels(), p, o, Stages(p, m), m);
  }

  std::string refusal(const Problem& p) const {
    if (p.dtype == DType::f64)
      return "q has dtype f64; for the CPU backends it must be f32, f16 or bf16";
    if (schedule_ == Schedule::standard && exceeds_memory(p))
      return "backend is standard, which stores all scores; those of this problem must fit in "
             "64-bit "
             "addresses";
    cpu::chosen_kernels();  // rejects an unknown ROCFLASH_CPU_ISA
    check_thread_source();
    return {};
  }

  Schedule forward_schedule(const Problem& p, const ForwardOutputs& o) const {
    return schedule_ == Schedule::tiled ? schedule_of(p, o) : schedule_;
  }
  static bool exceeds_memory(const Problem& p) {
    return !(Size(bh_count(p)) * p.max_q * p.max_k * 16).fits();
  }

  Schedule schedule_;
};

constinit const CpuBackend tiled(Schedule::tiled), standard(Schedule::standard);

}  // namespace

const Backend& cpu_backend() { return tiled; }

const Backend& standard_backend() { return standard; }

}  // namespace rocflash
