#pragma once

#include <cstdint>
#include <deque>

#include "io/records/records.h"

namespace trainerd::core::run {

/// The save interval of a run with `checkpoint.every: auto`. It is the optimum
/// (core/plan/cost/checkpoint_interval.h) for the measured cost of the run's saves and a mean time between
/// failures. The latter is the job's if given, else the cluster's, else estimated as the training time of all
/// attempts over the number of interruptions, with a prior of one interruption per day.
class Cadence {
 public:
  struct Options {
    double given_mtbf_seconds = 0;    ///< checkpoint.mtbf; 0: not given
    double cluster_mtbf_seconds = 0;  ///< for all nodes of the job together; 0: unknown
    double first_save_seconds = 0;    ///< estimated stall and write time until a save is measured
    double trained_seconds = 0;       ///< training time of earlier attempts
    std::int64_t interruptions = 0;   ///< number of interruptions of earlier attempts
  };
  explicit Cadence(const Options& options) : options_(options) {}

  void add_step(double seconds) { options_.trained_seconds += seconds; }
  void add_interruption() { ++options_.interruptions; }
  /// `stall_seconds`: the checkpoint stall; `write_seconds`: time until the checkpoint was complete.
  void add_save(double stall_seconds, double write_seconds);

  /// Computed from the medians of the latest saves.
  io::CadenceRecord optimum() const;

 private:
  struct Save {
    double stall_seconds, write_seconds;
  };
  Options options_;
  std::deque<Save> saves_;
};

}  // namespace trainerd::core::run
