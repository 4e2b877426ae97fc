#include "core/train/canary_step.h"

#include <algorithm>

namespace trainerd::core::train {

std::int64_t row_shares(const parallel::ParallelOptions& options) {
  return options.sequence_parallel ? options.tp : 1;
}

BatchShape canary_shape(const BatchShape& step, const parallel::ParallelOptions& options,
                        kernels::GemmFormat format) {
  // GPUs multiply FP8 operands whose sizes are multiples of 16.
  constexpr std::int64_t kTokens = 128, kFp8Tokens = 16;
  // Each context-parallel rank has two chunks of a sequence.
  const std::int64_t shares = row_shares(options) * (options.cp > 1 ? 2 * options.cp : 1) *
                              (format == kernels::GemmFormat::fp8 ? kFp8Tokens : 1);
  BatchShape all = step;
  all.dp_rank = 0;
  BatchShape few = all;
  few.micro = 1;
  few.seq_len = std::min((kTokens + shares - 1) / shares * shares, step.seq_len);
  return few.seq_len % shares == 0 ? few : all;
}

job::JobSpec canary_job(const job::JobSpec& job) {
  const BatchShape shape =
      canary_shape({.seq_len = job.model.seq_len, .micro = job.batch.micro, .cp = job.parallel.cp},
                   job.parallel, job.precision.gemm);
  job::JobSpec few = job;
  few.batch.global = job.microbatches() * shape.micro * job.parallel.dp;
  few.batch.ramp.clear();
  few.batch.micro = shape.micro;
  few.model.seq_len = shape.seq_len;
  return few;
}

}  // namespace trainerd::core::train
