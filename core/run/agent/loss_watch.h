#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace trainerd::core::run {

/// Which losses are out of line with those before them: by the robust z-score, (loss - median) / (1.4826 MAD)
/// over the latest 128 steps. Only a loss that is too high is out of line.
class LossWatch {
 public:
  static constexpr std::size_t kWindow = 128;   ///< steps
  static constexpr std::size_t kMinSteps = 16;  ///< of them: fewer are not judged
  static constexpr double kOutlier = 8;         ///< z-score from which on a loss is out of line

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

/// The checkpoint that waits for its tag, one at a time: it is good when the losses of the `after` steps that
/// followed it were in line.
class GoodTags {
 public:
  explicit GoodTags(std::int64_t after) : after_(after) {}
  /// A complete checkpoint. Whether it waits from now on: none did, and no loss since was out of line.
  bool add(std::int64_t step);
  struct Verdict {
    std::int64_t step = 0;  ///< of the checkpoint
    bool good = false;
  };
  /// The loss of a step.
  std::optional<Verdict> on_step(std::int64_t step, double loss);
  /// Steps after `step` will be done again. Whether the checkpoint that waited was of one of them.
  bool drop_after(std::int64_t step);

 private:
  std::int64_t after_;
  LossWatch watch_;
  std::int64_t last_outlier_ = 0;
  std::optional<std::int64_t> waiting_;
};

}  // namespace trainerd::core::run
