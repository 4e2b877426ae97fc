#pragma once

#include <cstdint>
#include <deque>

#include "io/records/records.h"

namespace trainerd::core::run {

/// How often a run with `checkpoint.every: auto` saves: the optimum (core/plan/cost/checkpoint_interval.h) of
/// what its own saves cost and its mean time between failures. That one is the job's where it is given, else
/// the cluster's, else learned: the training time of all attempts over the interruptions, with one day and
/// one interruption added, which is all that is known at the start.
class Cadence {
 public:
  struct Options {
    double given_mtbf_seconds = 0;    ///< checkpoint.mtbf; 0: none
    double cluster_mtbf_seconds = 0;  ///< of all nodes of the job; 0: not known
    double first_save_seconds = 0;    ///< guess of stall and write, until a save was measured
    double trained_seconds = 0;       ///< by earlier attempts
    std::int64_t interruptions = 0;   ///< of them
  };
  explicit Cadence(const Options& options) : options_(options) {}

  void add_step(double seconds) { options_.trained_seconds += seconds; }
  void add_interruption() { ++options_.interruptions; }
  /// `stall_seconds`: the checkpoint stall; `write_seconds`: until the checkpoint was complete.
  void add_save(double stall_seconds, double write_seconds);

  /// By the medians of the latest saves.
  io::CadenceRecord optimum() const;

 private:
  struct Save {
    double stall_seconds, write_seconds;
  };
  Options options_;
  std::deque<Save> saves_;
};

}  // namespace trainerd::core::run
