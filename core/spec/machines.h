#pragma once

#include "core/spec/spec.h"
#include "parallel/placement.h"
#include "parallel/topology.h"

namespace trainerd::core {

/// The machines the job is for: those of its cluster preset, or as many as it says of this one's kind, with a
/// device for each of the ranks. Throws SpecError when the preset cannot be read (any more).
parallel::Topology job_topology(const JobSpec& job);

/// Every rank of the job on its device. Throws CapacityError when they are more than the devices.
parallel::PlacedGrid place_job(const JobSpec& job);

/// Throws CapacityError when the job is for other machines than this one: it can be validated here, not run.
void require_present(const JobSpec& job);

}  // namespace trainerd::core
