#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/job/job.h"
#include "core/spec/surroundings.h"
#include "parallel/layout/placement.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::spec {

/// A built-in cluster, or one from a YAML file. Throws SpecError.
parallel::Topology named_cluster(const std::string& name, const std::string& asked_by);

/// The devices and cores that this process may use. GPUs are counted by NVML (`nvml` is its library), which
/// creates no CUDA context. If there are GPUs, the CUDA part of this build reports how many it can use.
Machine this_machine(const std::string& nvml = "libnvidia-ml.so.1");

/// What to do with a CUDA job on a machine without GPUs: refuse it, or assume devices for its layout.
enum class Absent : std::uint8_t { refused, assumed };

/// The job's machines: those of its cluster preset, or its number of machines like this one, with a device
/// for each rank. Throws SpecError if the preset cannot be read (any more).
parallel::Topology job_topology(const job::JobSpec& job, Absent absent = Absent::refused);

/// Places every rank on a device. Throws CapacityError if there are more ranks than devices.
parallel::PlacedGrid place_job(const job::JobSpec& job, Absent absent = Absent::refused);

/// `here` with the rates of `cluster`: peaks, operators, memory and links. Throws SpecError if their devices
/// are of different kinds.
parallel::Topology with_rates(const parallel::Topology& here, const parallel::Topology& cluster);

/// A job on this machine's own devices.
struct JobHere {
  job::JobSpec job;                         ///< the job with the `local` cluster
  std::optional<parallel::Topology> rates;  ///< rates of the named cluster, if it has any
};
/// Turns a job for a named cluster into one for this machine, if this machine has the same devices by name.
/// Otherwise throws CapacityError: the job can be validated and planned here, but not run.
JobHere job_here(const job::JobSpec& job);

}  // namespace trainerd::core::spec
