#include "core/run/supervise/straggler_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trainerd::core::run {
namespace {

constexpr double kDeviations = 1.4826;  // standard deviation over MAD of a normal distribution

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

StragglerWatch::StragglerWatch(std::vector<std::vector<std::int64_t>> peers) : peers_(std::move(peers)) {
  for (const auto& stage : peers_)
    for (const std::int64_t rank : stage) ranks_[rank];
}

std::string StragglerWatch::text_of(const Change& change, const std::string& rank) {
  if (!change.slow) return rank + " is not slow any more";
  return fmt::format(
      "{} is slow: it computes {:.0f}% longer per step than the median of its pipeline stage "
      "({:.1f} ms against {:.1f} ms)",
      rank, 100 * change.excess, 1e3 * change.seconds, 1e3 * change.median_seconds);
}

void StragglerWatch::restart() {
  for (auto& [number, rank] : ranks_) rank = {};
  window_began_.reset();
}

std::vector<StragglerWatch::Change> StragglerWatch::add(const RankTime& time, double now) {
  const auto found = ranks_.find(time.rank);
  if (found == ranks_.end()) return {};
  Rank& rank = found->second;
  if (!rank.begin) rank.begin = time;
  rank.last = time;
  if (!window_began_) window_began_ = now;
  if (now - *window_began_ < kSeconds) return {};
  const bool complete = std::ranges::all_of(ranks_, [](const auto& entry) {
    const Rank& r = entry.second;
    return r.last && r.last->steps - r.begin->steps >= kSteps;
  });
  if (!complete) return {};
  window_began_ = now;
  return close_window();
}

std::vector<StragglerWatch::Change> StragglerWatch::close_window() {
  std::vector<Change> changes;
  for (const auto& stage : peers_)
    if (stage.size() > 1) judge_peers(stage, changes);
  for (auto& [number, rank] : ranks_) rank.begin = rank.last;
  return changes;
}

void StragglerWatch::judge_peers(const std::vector<std::int64_t>& peers, std::vector<Change>& changes) {
  std::vector<double> seconds, distances;
  for (const std::int64_t peer : peers) {
    const Rank& rank = ranks_.at(peer);
    seconds.push_back((rank.last->compute_seconds - rank.begin->compute_seconds) /
                      static_cast<double>(rank.last->steps - rank.begin->steps));
  }
  const double median = lower_median(seconds);
  if (median <= 0) return;
  for (const double s : seconds) distances.push_back(std::abs(s - median));
  const double deviation = kDeviations * lower_median(distances);
  const double share = peers.size() == 2 ? kPairShare : kShare;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    Rank& rank = ranks_.at(peers[i]);
    const double above = seconds[i] - median;
    const bool slow = above >= share * median && above >= kScore * deviation;
    rank.slow_windows = slow ? rank.slow_windows + 1 : 0;
    rank.good_windows = slow ? 0 : rank.good_windows + 1;
    const bool straggler = rank.straggler ? rank.good_windows < kWindows : rank.slow_windows >= kWindows;
    if (std::exchange(rank.straggler, straggler) != straggler)
      changes.push_back({.rank = peers[i],
                         .slow = straggler,
                         .excess = above / median,
                         .seconds = seconds[i],
                         .median_seconds = median});
  }
}

}  // namespace trainerd::core::run
