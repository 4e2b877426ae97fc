#pragma once

#include <memory>
#include <vector>

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
  void stall(kernels::Stream& stream, Part part);
  void resume(kernels::Stream& stream);
  /// Waits for the stream and adds up the parts since `start`.
  io::TimeLedger finish(kernels::Stream& stream);

 private:
  void mark(kernels::Stream& stream, Part part);
  struct Mark {
    std::unique_ptr<kernels::Event> event;
    Part part = nullptr;  ///< of the time after the mark
  };
  kernels::Backend& backend_;
  std::vector<Mark> marks_;  // kept from step to step: events are made once
  std::size_t used_ = 0;  // of the step that is being timed; 0 between steps
  Part stalled_ = nullptr;  // the part that a stall interrupts
};

}  // namespace trainerd::core
