#include "core/run/agent/durable_tier.h"

#include <utility>

namespace trainerd::core::run {

bool DurableTier::is_due(std::int64_t step, double now) const {
  const io::Interval& every = options_.every;
  if (every.never() || !last_step_ || step < *last_step_) return true;
  // Checkpoints need not be at multiples of the interval: the first one after each multiple is due.
  if (every.steps > 0) return step / every.steps > *last_step_ / every.steps;
  return now - last_at_ >= every.seconds;
}

std::optional<std::string> DurableTier::add(Copy copy) {
  last_step_ = copy.step;
  std::optional<std::string> before;
  if (next_) before = std::move(next_->folder);
  next_ = std::move(copy);
  return before;
}

std::optional<DurableTier::Copy> DurableTier::begin(double now) {
  if (copying_ || !next_) return std::nullopt;
  copying_ = std::exchange(next_, std::nullopt);
  copying_->begun = last_at_ = now;
  copying_->ranks_left = copying_->ranks;
  return copying_;
}

}  // namespace trainerd::core::run
