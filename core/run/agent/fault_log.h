#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/run/faults/fault_schedule.h"

namespace trainerd::core::run {

/// The faults of the job that the run has made, in a file of its output directory: a fault that ends the
/// agent itself is not made again by the next one.
class FaultLog {
 public:
  /// Reads what is there. Throws SpecError when it cannot.
  explicit FaultLog(std::string path);
  const std::vector<std::string>& done() const { return done_; }
  /// Durable when it returns. Throws SpecError.
  void add(const std::string& id);

 private:
  std::string path_;
  std::vector<std::string> done_;
};

/// The bits of checkpoints that a node's agent is to flip.
class CheckpointFaults {
 public:
  CheckpointFaults(const job::FaultsOptions& options, std::int64_t ranks,
                   const std::vector<std::string>& done)
      : plan_(options, ranks, done) {}

  /// The step has come, of a node with `count` ranks from `first` on.
  void on_step(std::int64_t step, std::int64_t first, std::int64_t count);
  /// Those whose time has come for a checkpoint of that step; each is given once.
  std::vector<DueFault> take(std::int64_t step);

 private:
  FaultSchedule plan_;
  std::vector<DueFault> waiting_;
};

/// Flips a bit in the middle of a file, in place, and says which. Throws CheckpointError.
std::string flip_bit_of_file(const std::string& path);

}  // namespace trainerd::core::run
