#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace trainerd::core::run {

/// What a rank has computed since its process began, without what it waited for.
struct RankTime {
  std::int64_t rank = 0;
  std::int64_t steps = 0;
  double compute_seconds = 0;
};

/// Finds ranks that compute longer per step than their peers, which have the same work: those of their
/// pipeline stage.
///
/// A window is over when all ranks have done kSteps more steps, and kSeconds have passed. A rank is slow in
/// it when its mean is above the peers' lower median by kShare (kPairShare where there are two peers, whose
/// median says little) and by kScore robust standard deviations (1.4826 times the median of the distances
/// to the median). It is a straggler after kWindows slow windows in a row, until as many in a row are not.
class StragglerWatch {
 public:
  static constexpr double kSeconds = 10, kShare = 0.10, kPairShare = 0.25, kScore = 6;
  static constexpr std::int64_t kSteps = 5;
  static constexpr int kWindows = 3;

  /// `peers`: the ranks of each stage.
  explicit StragglerWatch(std::vector<std::vector<std::int64_t>> peers);

  struct Change {
    std::int64_t rank = 0;
    bool slow = false;  ///< it became a straggler; false: it is none any more
    double excess = 0;  ///< seconds per step over the peers' median, less 1, in the last window
    double seconds = 0, median_seconds = 0;  ///< per step
  };
  /// `rank`: its name, as `place_of` gives it.
  static std::string text_of(const Change& change, const std::string& rank);
  /// What a rank says at `now` (seconds); what a window that is over by it changes.
  std::vector<Change> add(const RankTime& time, double now);
  /// New processes count from 0: a rank that was slow is reported only if it is slow again.
  void restart();

 private:
  struct Rank {
    std::optional<RankTime> begin, last;  ///< of the window
    int slow_windows = 0, good_windows = 0;
    bool straggler = false;
  };
  std::vector<Change> close_window();
  void judge_peers(const std::vector<std::int64_t>& peers, std::vector<Change>& changes);

  std::vector<std::vector<std::int64_t>> peers_;
  std::map<std::int64_t, Rank> ranks_;
  std::optional<double> window_began_;
};

}  // namespace trainerd::core::run
