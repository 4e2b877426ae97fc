#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace trainerd::core::run {

/// Which losses are out of line with those before them: by the robust z-score, (loss - median) / (1.4826 MAD)
/// over the latest 128 steps. Only a loss that is too high is out of line.
class LossWatch {
 public:
  static constexpr std::size_t kWindow = 128;  ///< steps
  static constexpr std::size_t kLeast = 16;    ///< of them: fewer tell nothing
  static constexpr double kOutlier = 8;        ///< z-score from which on a loss is out of line

  /// Whether the loss is in line. One that is not is not among those that later ones are compared with,
  /// unless all of them are: then that is where the loss is now.
  bool add(std::int64_t step, double loss);
  /// Steps after `step` will be done again.
  void drop_after(std::int64_t step);

 private:
  double score(double loss) const;
  struct Entry {
    std::int64_t step;
    double loss;
  };
  std::deque<Entry> latest_;
  std::int64_t outliers_ = 0;  ///< in a row
};

/// Checkpoints that wait for their tag: one is good when the losses of the `after` steps that followed it
/// were in line.
class GoodTags {
 public:
  explicit GoodTags(std::int64_t after) : after_(after) {}
  /// A complete checkpoint.
  void add(std::int64_t step);
  /// The loss of a step; the checkpoints that are good from now on.
  std::vector<std::int64_t> on_step(std::int64_t step, double loss);
  void drop_after(std::int64_t step);

 private:
  std::int64_t after_;
  LossWatch watch_;
  std::int64_t last_outlier_ = 0;
  std::deque<std::int64_t> waiting_;
};

}  // namespace trainerd::core::run
