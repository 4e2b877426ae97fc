#pragma once

#include <memory>
#include <vector>

#include "io/records.h"
#include "kernels/backend.h"

namespace trainerd::core {

/// Where the compute stream's time goes: marks on the stream at each change of part, read when the step is over.
class StepClock {
 public:
  using Part = double io::TimeLedger::*;

  explicit StepClock(kernels::Backend& backend) : backend_(backend) {}
  void start(kernels::Stream& stream);
  /// From here on the stream's time belongs to `part`.
  void enter(kernels::Stream& stream, Part part);
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
  std::size_t used_ = 0;
};

}  // namespace trainerd::core
