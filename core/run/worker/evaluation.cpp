#include "core/run/worker/evaluation.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace trainerd::core::run {

bool evaluation_due(const job::JobSpec& job, std::int64_t step) {
  return job.evaluate.every > 0 && (step == job.steps || step % job.evaluate.every == 0);
}

std::int64_t evaluation_batches(const job::JobSpec& job, std::int64_t samples) {
  const std::int64_t whole = samples / job.batch.global;
  if (whole == 0)
    throw base::data_error(
        "data.valid: the validation data holds " + std::to_string(samples) + " sequences of " +
        std::to_string(job.model.seq_len) + " tokens, and an evaluation needs one global batch of " +
        std::to_string(job.batch.global) +
        ": give more validation data, make batch.global smaller, or set evaluate.every: 0");
  return std::min(job.evaluate.batches, whole);
}

}  // namespace trainerd::core::run
