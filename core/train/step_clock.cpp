#include "core/train/step_clock.h"

#include <utility>

#include "kernels/base/error.h"

namespace trainerd::core {

void StepClock::mark(kernels::Stream& stream, Part part) {
  if (used_ == marks_.size()) marks_.push_back({backend_.make_event(), nullptr});
  backend_.record(stream, *marks_[used_].event);
  marks_[used_++].part = part;
}

void StepClock::start(kernels::Stream& stream) {
  used_ = 0;
  stalled_ = nullptr;
  mark(stream, &io::TimeLedger::other);
}

void StepClock::enter(kernels::Stream& stream, Part part) {
  if (used_ > 0) mark(stream, part);
}

void StepClock::stall(kernels::Stream& stream, Part part) {
  if (used_ == 0) return;
  base::check(stalled_ == nullptr, "a stream awaits one operation at a time");
  stalled_ = marks_[used_ - 1].part;
  mark(stream, part);
}

void StepClock::resume(kernels::Stream& stream) {
  if (used_ > 0) mark(stream, std::exchange(stalled_, nullptr));
}

io::TimeLedger StepClock::finish(kernels::Stream& stream) {
  mark(stream, &io::TimeLedger::other);
  backend_.wait_host(*marks_[used_ - 1].event);
  io::TimeLedger ledger;
  for (std::size_t i = 0; i + 1 < used_; ++i)
    ledger.*marks_[i].part += backend_.elapsed_seconds(*marks_[i].event, *marks_[i + 1].event);
  used_ = 0;
  return ledger;
}

}  // namespace trainerd::core
