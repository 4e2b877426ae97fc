#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "core/job/supervise_options.h"
#include "core/train/step_outcome.h"

namespace trainerd::core::run {

/// Detects spikes: a loss or gradient norm that is not finite or, with a score set, that is too high by the
/// robust z-score over the latest updated steps. The values are the same on all ranks, so the verdicts are
/// too.
class SpikeWatch {
 public:
  static constexpr std::size_t kMinSteps = 16;  ///< with fewer steps there is no score

  /// `rank`: this rank, which names its own non-finite tensor.
  SpikeWatch(const job::SpikesOptions& options, std::int64_t rank) : options_(options), rank_(rank) {}
  /// Why the outcome is a spike: "the loss is 9.31, 14.2 robust standard deviations above the median 2.31 of
  /// the latest 40 steps"; empty: it is none.
  std::string judge(const train::StepOutcome& outcome) const;
  /// Adds the values of a step that is updated.
  void add(const train::StepOutcome& outcome);

 private:
  std::string judge(const char* what, double value, const std::deque<double>& latest) const;

  job::SpikesOptions options_;
  std::int64_t rank_;
  std::deque<double> losses_, norms_;
};

}  // namespace trainerd::core::run
