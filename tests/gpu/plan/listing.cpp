#include "listing.hpp"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <functional>
#include <tuple>

#include "core/error.hpp"
#include "gpu/plan/attention.hpp"
#include "gpu/plan/refusal.hpp"
#include "gpu/plan/reusable.hpp"
#include "problems.hpp"

namespace rocflash::gpu {
namespace {

using kernel::Family;
using kernel::Op;
using kernel::Schedule;

const auto* const ints = reinterpret_cast<const std::int32_t*>(0xa0000);

ListedCall listed(Call call, DType dtype, const Sizes& s) {
  ListedCall c;
  c.call = call;
  constexpr const char* names[] = {"forward", "decode", "backward"};
  c.name = text(names[static_cast<int>(call)], " ", name_of(dtype), " d", s.d, ",", s.dv, " b", s.b,
                " s", s.sq, "x", s.sk, " h", s.h, "/", s.hk);
  c.problem = dense_problem(dtype, s);
  c.problem.caches = s.b;
  c.problem.scale = 0.125f;
  if (s.d > 512 && s.dv == 512) {  // MLA: the values are the first columns of the keys
    c.problem.v = c.problem.k;
    c.problem.v.columns = s.dv;
  }
  c.outputs.out = output(dtype, s);
  c.outputs.lse = {reinterpret_cast<float*>(0x60000), s.h * s.sq, s.sq, 1};
  c.tensors = gradients(dtype, s);
  return c;
}

void make_paged(ListedCall& c, std::int64_t page_rows) {
  Problem& p = c.problem;
  p.lengths.paged = true;
  p.caches = 1000;
  for (Rows* r : {&p.k, &p.v}) {
    r->blocks = ints;
    r->blocks_stride = 100;
    r->block_rows = page_rows;
    r->batch_stride = page_rows * r->row_stride;
  }
}

void make_packed(ListedCall& c) {
  Problem& p = c.problem;
  p.lengths.cu_q = p.lengths.cu_k = ints;
  p.lengths.rows_q *= std::max<std::int64_t>(p.batch(), 1);
  p.lengths.rows_k *= std::max<std::int64_t>(p.batch(), 1);
  for (Rows* r : {&p.q, &p.k, &p.v, &c.outputs.out, &c.tensors.dout, &c.tensors.out, &c.tensors.dq,
                  &c.tensors.dk, &c.tensors.dv})
    r->batch_stride = 0;
  c.outputs.lse.batch_stride = c.tensors.lse.batch_stride = 0;
}

void append_keys(ListedCall& c, bool rotates) {
  const Problem& p = c.problem;
  c.append.k = rows(0xb0000, 2, p.kv_heads, p.head_dim, p.k.dtype);
  c.append.v = rows(0xc0000, 2, p.kv_heads, p.value_dim, p.k.dtype);
  c.append.rows = 2;
  if (rotates) c.append.rotary.dim = 32;
}

struct Change {
  const char* name;
  std::function<void(ListedCall&)> apply;
};

std::vector<Change> score_changes() {
  return {
      {"mask", [](ListedCall& c) { c.problem.mask.data = at(0x100); }},
      {"bias", [](ListedCall& c) { c.problem.bias.data = at(0x100); }},
      {"alibi", [](ListedCall& c) { c.problem.alibi.data = at(0x100); }},
      {"sinks", [](ListedCall& c) { c.problem.sinks.data = at(0x100); }},
      {"softcap", [](ListedCall& c) { c.problem.softcap = 3; }},
      {"dropout", [](ListedCall& c) { c.problem.dropout.p = 0.25f; }},
      {"scale 0", [](ListedCall& c) { c.problem.scale = 0; }},
      {"scale -1", [](ListedCall& c) { c.problem.scale = -1; }},
      {"scale tiny", [](ListedCall& c) { c.problem.scale = 0x1p-100f; }},
      {"scale huge", [](ListedCall& c) { c.problem.scale = 0x1p100f; }},
      {"causal", [](ListedCall& c) { c.problem.visibility.right = 0; }},
      {"window", [](ListedCall& c) { c.problem.visibility = {.left = 100, .right = 0}; }},
      {"narrow window", [](ListedCall& c) { c.problem.visibility = {.left = 8, .right = 8}; }},
      {"chunk", [](ListedCall& c) { c.problem.visibility.chunk = 64; }},
      {"long chunk", [](ListedCall& c) { c.problem.visibility.chunk = std::int64_t{1} << 30; }},
      {"deterministic", [](ListedCall& c) { c.problem.deterministic = true; }},
      {"deterministic softcap",
       [](ListedCall& c) { c.problem.deterministic = true, c.problem.softcap = 2; }},
      {"s_dmask", [](ListedCall& c) { c.outputs.s_dmask.data = at(0x100); }},
      {"no lse", [](ListedCall& c) { c.outputs.lse = {}; }},
      {"splits 1", [](ListedCall& c) { c.problem.splits = 1; }},
      {"splits 4", [](ListedCall& c) { c.problem.splits = 4; }},
      {"splits 5", [](ListedCall& c) { c.problem.splits = 5; }},
      {"splits 1000", [](ListedCall& c) { c.problem.splits = 1000; }},
      {"append", [](ListedCall& c) { append_keys(c, false); }},
      {"append and rotate", [](ListedCall& c) { append_keys(c, true); }},
  };
}

std::vector<Change> row_changes() {
  return {
      {"packed", make_packed},
      {"packed causal", [](ListedCall& c) { make_packed(c), c.problem.visibility.right = 0; }},
      {"used_q", [](ListedCall& c) { c.problem.lengths.used_q = ints; }},
      {"used_k", [](ListedCall& c) { c.problem.lengths.used_k = ints; }},
      {"leftpad", [](ListedCall& c) { c.problem.lengths.leftpad_k = ints; }},
      {"pages of 16", [](ListedCall& c) { make_paged(c, 16); }},
      {"pages of 7", [](ListedCall& c) { make_paged(c, 7); }},
      {"pages of 256", [](ListedCall& c) { make_paged(c, 256); }},
      {"one page", [](ListedCall& c) { make_paged(c, 1 << 20); }},
      {"pages of 16, softcap", [](ListedCall& c) { make_paged(c, 16), c.problem.softcap = 3; }},
      {"packed q, pages",
       [](ListedCall& c) {
         const Rows k = c.problem.k, v = c.problem.v;
         const std::int64_t rows_k = c.problem.lengths.rows_k;
         make_packed(c);
         c.problem.k = k, c.problem.v = v, c.problem.lengths.rows_k = rows_k;
         c.problem.lengths.cu_k = nullptr;
         c.problem.lengths.used_k = ints;
         make_paged(c, 64);
       }},
      {"q unaligned", [](ListedCall& c) { c.problem.q.data += 2; }},
      {"k unaligned", [](ListedCall& c) { c.problem.k.data += 8; }},
      {"v row stride", [](ListedCall& c) { c.problem.v.row_stride += 4; }},
      {"k head stride", [](ListedCall& c) { c.problem.k.head_stride = 0; }},
      {"v batch stride", [](ListedCall& c) { c.problem.v.batch_stride = 0; }},
      {"q far batches", [](ListedCall& c) { c.problem.q.batch_stride = std::int64_t{1} << 40; }},
      {"k large stride",
       [](ListedCall& c) { c.problem.k.row_stride = (std::int64_t{1} << 31) / 256 / 2; }},
      {"out unaligned", [](ListedCall& c) { c.outputs.out.data += 2; }},
      {"out row stride", [](ListedCall& c) { c.outputs.out.row_stride += 3; }},
      {"k in f16", [](ListedCall& c) { c.problem.k.dtype = c.problem.v.dtype = DType::f16; }},
      {"dout unaligned", [](ListedCall& c) { c.tensors.dout.data += 8; }},
      {"dout head stride", [](ListedCall& c) { c.tensors.dout.head_stride = 0; }},
      {"dq row stride", [](ListedCall& c) { c.tensors.dq.row_stride += 4; }},
      {"strided lse", [](ListedCall& c) { c.tensors.lse.query_stride = 8; }},
      {"dq only", [](ListedCall& c) { c.tensors.dk = c.tensors.dv = {}; }},
      {"dk only", [](ListedCall& c) { c.tensors.dq = c.tensors.dv = {}; }},
      {"dv only", [](ListedCall& c) { c.tensors.dq = c.tensors.dk = {}; }},
      {"dk and dv", [](ListedCall& c) { c.tensors.dq = {}; }},
      {"dq and dk", [](ListedCall& c) { c.tensors.dv = {}; }},
      {"dq and dv", [](ListedCall& c) { c.tensors.dk = {}; }},
      {"dsinks",
       [](ListedCall& c) { c.problem.sinks.data = at(0x100), c.tensors.dsinks.data = at(0x200); }},
      {"dbias and dalibi",
       [](ListedCall& c) {
         c.problem.bias.data = c.problem.alibi.data = at(0x100);
         c.tensors.dbias = {at(0x200), DType::f32, 0, 0, c.problem.max_k, 1};
         c.tensors.dalibi = {at(0x300), DType::f32, 0, 1};
       }},
      {"deterministic dq and dv",
       [](ListedCall& c) { c.problem.deterministic = true, c.tensors.dk = {}; }},
  };
}

// The functions below print arguments for a hash: every field, without padding.
#ifdef __clang__
struct Hash {
  std::uint64_t value = 0xcbf29ce484222325;
  void add(const void* data, std::size_t size) {
    for (std::size_t n = 0; n < size; ++n)
      value = (value ^ static_cast<const unsigned char*>(data)[n]) * 0x100000001b3;
  }
};

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wformat-nonliteral"
#pragma clang diagnostic ignored "-Wdouble-promotion"
int add_printed(Hash& hash, const char* format, ...) {
  if (std::strstr(format, "*%p")) return 0;  // an array: its address is not part of the plan
  char line[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof line, format, values);
  va_end(values);
  hash.add(line, std::strlen(line));
  return 0;
}
#pragma clang diagnostic pop

template <class Arguments>
void add_fields(Hash& hash, const Arguments& a) {
  __builtin_dump_struct(&a, add_printed, hash);
  if constexpr (requires { a.partials; }) {
    const Partials& p = a.partials;
    hash.add(p.out_partial_stride, sizeof p.out_partial_stride);
    hash.add(p.lse_partial_stride, sizeof p.lse_partial_stride);
    hash.add(p.out_stride, sizeof p.out_stride);
    hash.add(p.lse_stride, sizeof p.lse_stride);
  }
}

std::string arguments_text(const Launch& launch) {
  Hash hash;
  const kernel::KernelSpec& spec = kernel::kernel_spec(launch.kernel);
  bool added = false;  // several lines have the same operation and schedule
  const auto add = [&]<Op op, Schedule schedule>() {
    if (added || spec.op != op || spec.schedule != schedule) return;
    added = true;
    add_fields(hash, *static_cast<const kernel::ArgumentsOf<op, schedule>*>(launch.arguments));
  };
#define ROCFLASH_HEADER(op, schedule, ...) add.template operator()<Op::op, Schedule::schedule>();
#include "table/kernels.inc"
  for (const TensorMapDesc& d : launch.tensor_maps) {
    const auto offset =
        reinterpret_cast<const std::byte*>(d.map) - static_cast<const std::byte*>(launch.arguments);
    hash.add(static_cast<const void*>(&d.data), sizeof d.data);
    hash.add(&d.dtype, sizeof d.dtype);
    hash.add(d.sizes, sizeof d.sizes);
    hash.add(d.strides, sizeof d.strides);
    hash.add(&d.box_columns, sizeof d.box_columns);
    hash.add(&d.box_rows, sizeof d.box_rows);
    hash.add(&offset, sizeof offset);
  }
  char digits[24];
  std::snprintf(digits, sizeof digits, " #%016llx", static_cast<unsigned long long>(hash.value));
  return digits;
}
#else
std::string arguments_text(const Launch&) { return {}; }
#endif

std::string launch_text(const Launch& launch, bool arguments) {
  const LaunchShape& s = launch.shape;
  std::string line = text(kernel::kernel_name(launch.kernel), "[", s.grid_x);
  if (s.grid_y != 1 || s.grid_z != 1) line += text(",", s.grid_y, ",", s.grid_z);
  line += text(" x", s.threads);
  if (s.dynamic_shared > 0) line += text(" shared ", s.dynamic_shared);
  if (s.cluster != 1) line += text(" cluster ", s.cluster);
  if (s.pdl) line += " pdl";
  line += "]";
  if (arguments) line += arguments_text(launch);
  return line + "; ";
}

// Calls `with` with the call as the backend gets it.
template <class With>
auto with_call(const ListedCall& c, const With& with) {
  const ForwardCall forward{c.problem, c.outputs, {}};
  if (c.call == Call::forward) return with(forward);
  if (c.call == Call::decode) return with(DecodeCall{forward, c.append});
  return with(BackwardCall{c.problem, c.tensors, {}});
}

void plan_listed(Plan& plan, const ListedCall& c, std::byte* workspace, Chip chip) {
  with_call(c, [&](const auto& call) { plan_call(plan, call, workspace, chip); });
}

std::uint64_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

// The addresses of a call's rows, whose alignment kernel selection depends on.
ArgumentValues addresses_of(const ListedCall& c) {
  ArgumentValues values;
  values[Argument::q] = address_of(c.problem.q.data);
  values[Argument::k] = address_of(c.problem.k.data);
  values[Argument::v] = address_of(c.problem.v.data);
  const bool backward = c.call == Call::backward;
  values[Argument::out] = address_of(backward ? c.tensors.out.data : c.outputs.out.data);
  values[Argument::dout] = address_of(c.tensors.dout.data);
  values[Argument::dq] = address_of(c.tensors.dq.data);
  values[Argument::dk] = address_of(c.tensors.dk.data);
  values[Argument::dv] = address_of(c.tensors.dv.data);
  return values;
}

// Other values, of the same alignment.
ArgumentValues other_values(const ArgumentValues& like) {
  ArgumentValues values;
  for (std::uint64_t n = 0; n < argument_count; ++n) {
    const auto a = static_cast<Argument>(n);
    values[a] = 0x7fe000000000 - n * 0x1234560 + like[a] % 16;
  }
  if (like[Argument::v] == like[Argument::k]) values[Argument::v] = values[Argument::k];
  return values;
}

}  // namespace

std::vector<ListedChip> listed_chips() {
  return {{"gfx906", {Family::gcn5, 60, 65536}},
          {"gfx908", {Family::cdna1, 120, 65536}},
          {"gfx90a", {Family::cdna2, 104, 65536}},
          {"gfx942", {Family::cdna3, 304, 65536}},
          {"gfx942 (one XCD)", {Family::cdna3, 38, 65536}},
          {"gfx950", {Family::cdna4, 256, 163840}},
          {"gfx1030", {Family::rdna2, 40, 65536}},
          {"gfx1100", {Family::rdna3, 48, 65536}},
          {"gfx1201", {Family::rdna4, 32, 65536}},
          {"sm_80", {Family::sm80, 108, 101376}},
          {"sm_90 (sm_80 kernels)", {Family::sm80, 132, 232448}},
          {"sm_90", {Family::sm80, 132, 232448, true}}};
}

std::vector<ListedCall> listed_calls() {
  const Sizes shapes[] = {
      {.b = 2, .sq = 1000, .sk = 900, .h = 8, .hk = 8},
      {.b = 16, .sq = 4096, .sk = 4096, .h = 16, .hk = 16},
      {.b = 1, .sq = 1100, .sk = 2000, .h = 3, .hk = 3},
      {.b = 1, .sq = 1, .sk = 131072, .h = 32, .hk = 8},
      {.b = 2, .sq = 3, .sk = 1024, .h = 32, .hk = 8},
      {.b = 64, .sq = 1, .sk = 4096, .h = 32, .hk = 8},
      {.b = 4, .sq = 64, .sk = 700, .h = 8, .hk = 2},
      {.b = 1, .sq = 65, .sk = 4096, .h = 8, .hk = 8},
      {.b = 2, .sq = 16, .sk = 16, .h = 4, .hk = 4},
      {.b = 0, .sq = 5, .sk = 5, .h = 2, .hk = 2},
      {.b = 2, .sq = 0, .sk = 5, .h = 2, .hk = 2},
      {.b = 2, .sq = 5, .sk = 0, .h = 2, .hk = 2},
      {.b = 3, .sq = 1, .sk = 1, .h = 4, .hk = 1},
      {.b = 1, .sq = std::int64_t{1} << 30, .sk = std::int64_t{1} << 30, .h = 1, .hk = 1},
  };
  constexpr std::pair<int, int> head_dims[] = {{64, 64},   {128, 128}, {80, 16},  {96, 96},
                                               {192, 128}, {256, 256}, {40, 17},  {300, 300},
                                               {64, 256},  {32, 64},   {576, 512}};
  constexpr Call calls[] = {Call::forward, Call::decode, Call::backward};
  std::vector<ListedCall> found;
  const auto with_head_dims = [](Sizes s, std::pair<int, int> dims) {
    std::tie(s.d, s.dv) = dims;
    if (dims.first == 576) s.hk = 1;
    return s;
  };
  for (const Call call : calls)
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      for (const auto& dims : head_dims)
        for (const Sizes& shape : shapes)
          if (dtype != DType::f16 || &shape < shapes + 2)
            found.push_back(listed(call, dtype, with_head_dims(shape, dims)));
  std::vector<Change> changes = score_changes();
  for (Change& change : row_changes()) changes.push_back(std::move(change));
  constexpr std::array changed_shapes{0, 2, 3, 4, 6, 11};
  constexpr std::array<std::pair<int, int>, 4> changed_dims{
      {{128, 128}, {192, 128}, {64, 64}, {576, 512}}};
  for (const Call call : calls)
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const auto& dims : changed_dims)
        for (const int shape : changed_shapes)
          for (const Change& change : changes) {
            ListedCall c = listed(call, dtype, with_head_dims(shapes[shape], dims));
            change.apply(c);
            c.name += std::string(" ") + change.name;
            found.push_back(std::move(c));
          }
  return found;
}

std::string plan_text(const ListedCall& c, Chip chip, bool arguments) {
  std::string line;
  try {
    const std::string why = c.call == Call::backward
                                ? refusal(BackwardCall{c.problem, c.tensors, {}}, chip.family)
                                : refusal(ForwardCall{c.problem, c.outputs, {}});
    if (!why.empty()) return "refused: " + why;
    Plan size, plan;
    plan_listed(size, c, nullptr, chip);
    plan_listed(plan, c, at(0x10000000), chip);
    if (size.workspace.value() != plan.workspace.value()) line += "WORKSPACE DIFFERS ";
    for (const Launch& launch : plan.launches()) line += launch_text(launch, arguments);
    line += text("workspace ", plan.workspace.value());
  } catch (const Refusal& refusal) {
    line += text("rejected: ", refusal.message());
  }
  return line;
}

std::pair<std::string, std::string> reused_plan_texts(const ListedCall& c, Chip chip) {
  const ArgumentValues like = addresses_of(c), values = other_values(like);
  std::string reused, planned;
  try {
    with_call(c, [&](const auto& call) {
      Plan plan;
      auto bound = call;
      bind_arguments(bound, values);
      plan_call(plan, bound, at(values[Argument::workspace]), chip);
      for (const Launch& launch : plan.launches()) planned += launch_text(launch, true);
    });
    with_call(c, [&](const auto& call) {
      ReusablePlan(call, like, chip).for_each_launch(values, [&](const Launch& launch) {
        reused += launch_text(launch, true);
      });
    });
  } catch (const Refusal& refusal) {
    reused += refusal.message();
    if (planned.empty()) planned = reused;  // both are rejected
  }
  return {reused, planned};
}

}  // namespace rocflash::gpu
