#pragma once

// Measures this machine for the cost model. Small training steps run through the real backend and every
// operator is timed in place, with one rank running and with all ranks running. Collectives and messages
// between those ranks are timed through the real communicator.

#include <cstdint>
#include <functional>
#include <string>

#include "core/job/job.h"
#include "parallel/layout/topology.h"

namespace trainerd::core::plan {

struct CalibrateOptions {
  job::DeviceChoice device = job::DeviceChoice::cpu;
  /// Approximate time budget in seconds. A round is completed unless it still runs at twice the budget. It
  /// then stops, but not before the smallest models, which have every operator; larger sizes are
  /// extrapolated.
  double seconds = 45;
  std::int64_t threads = 1;  ///< per rank
  std::int64_t ranks = 0;    ///< devices of the node; 0: as many as the cores allow
  /// Called at intervals, by one thread at a time, with the current measurement and the elapsed fraction of
  /// the budget, 0 to 1.
  std::function<void(const std::string& what, double share)> progress = {};
};

struct Calibration {
  /// Has `measured` filled in, and the matrix-product peaks that this library reaches.
  parallel::Topology topology;
  int rounds = 0;
  int models = 0;         ///< number of models measured in a round
  double host_share = 0;  ///< fraction of a step spent outside operators, 0 to 1
  double fit_error = 0;   ///< mean relative error of the curves on their own samples, weighted by time
};

/// Throws SpecError for invalid options and DeviceError if there is no such device.
Calibration calibrate(const CalibrateOptions& options);

/// job_topology of a job on this machine, with the rates that `calibrate` measures in about `seconds`. Throws
/// SpecError if the job names another cluster.
parallel::Topology calibrated_topology(const job::JobSpec& job, double seconds);

/// The text of a cluster file, which `read_cluster` reads back. Example of `source`: "measured 2026-01-31,
/// trainerd 1.0".
std::string cluster_yaml(const Calibration& calibration, const std::string& source);

}  // namespace trainerd::core::plan
