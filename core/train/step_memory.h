#pragma once

#include <array>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "parallel/schedule/slots.h"

namespace trainerd::core {

/// How many slots each lifetime class of the one chunk has: the larger of the training and the evaluation schedule's.
using SlotCounts = std::array<int, parallel::kLifetimes>;

/// The memory of one rank's step: regions of fixed size, each its own allocation with guard pages around it. In a dry run
/// the regions have no memory and no end, and `plan` tells what they came to.
class StepMemory {
 public:
  /// For the dry run.
  explicit StepMemory(const SlotCounts& slots);
  /// Allocates every region at its planned size. Throws CapacityError.
  StepMemory(kernels::Backend& backend, const SlotCounts& slots, const kernels::MemoryPlan& plan);

  kernels::Arena& persistent() { return persistent_; }
  kernels::Arena& scratch() { return scratch_; }
  kernels::Arena& slot(parallel::Lifetime lifetime, int index);

  /// The high-water mark of every region so far, by term; a class of slots is as many times its largest slot.
  kernels::MemoryPlan plan() const;

 private:
  std::vector<kernels::Buffer> buffers_;
  kernels::Arena persistent_;
  kernels::Arena scratch_;
  std::array<std::vector<kernels::Arena>, parallel::kLifetimes> slots_;
};

}  // namespace trainerd::core
