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

io::NoticeRecord fewer_batches_notice(const job::JobSpec& job, std::int64_t batches) {
  return {io::NoticeKind::warning,
          0,
          "evaluate.batches: " + std::to_string(job.evaluate.batches) +
              " global batches are more than the validation data holds: an evaluation takes all " +
              std::to_string(batches) + " whole ones",
          {}};
}

void EvaluationMean::add(double loss, double loss_weight) {
  if (loss_weight == 0) return;
  sum_ += loss * (loss_weight / tokens_);
  weight_ += loss_weight / tokens_;
}

double EvaluationMean::value() const {
  if (weight_ == 0)
    throw base::data_error(
        "the validation data: no token of an evaluation's global batches counts in the loss, as its loss "
        "masks say: give validation data with counted tokens, make evaluate.batches larger, or set "
        "evaluate.every: 0");
  return sum_ / weight_;
}

void require_counted(double loss_weight, std::int64_t step, const SampleRange& samples) {
  if (loss_weight > 0) return;
  throw base::data_error("step " + std::to_string(step) + ": no token of its global batch (" +
                         std::to_string(samples.count) + " samples from number " +
                         std::to_string(samples.first) +
                         ") counts in the loss, as the loss masks of the data say; nothing was updated. Make "
                         "batch.global larger "
                         "and resume, or train on data with counted tokens in every few samples");
}

}  // namespace trainerd::core::run
