#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/run/supervise/rank_sight.h"

namespace trainerd::core::run {

/// The first node asks the others what they see of their ranks, and hears it.
class HangInquiry {
 public:
  /// One asks no more often, and waits no longer for who does not answer.
  static constexpr double kAskSeconds = 1.0;

  /// The number of a new question, if it is time for one: the others' ranks are asked for, and the answers to
  /// earlier questions count no more.
  std::optional<std::int64_t> ask(double now) {
    if (asked_at_ && now - *asked_at_ < kAskSeconds) return std::nullopt;
    asked_at_ = now;
    sights_.clear();
    return ++number_;
  }
  /// Whether the present question was asked lately: what was seen longer ago says nothing of now.
  bool recent(double now) const { return asked_at_ && now - *asked_at_ <= 2 * kAskSeconds; }
  /// Whether the answer belongs to the present question; it is kept then.
  bool add(std::int64_t number, RankSight sight) {
    if (number != number_) return false;
    sights_.push_back(std::move(sight));
    return true;
  }
  const std::vector<RankSight>& sights() const { return sights_; }

 private:
  std::int64_t number_ = 0;
  std::optional<double> asked_at_;
  std::vector<RankSight> sights_;
};

}  // namespace trainerd::core::run
