#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/job/job.h"
#include "core/spec/surroundings.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::spec {

/// A built-in cluster, or the one of a YAML file. Throws SpecError.
parallel::Topology named_cluster(const std::string& name, const std::string& asked_by);

/// What this process may compute on. GPUs are counted by NVML (`nvml` is its library), which makes no CUDA
/// context; where there are some, the CUDA part of this build says how many it can use.
Machine this_machine(const std::string& nvml = "libnvidia-ml.so.1");

/// Whether a job for CUDA devices is laid out on devices that are assumed where this machine has none.
enum class Absent : std::uint8_t { refused, assumed };

/// The machines the job is for: those of its cluster preset, or as many as it says of this one's kind, with a
/// device for each of the ranks. Throws SpecError when the preset cannot be read (any more).
parallel::Topology job_topology(const job::JobSpec& job, Absent absent = Absent::refused);

/// Every rank of the job on its device. Throws CapacityError when they are more than the devices.
parallel::PlacedGrid place_job(const job::JobSpec& job, Absent absent = Absent::refused);

/// `here` with the rates of `cluster`, whose devices are of the same kind: peaks, operators, memory and
/// links. Throws SpecError.
parallel::Topology with_rates(const parallel::Topology& here, const parallel::Topology& cluster);

/// A job on this machine's own devices.
struct JobHere {
  job::JobSpec job;                         ///< of the `local` cluster
  std::optional<parallel::Topology> rates;  ///< of the cluster that it named, where that has operator rates
};
/// A job of a named cluster runs where its devices are: by their name. Throws CapacityError when this machine
/// has others: the job can be validated and planned here, not run.
JobHere job_here(const job::JobSpec& job);

}  // namespace trainerd::core::spec
