#include "parallel/linear.h"

#include <algorithm>

namespace trainerd::parallel {
namespace {

using namespace kernels;

void sum_over(const TensorParallel& tp, Stream& s, const Tensor& x, const char* label) {
  if (tp.group.size() == 1) return;
  tp.group.all_reduce(s, x, ReduceOp::sum, {.label = label})->wait(s);
}

bool cut(const TensorParallel& tp) { return tp.sequence_parallel && tp.group.size() > 1; }

Tensor whole_shape(const TensorParallel& tp, Stream& s, const Tensor& flow) {
  Shape shape = flow.shape;
  shape.sizes[0] *= tp.group.size();
  return s.scratch().take(flow.dtype, shape, MemoryTerm::activations);
}

/// All rows of a flow: itself, or gathered in scratch.
Tensor gathered(const TensorParallel& tp, Stream& s, const Tensor& flow, const char* label) {
  if (!cut(tp)) return flow;
  const Tensor whole = whole_shape(tp, s, flow);
  tp.group.all_gather(s, flow, whole, {.label = label})->wait(s);
  return whole;
}

/// Runs an operator on all rows of the operand that is a flow.
template <class Args>
void run_gathered(const TensorParallel& tp, Stream& s, Args args, Operand Args::*flow, const char* label,
                  void (Backend::*run)(Stream&, const Args&)) {
  const ArenaScope scope(s.scratch());
  (args.*flow).data = gathered(tp, s, (args.*flow).data, label);
  (tp.backend.*run)(s, args);
}

/// Calls `make(whole)` for a tensor whose sum over tp is wanted in `flow`, and sums it there.
template <class Make>
void summed(const TensorParallel& tp, Stream& s, const Tensor& flow, const char* label, const Make& make) {
  if (!cut(tp)) {
    make(flow);
    sum_over(tp, s, flow, label);
    return;
  }
  const ArenaScope scope(s.scratch());
  const Tensor whole = whole_shape(tp, s, flow);
  make(whole);
  tp.group.reduce_scatter(s, whole, flow, {.label = label})->wait(s);
}

/// Statistics of a part of the vocabulary become those of all of it.
void reduce_stats(const TensorParallel& tp, Stream& s, const Tensor& max, const Tensor& sum_exp, const Tensor& target) {
  if (tp.group.size() == 1) return;
  const ArenaScope scope(s.scratch());
  const Tensor local = s.scratch().take(DType::f32, max.shape, MemoryTerm::logits);
  tp.backend.copy(s, max, local);
  tp.group.all_reduce(s, max, ReduceOp::max, {.label = "softmax_max"})->wait(s);
  tp.backend.ce_rescale(s, {.max_local_T = local, .max_T = max, .sum_exp_T = sum_exp});
  sum_over(tp, s, sum_exp, "softmax_sum");
  sum_over(tp, s, target, "target_logit");
}

void chunk_loss(const TensorParallel& tp, Stream& s, const HeadLoss& a, std::int64_t begin, std::int64_t count, WriteMode mode) {
  const ArenaScope scope(s.scratch());
  const bool train = a.dy_TD.defined();
  const Tensor y = a.y_TD.rows(begin, count), targets = a.targets_T.rows(begin, count);
  const Tensor logits =
      s.scratch().take(y.dtype, {count, a.fprop.plain_NC.size(0)}, MemoryTerm::logits);
  const Tensor max = s.scratch().take(DType::f32, {count}, MemoryTerm::logits);
  const Tensor sum_exp = s.scratch().take(DType::f32, {count}, MemoryTerm::logits);
  const Tensor target = s.scratch().take(DType::f32, {count}, MemoryTerm::logits);

  tp.backend.linear_fprop(s, {.x_TC = y, .weight = a.fprop, .bias_N = {}, .addend_TN = {}, .y_TN = logits});
  tp.backend.ce_stats(s, {.logits_TV = logits, .targets_T = targets, .first_row = a.first_row, .vocab = a.vocab,
                          .max_T = max, .sum_exp_T = sum_exp, .target_logit_T = target});
  reduce_stats(tp, s, max, sum_exp, target);
  tp.backend.ce_finish(s, {.logits_TV = logits, .targets_T = targets, .loss_weight_T = a.loss_weight_T.rows(begin, count),
                           .first_row = a.first_row, .vocab = a.vocab, .max_T = max, .sum_exp_T = sum_exp,
                           .target_logit_T = target, .grad_scale = a.grad_scale, .loss_T = a.loss_T.rows(begin, count),
                           .want = train ? CeFinish::Want::loss_and_gradient : CeFinish::Want::loss});
  if (!train) return;
  const Tensor dy = a.dy_TD.rows(begin, count);
  tp.backend.linear_dgrad(s, {.dy_TN = logits, .weight = a.dgrad, .dx_TC = dy, .mode = WriteMode::assign});
  tp.backend.linear_wgrad(s, {.dy_TN = logits, .x_TC = y, .dweight_NC = a.dweight_VD, .dbias_N = {}, .mode = mode});
}

}  // namespace

void column_linear(const TensorParallel& tp, Stream& s, const LinearFprop& a) {
  run_gathered(tp, s, a, &LinearFprop::x_TC, "column_linear", &Backend::linear_fprop);
}

void column_linear_dgrad(const TensorParallel& tp, Stream& s, const LinearDgrad& a) {
  base::check(a.mode == WriteMode::assign, "a sum over tp must not count what was there before twice");
  summed(tp, s, a.dx_TC, "column_linear_dgrad", [&](const Tensor& dx) {
    LinearDgrad part = a;
    part.dx_TC = dx;
    tp.backend.linear_dgrad(s, part);
  });
}

void column_linear_wgrad(const TensorParallel& tp, Stream& s, const LinearWgrad& a) {
  run_gathered(tp, s, a, &LinearWgrad::x_TC, "column_linear_wgrad", &Backend::linear_wgrad);
}

void column_linear_swiglu(const TensorParallel& tp, Stream& s, const LinearSwiglu& a) {
  run_gathered(tp, s, a, &LinearSwiglu::x_TC, "column_linear_swiglu", &Backend::linear_swiglu);
}

void row_linear(const TensorParallel& tp, Stream& s, const LinearFprop& a) {
  summed(tp, s, a.y_TN, "row_linear", [&](const Tensor& y) {
    LinearFprop part = a;
    part.y_TN = y;
    if (tp.group.rank() != 0) part.bias_N = part.addend_TN = {};
    tp.backend.linear_fprop(s, part);
  });
}

void row_linear_dgrad(const TensorParallel& tp, Stream& s, const LinearDgrad& a) {
  run_gathered(tp, s, a, &LinearDgrad::dy_TN, "row_linear_dgrad", &Backend::linear_dgrad);
}

void row_linear_wgrad(const TensorParallel& tp, Stream& s, const LinearWgrad& a) {
  run_gathered(tp, s, a, &LinearWgrad::dy_TN, "row_linear_wgrad", &Backend::linear_wgrad);
}

void row_linear_dgrad_swiglu(const TensorParallel& tp, Stream& s, const LinearDgradSwiglu& a) {
  run_gathered(tp, s, a, &LinearDgradSwiglu::dy_TD, "row_linear_dgrad_swiglu", &Backend::linear_dgrad_swiglu);
}

void vocab_parallel_embedding(const TensorParallel& tp, Stream& s, const EmbeddingForward& a) {
  summed(tp, s, a.out_TD, "embedding", [&](const Tensor& out) {
    EmbeddingForward part = a;
    part.out_TD = out;
    // Positions are whole on every rank: the first adds them.
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

std::int64_t head_chunk_tokens(std::int64_t tokens, std::int64_t vocab_rows, DType dtype) {
  constexpr std::int64_t kChunkBytes = std::int64_t{32} << 20, kTokens = 128;
  const std::int64_t fit = kChunkBytes / std::max<std::int64_t>(1, vocab_rows * size_of(dtype)) / kTokens * kTokens;
  return std::clamp<std::int64_t>(fit, std::min(tokens, kTokens), std::max<std::int64_t>(tokens, 1));
}

void vocab_parallel_head_loss(const TensorParallel& tp, Stream& s, const HeadLoss& a) {
  const ArenaScope scope(s.scratch());
  HeadLoss whole = a;
  whole.y_TD = gathered(tp, s, a.y_TD, "head");
  const std::int64_t tokens = whole.y_TD.size(0);
  const std::int64_t chunk = head_chunk_tokens(tokens, a.fprop.plain_NC.size(0), a.y_TD.dtype);
  const auto run = [&] {
    WriteMode mode = a.mode;
    for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
      chunk_loss(tp, s, whole, begin, std::min(chunk, tokens - begin), mode);
      mode = WriteMode::accumulate;
    }
  };
  if (!a.dy_TD.defined()) return run();
  summed(tp, s, a.dy_TD, "head_dgrad", [&](const Tensor& dy) {
    whole.dy_TD = dy;
    run();
  });
}

}  // namespace trainerd::parallel
