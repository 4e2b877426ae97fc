#pragma once

#include <memory>
#include <vector>

#include "core/train/step_trace.h"
#include "io/records.h"
#include "kernels/backend.h"

namespace trainerd::core {

/// Where the compute stream's time goes: marks on the stream at each change of part, read when the step is over. Between
/// steps (an evaluation runs the same code) nothing is marked.
class StepClock {
 public:
  using Part = double io::TimeLedger::*;

  explicit StepClock(kernels::Backend& backend) : backend_(backend) {}
  void start(kernels::Stream& stream);
  /// From here on the stream's time belongs to `part`.
  void enter(kernels::Stream& stream, Part part);
  /// Until `resume` it belongs to `part`, and then again to the part before. Stalls do not nest.
  void stall(kernels::Stream& stream, Part part, const parallel::CommCall& call);
  void resume(kernels::Stream& stream);
  /// Waits for the stream and adds up the parts since `start`.
  io::TimeLedger finish(kernels::Stream& stream);

  /// From the next step on, whether actions are marked too and `trace` is kept.
  void keep_trace(bool on) { tracing_ = on; }
  /// The stream comes to an action of the schedule; null: to the end of the last one.
  void act(kernels::Stream& stream, const parallel::Action* action);
  /// The last step's stretches in order, by the clock of base::monotonic_seconds. They add up to its ledger.
  const std::vector<io::TraceSlice>& trace() const { return trace_; }

 private:
  void mark(kernels::Stream& stream, Part part);
  struct Mark {
    std::unique_ptr<kernels::Event> event;
    Part part = nullptr;  ///< of the time after the mark
    StreamWork work;      ///< likewise
  };
  kernels::Backend& backend_;
  std::vector<Mark> marks_;  // kept from step to step: events are made once
  std::size_t used_ = 0;  // of the step that is being timed; 0 between steps
  Part stalled_ = nullptr;  // the part that a stall interrupts
  StreamWork work_;
  bool tracing_ = false;
  double started_at_ = 0;
  std::vector<io::TraceSlice> trace_;
};

}  // namespace trainerd::core
