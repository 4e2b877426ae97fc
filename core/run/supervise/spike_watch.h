#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "core/job/supervise_options.h"
#include "core/train/step_outcome.h"

namespace trainerd::core::run {

/// Which computations of steps are out of line: a loss or a gradient norm that is not finite, or, with a
/// score, one too high by the robust z-score over the latest steps that were updated. Values are the same on
/// all ranks, and so are its verdicts.
class SpikeWatch {
 public:
  static constexpr std::size_t kMinSteps = 16;  ///< steps: fewer are not judged

  /// `rank`: this one; what is not finite is named by the rank that has it.
  SpikeWatch(const job::SpikesOptions& options, std::int64_t rank) : options_(options), rank_(rank) {}
  /// "the loss is 9.31, 14.2 robust standard deviations above the median 2.31 of the latest 40 steps"; empty:
  /// it is in line.
  std::string judge(const train::StepOutcome& outcome) const;
  /// A step that is updated.
  void add(const train::StepOutcome& outcome);

 private:
  std::string judge(const char* what, double value, const std::deque<double>& latest) const;

  job::SpikesOptions options_;
  std::int64_t rank_;
  std::deque<double> losses_, norms_;
};

}  // namespace trainerd::core::run
