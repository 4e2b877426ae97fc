#include "parallel/tensor/head.h"

#include <algorithm>

#include "parallel/tensor/flow.h"

namespace trainerd::parallel {
namespace {

using namespace kernels;

/// Converts statistics of a part of the vocabulary into those of the whole vocabulary.
void reduce_stats(const TensorParallel& tp, Stream& s, const Tensor& max, const Tensor& sum_exp,
                  const Tensor& target) {
  if (tp.group.size() == 1) return;
  const ArenaScope scope(s.scratch());
  const Tensor local = s.scratch().take(DType::f32, max.shape, MemoryTerm::logits);
  tp.backend.copy(s, max, local);
  wait_in_turns(*tp.group.all_reduce(s, max, ReduceOp::max, in_turns(s, "softmax_max")), s);
  tp.backend.ce_rescale(s, {.max_local_T = local, .max_T = max, .sum_exp_T = sum_exp});
  sum_over(tp, s, sum_exp, "softmax_sum");
  sum_over(tp, s, target, "target_logit");
}

/// Per token.
struct SoftmaxStats {
  Tensor max, sum_exp, target;
  SoftmaxStats rows(std::int64_t begin, std::int64_t count) const {
    return {max.rows(begin, count), sum_exp.rows(begin, count), target.rows(begin, count)};
  }
};

Tensor take_logits(Stream& s, const HeadLoss& a, std::int64_t count) {
  return s.scratch().take(a.y_TD.dtype, {count, a.fprop.plain_NC.size(0)}, MemoryTerm::logits);
}

SoftmaxStats take_stats(Stream& s, std::int64_t count) {
  const auto take = [&] { return s.scratch().take(DType::f32, {count}, MemoryTerm::logits); };
  SoftmaxStats stats;
  stats.max = take(), stats.sum_exp = take(), stats.target = take();
  return stats;
}

/// Computes the logits of tokens from `begin`, as many as `logits` has rows.
void make_logits(const TensorParallel& tp, Stream& s, const HeadLoss& a, std::int64_t begin,
                 const Tensor& logits) {
  const Tensor y = a.y_TD.rows(begin, logits.size(0));
  tp.backend.linear_fprop(s, {.x_TC = y, .weight = a.fprop, .bias_N = {}, .addend_TN = {}, .y_TN = logits});
}

void make_stats(const TensorParallel& tp, Stream& s, const HeadLoss& a, std::int64_t begin,
                const Tensor& logits, const SoftmaxStats& stats) {
  tp.backend.ce_stats(s, {.logits_TV = logits,
                          .targets_T = a.targets_T.rows(begin, logits.size(0)),
                          .first_row = a.first_row,
                          .vocab = a.vocab,
                          .softcap = a.softcap,
                          .label_smoothing = a.label_smoothing,
                          .max_T = stats.max,
                          .sum_exp_T = stats.sum_exp,
                          .target_logit_T = stats.target});
  reduce_stats(tp, s, stats.max, stats.sum_exp, stats.target);
}

/// Computes losses, weighted by `weight_T`, and if wanted replaces the logits by their gradients.
void finish(const TensorParallel& tp, Stream& s, const HeadLoss& a, std::int64_t begin, const Tensor& logits,
            const SoftmaxStats& stats, const Tensor& weight_T, CeFinish::Want want) {
  const std::int64_t count = logits.size(0);
  tp.backend.ce_finish(s, {.logits_TV = logits,
                           .targets_T = a.targets_T.rows(begin, count),
                           .loss_weight_T = weight_T,
                           .first_row = a.first_row,
                           .vocab = a.vocab,
                           .softcap = a.softcap,
                           .max_T = stats.max,
                           .sum_exp_T = stats.sum_exp,
                           .target_logit_T = stats.target,
                           .grad_scale = a.grad_scale,
                           .loss_scale = a.loss_scale,
                           .label_smoothing = a.label_smoothing,
                           .z_loss = a.z_loss,
                           .loss_T = a.loss_T.rows(begin, count),
                           .z_loss_T = a.z_loss > 0 ? a.z_loss_T.rows(begin, count) : Tensor{},
                           .want = want});
}

/// The gradients of the head's input and weight, from those of the logits.
void head_gradients(const TensorParallel& tp, Stream& s, const HeadLoss& a, std::int64_t begin,
                    const Tensor& dlogits, WriteMode mode) {
  const std::int64_t count = dlogits.size(0);
  const Tensor y = a.y_TD.rows(begin, count), dy = a.dy_TD.rows(begin, count);
  tp.backend.linear_dgrad(s, {.dy_TN = dlogits, .weight = a.dgrad, .dx_TC = dy, .mode = WriteMode::assign});
  if (!a.dweight_VD.defined()) return;
  tp.backend.linear_wgrad(
      s, {.dy_TN = dlogits, .x_TC = y, .dweight_NC = a.dweight_VD, .dbias_N = {}, .mode = mode});
}

/// Same as `make_stats` and `finish` with gradients, in one operator. A GPU that holds the whole vocabulary
/// then reads the logits once.
void whole_loss(const TensorParallel& tp, Stream& s, const HeadLoss& a, std::int64_t begin,
                const Tensor& logits, const SoftmaxStats& stats) {
  const std::int64_t count = logits.size(0);
  tp.backend.ce_loss(s, {.logits_TV = logits,
                         .targets_T = a.targets_T.rows(begin, count),
                         .loss_weight_T = a.loss_weight_T.rows(begin, count),
                         .vocab = a.vocab,
                         .softcap = a.softcap,
                         .grad_scale = a.grad_scale,
                         .loss_scale = a.loss_scale,
                         .label_smoothing = a.label_smoothing,
                         .z_loss = a.z_loss,
                         .max_T = stats.max,
                         .sum_exp_T = stats.sum_exp,
                         .target_logit_T = stats.target,
                         .loss_T = a.loss_T.rows(begin, count),
                         .z_loss_T = a.z_loss > 0 ? a.z_loss_T.rows(begin, count) : Tensor{}});
}

void chunk_loss(const TensorParallel& tp, Stream& s, const HeadLoss& a, std::int64_t begin,
                std::int64_t count, WriteMode mode) {
  const ArenaScope scope(s.scratch());
  const bool train = a.dy_TD.defined();
  const Tensor logits = take_logits(s, a, count);
  const SoftmaxStats stats = take_stats(s, count);
  make_logits(tp, s, a, begin, logits);
  if (train && tp.group.size() == 1 && tp.backend.target().kind == DeviceKind::cuda) {
    whole_loss(tp, s, a, begin, logits, stats);
  } else {
    make_stats(tp, s, a, begin, logits, stats);
    finish(tp, s, a, begin, logits, stats, a.loss_weight_T.rows(begin, count),
           train ? CeFinish::Want::loss_and_gradient : CeFinish::Want::loss);
  }
  if (train) head_gradients(tp, s, a, begin, logits, mode);
}

/// The pairs of tokens [begin, begin + count), in chunks of at most `chunk`.
void pairs_loss(const TensorParallel& tp, Stream& s, const HeadLoss& a, std::int64_t begin,
                std::int64_t count, std::int64_t chunk, WriteMode mode) {
  const ArenaScope scope(s.scratch());
  const PreferenceTarget& p = *a.preference;
  const bool train = a.dy_TD.defined();
  const std::int64_t first_pair = begin / p.pair_tokens, pairs = count / p.pair_tokens;
  const Tensor logits = take_logits(s, a, std::min(chunk, count));
  const SoftmaxStats stats = take_stats(s, count);
  const Tensor weight_T = train ? s.scratch().take(DType::f32, {count}, MemoryTerm::logits) : Tensor{};
  const std::int64_t chunks = (count + chunk - 1) / chunk;
  // For chunk i: its first token relative to `begin`, and its rows.
  const auto first = [&](std::int64_t i) { return i * chunk; };
  const auto rows = [&](std::int64_t i) { return std::min(chunk, count - first(i)); };
  for (std::int64_t i = 0; i < chunks; ++i) {
    const Tensor part = logits.rows(0, rows(i));
    make_logits(tp, s, a, begin + first(i), part);
    make_stats(tp, s, a, begin + first(i), part, stats.rows(first(i), rows(i)));
    finish(tp, s, a, begin + first(i), part, stats.rows(first(i), rows(i)),
           a.loss_weight_T.rows(begin + first(i), rows(i)), CeFinish::Want::loss);
  }
  tp.backend.preference_loss(s, {.loss_T = a.loss_T.rows(begin, count),
                                 .loss_weight_T = a.loss_weight_T.rows(begin, count),
                                 .reference_P2 = p.reference_P2.rows(first_pair, pairs),
                                 .beta = p.beta,
                                 .label_smoothing = p.label_smoothing,
                                 .weight_T = weight_T,
                                 .logps_P2 = p.logps_P2.rows(first_pair, pairs),
                                 .loss = p.loss,
                                 .rewards = p.rewards});
  if (!train) return;
  for (std::int64_t i = chunks; i-- > 0;) {
    const Tensor part = logits.rows(0, rows(i));
    if (i + 1 < chunks) make_logits(tp, s, a, begin + first(i), part);
    finish(tp, s, a, begin + first(i), part, stats.rows(first(i), rows(i)), weight_T.rows(first(i), rows(i)),
           CeFinish::Want::loss_and_gradient);
    head_gradients(tp, s, a, begin + first(i), part, mode);
    mode = WriteMode::accumulate;
  }
}

/// Chunk sizes are multiples of this, except the last.
constexpr std::int64_t kChunkStep = 128;

/// Number of waves in which the multiprocessors compute a rows x columns output in tiles of 128 x 256 or 256
/// x 128.
std::int64_t waves_of(std::int64_t rows, std::int64_t columns, std::int64_t processors) {
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t tiles = std::min(up(rows, 128) * up(columns, 256), up(rows, 256) * up(columns, 128));
  return up(tiles, processors);
}

/// The chunk size that needs the fewest waves for all tokens, among sizes up to `most` and above half of it.
/// The largest such size.
std::int64_t of_fewest_waves(std::int64_t tokens, std::int64_t most, std::int64_t hidden,
                             std::int64_t processors) {
  std::int64_t best = most, fewest = 0;
  for (std::int64_t chunk = most; 2 * chunk > most; chunk -= kChunkStep) {
    const std::int64_t rest = tokens % chunk;
    const std::int64_t waves = tokens / chunk * waves_of(chunk, hidden, processors) +
                               (rest > 0 ? waves_of(rest, hidden, processors) : 0);
    if (fewest == 0 || waves < fewest) best = chunk, fewest = waves;
  }
  return best;
}

}  // namespace

std::int64_t head_chunk_tokens(std::int64_t tokens, const HeadShape& head, const Target& target) {
  const bool cuda = target.kind == DeviceKind::cuda;
  const std::int64_t chunk_bytes = cuda ? std::int64_t{1} << 30 : std::int64_t{32} << 20;
  const bool tuned = cuda && target.tuning.head_chunk_tokens > 0;
  const std::int64_t fit = tuned ? target.tuning.head_chunk_tokens
                                 : chunk_bytes /
                                       std::max<std::int64_t>(1, head.vocab_rows * size_of(head.dtype)) /
                                       kChunkStep * kChunkStep;
  const std::int64_t most =
      std::clamp<std::int64_t>(fit, std::min(tokens, kChunkStep), std::max<std::int64_t>(tokens, 1));
  if (!cuda || tuned || target.sm_count == 0 || most >= tokens) return most;
  return of_fewest_waves(tokens, most, head.hidden, target.sm_count);
}

void vocab_parallel_head_loss(const TensorParallel& tp, Stream& s, const HeadLoss& a) {
  const ArenaScope scope(s.scratch());
  HeadLoss whole = a;
  whole.y_TD = gathered(tp, s, a.y_TD, "head");
  const std::int64_t tokens = whole.y_TD.size(0);
  const std::int64_t chunk = head_chunk_tokens(
      tokens, {a.fprop.plain_NC.size(0), a.fprop.plain_NC.size(1), a.y_TD.dtype}, tp.backend.target());
  const auto run = [&] {
    WriteMode mode = a.mode;
    const std::int64_t pair = a.preference ? a.preference->pair_tokens : 1;
    const std::int64_t each = a.preference ? std::max<std::int64_t>(1, chunk / pair) * pair : chunk;
    for (std::int64_t begin = 0; begin < tokens; begin += each) {
      const std::int64_t count = std::min(each, tokens - begin);
      if (a.preference) pairs_loss(tp, s, whole, begin, count, chunk, mode);
      else chunk_loss(tp, s, whole, begin, count, mode);
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
