#include "core/train/step_clock.h"

#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace trainerd::core {

void StepClock::mark(kernels::Stream& stream, Part part) {
  if (used_ == marks_.size()) marks_.push_back({backend_.make_event(), nullptr, {}});
  backend_.record(stream, *marks_[used_].event);
  marks_[used_].work = work_;
  marks_[used_++].part = part;
}

void StepClock::start(kernels::Stream& stream) {
  used_ = 0;
  stalled_ = nullptr;
  work_ = {};
  started_at_ = base::monotonic_seconds();
  mark(stream, &io::TimeLedger::other);
}

void StepClock::enter(kernels::Stream& stream, Part part) {
  if (used_ > 0) mark(stream, part);
}

void StepClock::stall(kernels::Stream& stream, Part part, const parallel::CommCall& call) {
  if (used_ == 0) return;
  base::check(stalled_ == nullptr, "a stream awaits one operation at a time");
  stalled_ = marks_[used_ - 1].part;
  work_.call = call;
  mark(stream, part);
  work_.call = {};
}

void StepClock::resume(kernels::Stream& stream) {
  if (used_ > 0) mark(stream, std::exchange(stalled_, nullptr));
}

void StepClock::act(kernels::Stream& stream, const parallel::Action* action) {
  if (!tracing_ || used_ == 0) return;
  work_ = {};
  if (action != nullptr)
    work_ = {.action = trace_name(action->kind), .chunk = action->chunk, .microbatch = action->microbatch, .call = {}};
  mark(stream, marks_[used_ - 1].part);
}

io::TimeLedger StepClock::finish(kernels::Stream& stream) {
  mark(stream, &io::TimeLedger::other);
  backend_.wait_host(*marks_[used_ - 1].event);
  io::TimeLedger ledger;
  trace_.clear();
  double at = started_at_;
  for (std::size_t i = 0; i + 1 < used_; ++i) {
    const double seconds = backend_.elapsed_seconds(*marks_[i].event, *marks_[i + 1].event);
    ledger.*marks_[i].part += seconds;
    if (tracing_ && seconds > 0) trace_.push_back(trace_slice(marks_[i].part, marks_[i].work, at, seconds));
    at += seconds;
  }
  used_ = 0;
  return ledger;
}

}  // namespace trainerd::core
