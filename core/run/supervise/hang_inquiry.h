#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/run/supervise/rank_sight.h"

namespace trainerd::core::run {

/// Node 0's inquiry about a suspected hang: it asks the other nodes for their ranks' pages and collects the
/// answers.
class HangInquiry {
 public:
  /// Time limit for answers, after which the next inquiry may start without them.
  static constexpr double kAskSeconds = 1.0;
  /// Minimum time between two answered inquiries; with many ranks it is twice as long as the answers take.
  static constexpr double kMinSeconds = 0.05;

  /// `ranks`: number of ranks of all nodes.
  explicit HangInquiry(std::int64_t ranks) : ranks_(ranks) {}

  /// Starts a new inquiry and returns its number, if it is time for one. Answers to earlier inquiries are
  /// then ignored.
  std::optional<std::int64_t> ask(double now) {
    if (asked_at_ && now - *asked_at_ < pause()) return std::nullopt;
    asked_at_ = now;
    answered_at_.reset();
    sights_.clear();
    return ++number_;
  }
  /// True if the present inquiry is recent, so that its answers still describe the present state.
  bool recent(double now) const { return asked_at_ && now - *asked_at_ <= 2 * kAskSeconds; }
  /// Adds an answer. Returns false and ignores it if it belongs to an earlier inquiry.
  bool add(std::int64_t number, RankSight sight, double now) {
    if (number != number_) return false;
    sights_.push_back(std::move(sight));
    if (complete()) answered_at_ = now;
    return true;
  }
  /// True if every rank has answered.
  bool complete() const { return std::cmp_equal(sights_.size(), ranks_); }
  const std::vector<RankSight>& sights() const { return sights_; }

 private:
  /// A rank that does not count as hung yet may do so at its agent's next look, 0.1 s later.
  double pause() const {
    return answered_at_ ? std::clamp(2 * (*answered_at_ - *asked_at_), kMinSeconds, kAskSeconds)
                        : kAskSeconds;
  }

  std::int64_t ranks_;
  std::int64_t number_ = 0;
  std::optional<double> asked_at_, answered_at_;
  std::vector<RankSight> sights_;
};

}  // namespace trainerd::core::run
