#pragma once

#include <cstdint>

#include "core/spec/spec.h"
#include "kernels/memory.h"
#include "kernels/target.h"
#include "parallel/layout.h"

namespace trainerd::core {

/// What running the job's own step in the meta world tells.
struct DryRun {
  kernels::MemoryPlan memory;        ///< of one rank's device
  std::int64_t snapshot_bytes = 0;   ///< of one rank's share of a checkpoint
  double flops_per_step = 0;         ///< by operators, of one rank
  std::int64_t operator_calls = 0;   ///< of one training step
};

/// Builds the trainer in a world that computes nothing, initialises it, runs one step and one evaluation. The real run
/// allocates exactly what this reports. Looks at no data and needs no device.
DryRun dry_run(const JobSpec& job, const parallel::Layout& layout, const kernels::Target& target);

/// Throws CapacityError when the plan (with the host's snapshot segments) exceeds the node's memory: which term is the
/// largest, and what would fit.
void require_fits(const DryRun& plan, const JobSpec& job, const parallel::Topology& topology, std::int64_t snapshots);

}  // namespace trainerd::core
