#include "core/train/step_clock.h"

namespace trainerd::core {

void StepClock::mark(kernels::Stream& stream, Part part) {
  if (used_ == marks_.size()) marks_.push_back({backend_.make_event(), nullptr});
  backend_.record(stream, *marks_[used_].event);
  marks_[used_++].part = part;
}

void StepClock::start(kernels::Stream& stream) {
  used_ = 0;
  mark(stream, &io::TimeLedger::other);
}

void StepClock::enter(kernels::Stream& stream, Part part) { mark(stream, part); }

io::TimeLedger StepClock::finish(kernels::Stream& stream) {
  mark(stream, &io::TimeLedger::other);
  backend_.wait_host(*marks_[used_ - 1].event);
  io::TimeLedger ledger;
  for (std::size_t i = 0; i + 1 < used_; ++i)
    ledger.*marks_[i].part += backend_.elapsed_seconds(*marks_[i].event, *marks_[i + 1].event);
  return ledger;
}

}  // namespace trainerd::core
