#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/run/supervise/rank_sight.h"

namespace trainerd::core::run {

/// The first node asks the others for the pages of their ranks and collects the answers.
class HangInquiry {
 public:
  /// Nodes that do not answer are not waited for any longer: the next question comes then.
  static constexpr double kAskSeconds = 1.0;
  /// At least, between two questions that all nodes answer; of many ranks twice as long as the answers take.
  static constexpr double kMinSeconds = 0.05;

  /// `ranks` of all nodes.
  explicit HangInquiry(std::int64_t ranks) : ranks_(ranks) {}

  /// The number of a new question, if it is time for one: the others' ranks are asked for, and the answers to
  /// earlier questions count no more.
  std::optional<std::int64_t> ask(double now) {
    if (asked_at_ && now - *asked_at_ < pause()) return std::nullopt;
    asked_at_ = now;
    answered_at_.reset();
    sights_.clear();
    return ++number_;
  }
  /// Whether the present question was asked lately: what was seen longer ago says nothing of now.
  bool recent(double now) const { return asked_at_ && now - *asked_at_ <= 2 * kAskSeconds; }
  /// Whether the answer, which comes now, belongs to the present question; it is kept then.
  bool add(std::int64_t number, RankSight sight, double now) {
    if (number != number_) return false;
    sights_.push_back(std::move(sight));
    if (complete()) answered_at_ = now;
    return true;
  }
  /// Whether every rank is seen.
  bool complete() const { return std::cmp_equal(sights_.size(), ranks_); }
  const std::vector<RankSight>& sights() const { return sights_; }

 private:
  /// What is not hung yet may be so at its agent's next look, a tenth of a second later.
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
