#include "core/run/stop/time_limit.h"

#include <algorithm>

namespace trainerd::core::run {
namespace {

constexpr std::size_t kLatestSteps = 32;
constexpr double kMargin = 1.5;
constexpr double kEndSeconds = 2;

}  // namespace

void TimeLimit::add_step(double seconds) {
  steps_.push_back(seconds);
  if (steps_.size() > kLatestSteps) steps_.pop_front();
}

void TimeLimit::add_save(double seconds) { save_seconds_ = std::max(save_seconds_, seconds); }

double TimeLimit::stop_at(bool saving) const {
  const double step = steps_.empty() ? 0 : *std::max_element(steps_.begin(), steps_.end());
  const double save = save_seconds_ < 0 ? options_.first_save_seconds : save_seconds_;
  return options_.deadline -
         kMargin * (static_cast<double>(options_.vote_steps) * step + (saving ? 2 : 1) * save) - kEndSeconds;
}

}  // namespace trainerd::core::run
