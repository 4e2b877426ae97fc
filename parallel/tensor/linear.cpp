#include "parallel/tensor/linear.h"

#include <algorithm>
#include <utility>

#include "parallel/comm/turns.h"
#include "parallel/tensor/flow.h"

namespace trainerd::parallel {
namespace {

using namespace kernels;

// Functions that run an operator with given arguments, followed by the adapter if the weight has one.
auto fprop_of(const TensorParallel& tp, Stream& s, const Adapter* adapter) {
  return [&tp, &s, adapter](const LinearFprop& a) {
    tp.backend.linear_fprop(s, a);
    if (adapter != nullptr) add_adapter(tp.backend, s, *adapter, a.x_TC, a.y_TN);
  };
}
auto dgrad_of(const TensorParallel& tp, Stream& s, const Adapter* adapter) {
  return [&tp, &s, adapter](const LinearDgrad& a) {
    tp.backend.linear_dgrad(s, a);
    if (adapter != nullptr) add_adapter_dgrad(tp.backend, s, *adapter, a.dy_TN, a.dx_TC);
  };
}
void make_wgrad(const TensorParallel& tp, Stream& s, const LinearWgrad& a) { tp.backend.linear_wgrad(s, a); }
void make_wgrad(const TensorParallel& tp, Stream& s, const AdapterWgrad& a) {
  adapter_wgrad(tp.backend, s, a);
}

/// Runs an operator on all rows of its flow operand.
template <class Args, class Run>
void run_gathered(const TensorParallel& tp, Stream& s, Args args, Tensor Args::*flow, const char* label,
                  const Run& run) {
  const ArenaScope scope(s.scratch());
  args.*flow = gathered(tp, s, args.*flow, label);
  run(args);
}

template <class Wgrad>
void run_wgrad(const TensorParallel& tp, Stream& s, const Wgrad& a, Tensor Wgrad::*flow, const char* label) {
  run_gathered(tp, s, a, flow, label, [&](const Wgrad& all) { make_wgrad(tp, s, all); });
}

// ---- Overlap: an operator in chunks of rows, with their collectives in the background

/// Rows of a chunk are a multiple of this, except in the last: GEMMs run in blocks of this many rows.
constexpr std::int64_t kChunkRows = 16;

std::int64_t chunk_rows(const TensorParallel& tp, std::int64_t rows) {
  const std::int64_t each = (rows + tp.overlap_chunks - 1) / tp.overlap_chunks;
  return (each + kChunkRows - 1) / kChunkRows * kChunkRows;
}

bool overlapped(const TensorParallel& tp, std::int64_t rows) {
  return tp.group.size() > 1 && tp.overlap_chunks > 1 && chunk_rows(tp, rows) < rows;
}

CommOptions in_background(const char* label) { return {.label = label, .progress = Progress::background}; }

Tensor rows_of(const Tensor& x, std::int64_t begin, std::int64_t count) {
  return x.defined() ? x.rows(begin, count) : x;
}

// The operator on the rows that start at `begin` and whose flow operand is `flow`.
LinearFprop on_rows(LinearFprop a, const Tensor& flow, std::int64_t begin) {
  a.x_TC = flow;
  a.addend_TN = rows_of(a.addend_TN, begin, flow.size(0));
  a.y_TN = rows_of(a.y_TN, begin, flow.size(0));
  return a;
}
LinearDgrad on_rows(LinearDgrad a, const Tensor& flow, std::int64_t begin) {
  a.dy_TN = flow;
  a.dx_TC = rows_of(a.dx_TC, begin, flow.size(0));
  return a;
}
LinearSwiglu on_rows(LinearSwiglu a, const Tensor& flow, std::int64_t begin) {
  a.x_TC = flow;
  a.gate_up_T2F = rows_of(a.gate_up_T2F, begin, flow.size(0));
  a.act_TF = rows_of(a.act_TF, begin, flow.size(0));
  return a;
}
LinearDgradSwiglu on_rows(LinearDgradSwiglu a, const Tensor& flow, std::int64_t begin) {
  a.dy_TD = flow;
  a.gate_up_T2F = rows_of(a.gate_up_T2F, begin, flow.size(0));
  a.dgate_up_T2F = rows_of(a.dgate_up_T2F, begin, flow.size(0));
  a.act_TF = rows_of(a.act_TF, begin, flow.size(0));
  return a;
}

// The operator that computes rows [begin, begin + rows of `out`) of its result into `out`.
LinearFprop into_rows(LinearFprop a, const Tensor& out, std::int64_t begin) {
  a.x_TC = rows_of(a.x_TC, begin, out.size(0));
  a.addend_TN = rows_of(a.addend_TN, begin, out.size(0));
  a.y_TN = out;
  return a;
}
LinearDgrad into_rows(LinearDgrad a, const Tensor& out, std::int64_t begin) {
  a.dy_TN = rows_of(a.dy_TN, begin, out.size(0));
  a.dx_TC = out;
  return a;
}

/// This rank's rows need no communication: their GEMM runs while the first chunk of the other ranks' rows
/// arrives. Each chunk's GEMM runs while the next chunk arrives. All rows are written to `whole` if it is
/// set.
template <class Args, class Run>
void run_gathered_in_chunks(const TensorParallel& tp, Stream& s, const Args& args, const Tensor& flow,
                            const char* label, const Run& run, const Tensor& whole = {}) {
  const ArenaScope scope(s.scratch());
  const std::int64_t rows = flow.size(0), each = chunk_rows(tp, rows), ranks = tp.group.size(),
                     rank = tp.group.rank();
  struct Chunk {
    std::int64_t begin, rows;
    Tensor all;  ///< rows of every rank, concatenated
    std::unique_ptr<Work> work;
  };
  std::vector<Chunk> chunks;
  for (std::int64_t begin = 0; begin < rows; begin += each) {
    Chunk& c = chunks.emplace_back(Chunk{begin, std::min(each, rows - begin), {}, nullptr});
    const Tensor mine = flow.rows(c.begin, c.rows);
    c.all = whole_shape(tp, s, mine);
    c.work = tp.group.all_gather(s, mine, c.all, in_background(label));
  }
  const auto run_and_keep = [&](const Tensor& part, std::int64_t begin) {
    run(on_rows(args, part, begin));
    if (whole.defined()) tp.backend.copy(s, part, whole.rows(begin, part.size(0)));
  };
  run_and_keep(flow, rank * rows);
  for (const Chunk& c : chunks) {
    wait_in_turns(*c.work, s);
    for (std::int64_t r = 0; r < ranks; ++r)
      if (r != rank) run_and_keep(c.all.rows(r * c.rows, c.rows), r * rows + c.begin);
  }
}

/// Each chunk is summed over tp while the next one's GEMM runs.
template <class Args, class Run>
void run_summed_in_chunks(const TensorParallel& tp, Stream& s, const Args& args, const Tensor& flow,
                          const char* label, const Run& run) {
  const ArenaScope scope(s.scratch());
  const std::int64_t rows = flow.size(0), each = chunk_rows(tp, rows);
  std::vector<std::unique_ptr<Work>> sums;
  for (std::int64_t begin = 0; begin < rows; begin += each) {
    const Tensor sum = flow.rows(begin, std::min(each, rows - begin));
    if (!cut(tp)) {
      run(into_rows(args, sum, begin));
      sums.push_back(tp.group.all_reduce(s, sum, ReduceOp::sum, in_background(label)));
      continue;
    }
    const Tensor summands = whole_shape(tp, s, sum);
    for (std::int64_t r = 0; r < tp.group.size(); ++r)
      run(into_rows(args, summands.rows(r * sum.size(0), sum.size(0)), r * rows + begin));
    sums.push_back(tp.group.reduce_scatter(s, summands, sum, in_background(label)));
  }
  for (const auto& sum : sums) wait_in_turns(*sum, s);
}

/// Runs an operator that treats rows independently on all rows of its flow operand.
template <class Args, class Run>
void run_by_rows(const TensorParallel& tp, Stream& s, const Args& args, Tensor Args::*flow, const char* label,
                 const Run& run) {
  const Tensor& x = args.*flow;
  if (cut(tp) && overlapped(tp, x.size(0))) run_gathered_in_chunks(tp, s, args, x, label, run);
  else run_gathered(tp, s, args, flow, label, run);
}

/// Computes the input gradient of a row-parallel linear and, if wanted, the gradient of its weight or
/// adapter.
template <class Args, class Run, class Wgrad>
void run_row_backward(const TensorParallel& tp, Stream& s, Args args, Tensor Args::*flow, const char* label,
                      const Run& run, std::optional<Wgrad> wgrad) {
  if (!wgrad) return run_by_rows(tp, s, args, flow, label, run);
  const ArenaScope scope(s.scratch());
  const Tensor dy = args.*flow;
  if (cut(tp) && overlapped(tp, dy.size(0))) {
    wgrad->dy_TN = whole_shape(tp, s, dy);
    run_gathered_in_chunks(tp, s, args, dy, label, run, wgrad->dy_TN);
  } else {
    args.*flow = wgrad->dy_TN = gathered(tp, s, dy, label);
    run(args);
  }
  make_wgrad(tp, s, *wgrad);
}

/// Runs an operator whose result, a flow, must be summed over tp.
template <class Args, class Run>
void run_summed(const TensorParallel& tp, Stream& s, Args args, Tensor Args::*flow, const char* label,
                const Run& run) {
  const Tensor sum = args.*flow;
  if (overlapped(tp, sum.size(0))) return run_summed_in_chunks(tp, s, args, sum, label, run);
  summed(tp, s, sum, label, [&](const Tensor& out) {
    args.*flow = out;
    run(args);
  });
}

/// Computes the input gradient of a column-parallel linear, then the gradient of its weight or adapter.
template <class Wgrad>
void run_column_backward(const TensorParallel& tp, Stream& s, const LinearDgrad& a, const Wgrad& w,
                         const Adapter* adapter) {
  if (tp.group.size() == 1 || !tp.overlap_backward) {
    column_linear_dgrad(tp, s, a, adapter);
    return column_linear_wgrad(tp, s, w);
  }
  const ArenaScope scope(s.scratch());
  Wgrad wgrad = w;
  std::unique_ptr<Work> gather, sum;
  if (cut(tp)) {
    wgrad.x_TC = whole_shape(tp, s, w.x_TC);
    gather = tp.group.all_gather(s, w.x_TC, wgrad.x_TC, in_background("column_linear_wgrad"));
  }
  if (overlapped(tp, a.dx_TC.size(0))) {
    column_linear_dgrad(tp, s, a, adapter);
  } else {
    LinearDgrad dgrad = a;
    if (cut(tp)) dgrad.dx_TC = whole_shape(tp, s, a.dx_TC);
    dgrad_of(tp, s, adapter)(dgrad);
    sum = cut(tp) ? tp.group.reduce_scatter(s, dgrad.dx_TC, a.dx_TC, in_background("column_linear_dgrad"))
                  : tp.group.all_reduce(s, a.dx_TC, ReduceOp::sum, in_background("column_linear_dgrad"));
  }
  if (gather) wait_in_turns(*gather, s);
  make_wgrad(tp, s, wgrad);
  if (sum) wait_in_turns(*sum, s);
}

/// Starts to gather `part` into `whole`. Returns `gradient`, which waits for it.
std::function<void()> gathering(const TensorParallel& tp, Stream& s, const Tensor& part, const Tensor& whole,
                                const char* label, std::function<void()> gradient) {
  const std::shared_ptr<Work> gather = tp.group.all_gather(s, part, whole, in_background(label));
  return [&s, gather, gradient = std::move(gradient)] {
    wait_in_turns(*gather, s);
    gradient();
  };
}

Tensor gather_dy(const TensorParallel& tp, Stream& s, const Tensor& dy_TD, DelayedWgrads& delayed,
                 const char* label) {
  delayed.run_row();  // would read the buffer that is written now
  const auto gather = tp.group.all_gather(s, dy_TD, delayed.dy_TD(), in_background(label));
  delayed.run_column();
  wait_in_turns(*gather, s);
  return delayed.dy_TD();
}

}  // namespace

void DelayedWgrads::run_row() {
  if (row_) std::exchange(row_, nullptr)();
}
void DelayedWgrads::run_column() {
  if (column_) std::exchange(column_, nullptr)();
}

void column_linear(const TensorParallel& tp, Stream& s, const LinearFprop& a, const Adapter* adapter) {
  run_by_rows(tp, s, a, &LinearFprop::x_TC, "column_linear", fprop_of(tp, s, adapter));
}

void column_linear_dgrad(const TensorParallel& tp, Stream& s, const LinearDgrad& a, const Adapter* adapter) {
  base::check(a.mode == WriteMode::assign, "a sum over tp must not count what was there before twice");
  run_summed(tp, s, a, &LinearDgrad::dx_TC, "column_linear_dgrad", dgrad_of(tp, s, adapter));
}

void column_linear_wgrad(const TensorParallel& tp, Stream& s, const LinearWgrad& a) {
  run_wgrad(tp, s, a, &LinearWgrad::x_TC, "column_linear_wgrad");
}
void column_linear_wgrad(const TensorParallel& tp, Stream& s, const AdapterWgrad& a) {
  run_wgrad(tp, s, a, &AdapterWgrad::x_TC, "column_linear_wgrad");
}

void column_linear_wgrad(const TensorParallel& tp, Stream& s, const Tensor& x_TC, DelayedWgrads& delayed,
                         std::function<void()> gradient) {
  delayed.run_column();  // would read the buffer that is written now
  std::function<void()> later =
      gathering(tp, s, x_TC, delayed.x_TD(), "column_linear_wgrad", std::move(gradient));
  delayed.run_row();
  delayed.delay_column(std::move(later));
}

void column_linear_swiglu(const TensorParallel& tp, Stream& s, const LinearSwiglu& a) {
  run_by_rows(tp, s, a, &LinearSwiglu::x_TC, "column_linear_swiglu",
              [&](const LinearSwiglu& rows) { tp.backend.linear_swiglu(s, rows); });
}

void column_linear_backward(const TensorParallel& tp, Stream& s, const LinearDgrad& a, const LinearWgrad& w) {
  run_column_backward(tp, s, a, w, nullptr);
}
void column_linear_backward(const TensorParallel& tp, Stream& s, const LinearDgrad& a,
                            const AdapterWgrad& w) {
  run_column_backward(tp, s, a, w, &w.adapter);
}

void column_linear_dgrad(const TensorParallel& tp, Stream& s, const LinearDgrad& a, const Tensor& x_TC,
                         DelayedWgrads& delayed) {
  const ArenaScope scope(s.scratch());
  delayed.run_column();  // would read the buffer that is written now
  const auto gather = tp.group.all_gather(s, x_TC, delayed.x_TD(), in_background("column_linear_wgrad"));
  LinearDgrad whole = a;
  whole.dx_TC = whole_shape(tp, s, a.dx_TC);
  tp.backend.linear_dgrad(s, whole);
  const auto sum = tp.group.reduce_scatter(s, whole.dx_TC, a.dx_TC, in_background("column_linear_dgrad"));
  wait_in_turns(*gather, s);
  delayed.run_row();
  wait_in_turns(*sum, s);
}

void row_linear(const TensorParallel& tp, Stream& s, const LinearFprop& a, const Adapter* adapter) {
  LinearFprop part = a;
  if (tp.group.rank() != 0) part.bias_N = part.addend_TN = {};
  run_summed(tp, s, part, &LinearFprop::y_TN, "row_linear", fprop_of(tp, s, adapter));
}

void row_linear_dgrad(const TensorParallel& tp, Stream& s, const LinearDgrad& a,
                      const std::optional<LinearWgrad>& wgrad) {
  run_row_backward(tp, s, a, &LinearDgrad::dy_TN, "row_linear_dgrad", dgrad_of(tp, s, nullptr), wgrad);
}
void row_linear_dgrad(const TensorParallel& tp, Stream& s, const LinearDgrad& a, const Adapter& adapter,
                      const std::optional<AdapterWgrad>& wgrad) {
  run_row_backward(tp, s, a, &LinearDgrad::dy_TN, "row_linear_dgrad", dgrad_of(tp, s, &adapter), wgrad);
}

void row_linear_wgrad(const TensorParallel& tp, Stream& s, const LinearWgrad& a) {
  run_wgrad(tp, s, a, &LinearWgrad::dy_TN, "row_linear_wgrad");
}
void row_linear_wgrad(const TensorParallel& tp, Stream& s, const AdapterWgrad& a) {
  run_wgrad(tp, s, a, &AdapterWgrad::dy_TN, "row_linear_wgrad");
}

void row_linear_wgrad(const TensorParallel& tp, Stream& s, const Tensor& dy_TN, DelayedWgrads& delayed,
                      std::function<void()> gradient) {
  delayed.run_row();  // would read the buffer that is written now
  std::function<void()> later =
      gathering(tp, s, dy_TN, delayed.dy_TD(), "row_linear_wgrad", std::move(gradient));
  delayed.run_column();
  delayed.delay_row(std::move(later));
}

void row_linear_dgrad_swiglu(const TensorParallel& tp, Stream& s, const LinearDgradSwiglu& a,
                             const std::optional<LinearWgrad>& wgrad) {
  run_row_backward(
      tp, s, a, &LinearDgradSwiglu::dy_TD, "row_linear_dgrad_swiglu",
      [&](const LinearDgradSwiglu& rows) { tp.backend.linear_dgrad_swiglu(s, rows); }, wgrad);
}

void row_linear_dgrad(const TensorParallel& tp, Stream& s, LinearDgrad a, DelayedWgrads& delayed) {
  a.dy_TN = gather_dy(tp, s, a.dy_TN, delayed, "row_linear_dgrad");
  tp.backend.linear_dgrad(s, a);
}

void row_linear_dgrad_swiglu(const TensorParallel& tp, Stream& s, LinearDgradSwiglu a,
                             DelayedWgrads& delayed) {
  a.dy_TD = gather_dy(tp, s, a.dy_TD, delayed, "row_linear_dgrad_swiglu");
  tp.backend.linear_dgrad_swiglu(s, a);
}

void vocab_parallel_embedding(const TensorParallel& tp, Stream& s, const EmbeddingForward& a) {
  summed(tp, s, a.out_TD, "embedding", [&](const Tensor& out) {
    EmbeddingForward part = a;
    part.out_TD = out;
    // Every rank has whole positions; only the first adds them.
    if (tp.group.rank() != 0) part.positions_T = part.positions_table_SD = {};
    tp.backend.embedding_forward(s, part);
  });
}

void vocab_parallel_embedding_backward(const TensorParallel& tp, Stream& s, const EmbeddingBackward& a) {
  const ArenaScope scope(s.scratch());
  EmbeddingBackward whole = a;
  whole.dout_TD = gathered(tp, s, a.dout_TD, "embedding_backward");
  tp.backend.embedding_backward(s, whole);
}

}  // namespace trainerd::parallel
