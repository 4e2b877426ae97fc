#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/run/faults/fault_schedule.h"

namespace trainerd::core::run {

/// Ids of the injected faults that were made, kept in a file of the output directory. A fault that kills the
/// agent itself is not made again by its successor.
class FaultLog {
 public:
  /// Reads the existing file. Throws SpecError if it cannot be read.
  explicit FaultLog(std::string path);
  const std::vector<std::string>& done() const { return done_; }
  /// Durable (fsync) when it returns. Throws SpecError if it cannot be written.
  void add(const std::string& id);

 private:
  std::string path_;
  std::vector<std::string> done_;
};

/// Bit flips in checkpoint files that a node's agent must inject.
class CheckpointFaults {
 public:
  CheckpointFaults(const job::FaultsOptions& options, std::int64_t ranks,
                   const std::vector<std::string>& done)
      : plan_(options, ranks, done) {}

  /// Called after `step` by a node with `count` ranks from `first` on.
  void on_step(std::int64_t step, std::int64_t first, std::int64_t count);
  /// Returns the faults that are due for a checkpoint of `step`; each is returned once.
  std::vector<DueFault> take(std::int64_t step);

 private:
  FaultSchedule plan_;
  std::vector<DueFault> waiting_;
};

/// Flips one bit in the middle of a file, in place. Returns its position as text. Throws CheckpointError.
std::string flip_bit_of_file(const std::string& path);

}  // namespace trainerd::core::run
