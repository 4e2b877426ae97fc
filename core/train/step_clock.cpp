#include "core/train/step_clock.h"

#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core::train {

void StepClock::mark(kernels::Stream& stream, Part part) {
  Lap& lap = *running_;
  if (lap.used == lap.marks.size()) lap.marks.push_back({.event = backend_.make_event(), .work = {}});
  backend_.record(stream, *lap.marks[lap.used].event);
  lap.marks[lap.used].work = work_;
  lap.marks[lap.used++].part = part;
}

void StepClock::start(kernels::Stream& stream) {
  base::check(ended_ < kMaxSteps, "a step's time is read before the second one after it begins");
  if (ended_ == 0) oldest_ = 0;  // steps that are read at once always use the first lap's events
  running_ = &laps_[static_cast<std::size_t>((oldest_ + ended_) % kMaxSteps)];
  running_->used = 0;
  running_->traced = tracing_;
  running_->started_at = base::monotonic_seconds();
  stalled_.reset();
  work_ = {};
  mark(stream, base::LedgerPart::other);
}

void StepClock::enter(kernels::Stream& stream, Part part) {
  if (running_ != nullptr) mark(stream, part);
}

void StepClock::stall(kernels::Stream& stream, Part part, const parallel::CommCall& call) {
  if (running_ == nullptr) return;
  base::check(!stalled_, "a stream awaits one operation at a time");
  stalled_ = current();
  work_.call = call;
  mark(stream, part);
  work_.call = {};
}

void StepClock::issue(kernels::Stream& stream, Part part, const parallel::CommCall& call) {
  unmarked_issue_ = running_ != nullptr && issue_marks_ == IssueMarks::traced && !running_->traced;
  if (!unmarked_issue_) stall(stream, part, call);
}

void StepClock::resume(kernels::Stream& stream) {
  if (std::exchange(unmarked_issue_, false)) return;
  if (running_ != nullptr) mark(stream, std::exchange(stalled_, std::nullopt).value());
}

void StepClock::act(kernels::Stream& stream, const parallel::Action* action) {
  if (running_ == nullptr || !running_->traced) return;
  work_ = {};
  if (action != nullptr)
    work_ = {.action = trace_name(action->kind),
             .chunk = action->chunk,
             .microbatch = action->microbatch,
             .call = {}};
  mark(stream, current());
}

void StepClock::end(kernels::Stream& stream) {
  mark(stream, base::LedgerPart::other);
  running_ = nullptr;
  ++ended_;
}

const kernels::Event& StepClock::over() const {
  base::check(ended_ > 0, "there is a step to be read");
  const Lap& lap = laps_[static_cast<std::size_t>(oldest_)];
  return *lap.marks[lap.used - 1].event;
}

base::TimeLedger StepClock::read() {
  backend_.wait_host(over());
  const Lap& lap = laps_[static_cast<std::size_t>(oldest_)];
  base::TimeLedger ledger;
  trace_.clear();
  double at = lap.started_at;
  for (std::size_t i = 0; i + 1 < lap.used; ++i) {
    const double seconds = backend_.elapsed_seconds(*lap.marks[i].event, *lap.marks[i + 1].event);
    ledger[lap.marks[i].part] += seconds;
    if (lap.traced && seconds > 0)
      trace_.push_back(trace_slice(lap.marks[i].part, lap.marks[i].work, at, seconds));
    at += seconds;
  }
  oldest_ = (oldest_ + 1) % kMaxSteps;
  --ended_;
  return ledger;
}

}  // namespace trainerd::core::train
