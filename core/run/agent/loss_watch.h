#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace trainerd::core::run {

/// Detects loss outliers by the robust z-score, (loss - median) / (1.4826 MAD), over the latest 128 steps.
/// Only a loss that is too high is an outlier.
class LossWatch {
 public:
  static constexpr std::size_t kWindow = 128;   ///< steps
  static constexpr std::size_t kMinSteps = 16;  ///< with fewer steps than this nothing is an outlier
  static constexpr double kOutlier = 8;         ///< z-score from which a loss is an outlier

  /// Returns false if the loss is an outlier. Outliers are left out of the window. After kWindow outliers in
  /// a row the window starts anew at the present level.
  bool add(std::int64_t step, double loss);
  /// Removes steps after `step`, which will be done again.
  void drop_after(std::int64_t step);

 private:
  double score(double loss) const;
  struct Entry {
    std::int64_t step;
    double loss;
  };
  std::deque<Entry> latest_;
  std::int64_t outliers_ = 0;  ///< number of outliers in a row
};

/// Decides which checkpoint gets the good tag, one candidate at a time. A checkpoint is good if the losses of
/// the `after` steps that follow it have no outlier.
class GoodTags {
 public:
  explicit GoodTags(std::int64_t after) : after_(after) {}
  /// Offers a complete checkpoint. Returns true if it becomes the candidate: there is none, and no loss after
  /// `step` was an outlier.
  bool add(std::int64_t step);
  struct Verdict {
    std::int64_t step = 0;  ///< the checkpoint's step
    bool good = false;
  };
  /// Adds the loss of a step. Returns the candidate's verdict when it is known.
  std::optional<Verdict> on_step(std::int64_t step, double loss);
  /// Removes steps after `step`, which will be done again. Returns true if the candidate was one of them.
  bool drop_after(std::int64_t step);

 private:
  std::int64_t after_;
  LossWatch watch_;
  std::int64_t last_outlier_ = 0;
  std::optional<std::int64_t> waiting_;
};

}  // namespace trainerd::core::run
