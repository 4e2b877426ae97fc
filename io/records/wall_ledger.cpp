#include "io/records/wall_ledger.h"

#include <algorithm>
#include <numeric>

namespace trainerd::io {

/// Returns the time since the latest event. The caller assigns it to parts.
double WallLedger::advance(double now) {
  const double gap = until_ > 0 ? std::max(0.0, now - until_) : 0;
  until_ = std::max(until_, now);
  return gap;
}

void WallLedger::begin(Begin what, double now, std::int64_t step, double last_step_end, double lost_seconds) {
  const double idle_from = std::max(until_, last_step_end);
  double gap = advance(now), void_seconds = 0;
  for (; !useful_.empty() && useful_.back().first > step; useful_.pop_back())
    void_seconds += useful_.back().second;
  add(WallPart::useful, -void_seconds);
  add(WallPart::replay, void_seconds);
  // Steps that were done but are no longer in any log.
  const double idle = std::clamp(now - idle_from, 0.0, gap);
  const double unlogged = std::min(gap - idle, std::max(0.0, lost_seconds - void_seconds));
  add(WallPart::replay, unlogged);
  gap -= unlogged;
  if (what == Begin::workers) {
    add(WallPart::detect, gap);
  } else {
    add(WallPart::down, idle);
    add(WallPart::other, gap - idle);
  }
  phase_ = what == Begin::workers ? WallPart::restart : WallPart::start;
}

void WallLedger::step(std::int64_t step, double end, double seconds, double save_seconds) {
  if (until_ <= 0) until_ = end - seconds;
  const double gap = advance(end), own = std::min(gap, seconds), save = std::clamp(save_seconds, 0.0, own);
  add(phase_, gap - own);
  add(WallPart::save, save);
  add(WallPart::useful, own - save);
  useful_.emplace_back(step, own - save);
  phase_ = WallPart::other;
}

void WallLedger::evaluation(double end, double seconds) {
  const double gap = advance(end), own = std::min(gap, seconds);
  add(WallPart::evaluate, own);
  add(phase_, gap - own);
}

void WallLedger::end(double now) {
  add(WallPart::other, advance(now));
  phase_ = WallPart::other;
}

void WallLedger::keep(std::int64_t step) { forget_to(useful_, step); }

double WallLedger::total() const { return std::accumulate(parts_.begin(), parts_.end(), 0.0); }

}  // namespace trainerd::io
