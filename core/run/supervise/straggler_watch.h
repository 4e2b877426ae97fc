#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trainerd::core::run {

/// The compute time of a rank since its process began, without waits.
struct RankTime {
  std::int64_t rank = 0;
  std::int64_t steps = 0;
  double compute_seconds = 0;
};

/// Finds ranks that compute longer per step than the other ranks of their pipeline stage, which do equal
/// work.
///
/// A window ends when all ranks have done kSteps more steps and kSeconds have passed. A rank is slow in it if
/// its mean exceeds its peers' lower median by kShare (kPairShare for two peers, whose median is uncertain)
/// and by kScore robust standard deviations (1.4826 times the median absolute deviation). It becomes a
/// straggler after kWindows slow windows in a row, and stops being one after as many that are not slow.
class StragglerWatch {
 public:
  static constexpr double kSeconds = 10, kShare = 0.10, kPairShare = 0.25, kScore = 6;
  static constexpr std::int64_t kSteps = 5;
  static constexpr int kWindows = 3;

  /// `peers`: the ranks of each stage.
  explicit StragglerWatch(std::vector<std::vector<std::int64_t>> peers);

  struct Change {
    std::int64_t rank = 0;
    bool slow = false;                       ///< it became a straggler; false: it stopped being one
    double excess = 0;                       ///< relative to the peers' median, less 1, in the last window
    double seconds = 0, median_seconds = 0;  ///< per step
  };
  /// `rank`: its name from `place_of`.
  static std::string text_of(const Change& change, const std::string& rank);
  /// Adds a rank's time at `now` (seconds). Returns the changes if this ends a window.
  std::vector<Change> add(const RankTime& time, double now);
  /// Starts anew, because new processes count from 0. A straggler is reported again only if it is slow again.
  void restart();

 private:
  struct Rank {
    std::optional<RankTime> begin, last;  ///< at the start of the window, and latest
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
