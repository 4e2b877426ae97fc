#pragma once

// Measures the machine at hand for the cost model: small training steps through the real backend, every
// operator timed in its place, by one rank alone and by all ranks at once; and collectives and messages among
// those ranks through the real communicator.

#include <cstdint>
#include <functional>
#include <string>

#include "core/job/job.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

struct CalibrateOptions {
  job::DeviceChoice device = job::DeviceChoice::cpu;
  /// To measure for, about: rounds are whole unless the first takes more than twice as long. It then ends
  /// after the smallest models that have every operator, and larger sizes follow from these.
  double seconds = 45;
  std::int64_t threads = 1;  ///< of a rank
  std::int64_t ranks = 0;    ///< devices of the node; 0: as many as the cores have room for
  /// Called now and then, from one thread at a time, with what is measured and the share of the time that has
  /// passed, 0 to 1.
  std::function<void(const std::string& what, double share)> progress = {};
};

struct Calibration {
  /// With `measured`, and peaks of matrix products as this library reaches them.
  parallel::Topology topology;
  int rounds = 0;
  int models = 0;         ///< that a round has
  double host_share = 0;  ///< of a step, outside operators
  double fit_error = 0;   ///< mean error of the curves on what they were made from, by time
};

/// Throws SpecError for options that cannot be, DeviceError where there is no such device.
Calibration calibrate(const CalibrateOptions& options);

/// job_topology of a job on this machine, with the rates that `calibrate` measures for it in about `seconds`.
/// Throws SpecError for a job of another cluster.
parallel::Topology calibrated_topology(const job::JobSpec& job, double seconds);

/// The cluster file that `read_cluster` reads back. `source`: "measured 2026-01-31, trainerd 1.0".
std::string cluster_yaml(const Calibration& calibration, const std::string& source);

}  // namespace trainerd::core::plan
