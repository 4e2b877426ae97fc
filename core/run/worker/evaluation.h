#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "core/job/job.h"
#include "io/records/records.h"

namespace trainerd::core::run {

/// Whether the job has an evaluation after step `step`.
bool evaluation_due(const job::JobSpec& job, std::int64_t step);

/// Global batches of an evaluation of `set`: those that the job asks for, or all whole ones that its
/// `samples` hold. Throws DataError when they hold none.
std::int64_t evaluation_batches(const job::JobSpec& job, const io::ValidationSet& set, std::int64_t samples);

/// Says that an evaluation of `set` takes only `batches` global batches; none where it takes all that it was
/// asked for.
std::optional<io::NoticeRecord> fewer_batches_notice(const job::JobSpec& job, const io::ValidationSet& set,
                                                     std::int64_t batches);

/// The loss of an evaluation: the mean over all tokens that count of all its global batches.
class EvaluationMean {
 public:
  explicit EvaluationMean(std::int64_t tokens_per_batch) : tokens_(static_cast<double>(tokens_per_batch)) {}
  /// A global batch's mean loss and the sum of its loss weights.
  void add(double loss, double loss_weight);
  /// Throws DataError where no token counts; `set` is its name.
  double value(const std::string& set = {}) const;
  /// The loss of all tokens that count together, and how many these are.
  double sum() const { return sum_ * tokens_; }
  double counted_tokens() const { return weight_ * tokens_; }

 private:
  double tokens_, sum_ = 0, weight_ = 0;  ///< weights in global batches of which every token counts
};

/// What an evaluation says of pairs (loss.dpo): means over them, by their log-probabilities. The loss is
/// -log sigmoid(margin), without label smoothing (arXiv 2305.18290, equation 7).
class PreferenceMean {
 public:
  explicit PreferenceMean(double beta) : beta_(beta) {}
  /// Of the chosen and of the rejected answer of a pair, by the model and by the reference.
  void add(const std::array<double, 2>& logps, const std::array<double, 2>& reference);
  double loss() const { return loss_ / pairs_; }
  io::PairRewards rewards() const;

 private:
  double beta_, loss_ = 0, pairs_ = 0;
  io::PairRewards sums_;
};

/// Samples [first, first + count) in the order of samples.
struct SampleRange {
  std::int64_t first = 0, count = 0;
};
/// Throws DataError for a step of whose global batch no token counts: there is no mean to train on.
void require_counted(double loss_weight, std::int64_t step, const SampleRange& samples);

}  // namespace trainerd::core::run
