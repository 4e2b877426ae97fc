#include "core/run/worker/evaluation.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/base/error.h"

namespace trainerd::core::run {

bool evaluation_due(const job::JobSpec& job, std::int64_t step) {
  return job.evaluate.every > 0 && (step == job.steps || step % job.evaluate.every == 0);
}

namespace {

std::int64_t asked_batches(const job::JobSpec& job, const io::ValidationSet& set) {
  return set.batches > 0 ? set.batches : job.evaluate.batches;
}

/// "data.valid", or "data.valid_sets: web".
std::string key_of(const std::string& set) {
  return set.empty() || set == io::kUnnamedSet ? "data.valid" : "data.valid_sets: " + set;
}

}  // namespace

std::int64_t evaluation_batches(const job::JobSpec& job, const io::ValidationSet& set, std::int64_t samples) {
  const std::int64_t whole = samples / job.batch.global;
  if (whole == 0)
    throw base::data_error(
        key_of(set.name) + ": the validation data holds " + std::to_string(samples) + " sequences of " +
        std::to_string(job.model.seq_len) + " tokens, and an evaluation needs one global batch of " +
        std::to_string(job.batch.global) +
        ": give more validation data, make batch.global smaller, or set evaluate.every: 0");
  return std::min(asked_batches(job, set), whole);
}

std::optional<io::NoticeRecord> fewer_batches_notice(const job::JobSpec& job, const io::ValidationSet& set,
                                                     std::int64_t batches) {
  const std::int64_t asked = asked_batches(job, set);
  if (batches == asked) return std::nullopt;
  return io::NoticeRecord{io::NoticeKind::warning,
                          0,
                          (set.batches > 0 ? key_of(set.name) + ": " : "") + "evaluate.batches: " +
                              std::to_string(asked) + " global batches are more than the validation data" +
                              (set.name.empty() || set.batches > 0 ? "" : " " + set.name) +
                              " holds: an evaluation takes all " + std::to_string(batches) + " whole ones",
                          {}};
}

void EvaluationMean::add(double loss, double loss_weight) {
  if (loss_weight == 0) return;
  sum_ += loss * (loss_weight / tokens_);
  weight_ += loss_weight / tokens_;
}

double EvaluationMean::value(const std::string& set) const {
  if (weight_ == 0)
    throw base::data_error(
        "the validation data" + (set.empty() ? "" : " " + set) +
        ": no token of an evaluation's global batches counts in the loss, as its loss "
        "masks say: give validation data with counted tokens, make evaluate.batches larger, or set "
        "evaluate.every: 0");
  return sum_ / weight_;
}

void PreferenceMean::add(const std::array<double, 2>& logps, const std::array<double, 2>& reference) {
  const double chosen = beta_ * (logps[0] - reference[0]), rejected = beta_ * (logps[1] - reference[1]),
               margin = chosen - rejected;
  loss_ += std::log1p(std::exp(-std::abs(margin))) + std::max(-margin, 0.0);
  sums_.margin += margin;
  sums_.accuracy += margin > 0 ? 1 : 0;
  sums_.chosen += chosen;
  sums_.rejected += rejected;
  ++pairs_;
}

io::PairRewards PreferenceMean::rewards() const {
  return {.margin = sums_.margin / pairs_,
          .accuracy = sums_.accuracy / pairs_,
          .chosen = sums_.chosen / pairs_,
          .rejected = sums_.rejected / pairs_};
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
