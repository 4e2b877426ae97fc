#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "core/job/job.h"
#include "io/records/records.h"

namespace trainerd::core::run {

/// True if the job has an evaluation after `step`.
bool evaluation_due(const job::JobSpec& job, std::int64_t step);

/// Number of global batches in an evaluation of `set`: the job's setting, or all complete ones in `samples`
/// if these are fewer. Throws DataError if there is none.
std::int64_t evaluation_batches(const job::JobSpec& job, const io::ValidationSet& set, std::int64_t samples);

/// A notice if an evaluation of `set` uses only `batches` global batches, fewer than the job asks for; else
/// none.
std::optional<io::NoticeRecord> fewer_batches_notice(const job::JobSpec& job, const io::ValidationSet& set,
                                                     std::int64_t batches);

/// The loss of an evaluation: the mean over all counted tokens of its global batches.
class EvaluationMean {
 public:
  explicit EvaluationMean(std::int64_t tokens_per_batch) : tokens_(static_cast<double>(tokens_per_batch)) {}
  /// Adds a global batch's mean loss with the sum of its loss weights.
  void add(double loss, double loss_weight);
  /// Throws DataError if no token counts; `set` is its name.
  double value(const std::string& set = {}) const;
  /// Sum of the loss over the counted tokens; `counted_tokens` is their number.
  double sum() const { return sum_ * tokens_; }
  double counted_tokens() const { return weight_ * tokens_; }

 private:
  double tokens_, sum_ = 0, weight_ = 0;  ///< in units of a global batch's tokens
};

/// The evaluation of pairs (loss.dpo): means over the pairs, from their log-probabilities. The loss is -log
/// sigmoid(margin), without label smoothing (arXiv 2305.18290, equation 7).
class PreferenceMean {
 public:
  explicit PreferenceMean(double beta) : beta_(beta) {}
  /// Adds a pair: log-probabilities of its chosen and rejected answer, by the model and the reference.
  void add(const std::array<double, 2>& logps, const std::array<double, 2>& reference);
  double loss() const { return loss_ / pairs_; }
  io::PairRewards rewards() const;

 private:
  double beta_, loss_ = 0, pairs_ = 0;
  io::PairRewards sums_;
};

/// Samples [first, first + count) of the order.
struct SampleRange {
  std::int64_t first = 0, count = 0;
};
/// Throws DataError if no token of a step's global batch counts: there is no mean to train on.
void require_counted(double loss_weight, std::int64_t step, const SampleRange& samples);

}  // namespace trainerd::core::run
