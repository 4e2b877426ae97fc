#include "core/spec/check_sizes.h"

#include <algorithm>
#include <cmath>

#include "core/job/model_options.h"
#include "kernels/tensor/dtype.h"
#include "parallel/layout/layout.h"

namespace trainerd::core::spec {
namespace {

// For all ranks of a job: 4 EiB, half of what 63 bits can count.
constexpr double kMaxBytes = 4.0 * 0x1p60;
// Maximum number of a rank's gradient buckets; each has entries in several lists.
constexpr double kMaxBuckets = 1 << 18;

double number(std::int64_t n) { return static_cast<double>(n); }

/// Upper bound on the bytes of one microbatch's activations on the ranks that hold one copy of the model.
double microbatch_bytes(const job::JobSpec& job) {
  const job::ModelOptions& m = job.model;
  // A rank has at most the rows of all expert-parallel ranks.
  const std::int64_t rows = m.experts.per_token * std::max<std::int64_t>(1, job.parallel.ep);
  constexpr double kBytes = 4, kHidden = 16, kRows = 4, kQkv = 4, kFfn = 8, kLogits = 4;
  const double qkv = number((m.heads + m.kv_heads) * m.head_dim + m.kv_heads * job::value_head_dim(m)) +
                     number(m.mla.q_lora_rank + m.mla.kv_lora_rank);
  const double of_layer = kHidden * number(m.hidden) + kQkv * qkv +
                          kFfn * std::max(number(m.ffn), number(job::expert_ffn(m)) * number(rows)) +
                          kFfn * number(m.experts.shared_ffn) + kRows * number(m.hidden) * number(rows) +
                          4 * number(m.experts.count);
  const double tokens = number(job.batch.micro) * number(m.seq_len);
  // A deterministic attention backward needs a product of all positions as scratch.
  const double scores = 4 * number(m.heads) * tokens * number(m.seq_len);
  return tokens * kBytes * (number(m.layers) * of_layer + kLogits * number(m.vocab)) + scores;
}

}  // namespace

std::optional<SizeProblem> size_problem(const job::JobSpec& job) {
  const job::ModelOptions& m = job.model;
  const parallel::ParallelOptions& p = job.parallel;
  if (std::min({m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab, m.seq_len,
                job.batch.micro, job.batch.global, p.tp, p.cp, p.pp, p.dp, p.ep, p.expert_tp(),
                p.virtual_stages}) < 1)
    return std::nullopt;
  const std::int64_t microbatches = job.microbatches(), chunks = p.pp * p.virtual_stages;
  if (microbatches > kMaxComputations / chunks)
    return SizeProblem{"batch.global",
                       std::to_string(microbatches) + " microbatches on " + std::to_string(chunks) +
                           (chunks == 1 ? " pipeline chunk" : " pipeline chunks") + " are more than " +
                           std::to_string(kMaxComputations) +
                           " computations: make it smaller, or batch.micro or parallel.dp larger"};
  const double parameters = number(job::count_parameters(m).total), copies = number(p.gradient_ranks());
  constexpr double kStateBytes = 24;  // weights, gradients, master weights, two moments, rounded up
  if (parameters * kStateBytes * copies > kMaxBytes)
    return SizeProblem{"model",
                       "its parameters with their gradients and the optimizer's state are more than 4 EiB on "
                       "all ranks: no cluster has that; make "
                       "layers, hidden, ffn or vocab smaller"};
  const std::int64_t cut = p.whole_experts() ? std::min(p.tp, p.ep) : p.tp;
  const double gradients = parameters / number(cut * p.pp) * number(kernels::size_of(job.precision.grads));
  const double bucket =
      number(p.bucket_bytes > 0 ? p.bucket_bytes : parallel::default_bucket_bytes(p.most_gradient_ranks()));
  // Too many even with default buckets: the model is too large, not the buckets too small.
  if (gradients > kMaxBuckets * number(parallel::default_bucket_bytes(p.most_gradient_ranks()))) {
    constexpr double kTebi = 0x1p40;
    return SizeProblem{"model", "a rank's gradients alone are " +
                                    std::to_string(static_cast<std::int64_t>(gradients / kTebi)) +
                                    " TiB, more than the memory of any device: raise parallel.tp or "
                                    "parallel.pp, or make layers, hidden, ffn or vocab smaller"};
  }
  if (gradients / bucket > kMaxBuckets)
    return SizeProblem{
        "parallel.bucket_bytes",
        "a rank's gradients are more than " + std::to_string(static_cast<std::int64_t>(kMaxBuckets)) +
            " buckets of " + std::to_string(static_cast<std::int64_t>(bucket)) +
            " bytes: raise parallel.tp or parallel.pp, or set it (nearest valid: " +
            std::to_string(static_cast<std::int64_t>(std::ceil(gradients / kMaxBuckets))) + ")"};
  // The number of microbatches in flight is the number of chunks, or all of them.
  const double under_way = p.schedule == parallel::ScheduleKind::gpipe
                               ? number(microbatches)
                               : std::min(number(microbatches), 2 * number(chunks));
  if (microbatch_bytes(job) * under_way * copies > kMaxBytes)
    return SizeProblem{
        job.batch.micro > 1 ? "batch.micro" : "model.seq_len",
        "the activations of " + std::to_string(job.batch.micro) + " x " + std::to_string(m.seq_len) +
            " tokens are more than 4 EiB on all ranks: no cluster has that; make it or the model smaller"};
  return std::nullopt;
}

}  // namespace trainerd::core::spec
