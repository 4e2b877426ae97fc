#pragma once

#include <cstdint>
#include <string>

#include "core/run/agent/metrics_file.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {

/// A name of this process among all that write to one discovery directory: "run-node0-host-123".
std::string discovery_id(const std::string& run, std::int64_t node);
/// Where the process of that name serves its metrics besides /metrics. The file of a process that was killed
/// names this path, so that another process on the same port is not taken for it.
std::string discovery_metrics_path(const std::string& id);

/// A running agent's file in the job's `metrics.discovery`: a target for Prometheus, there until the run is
/// done or stopped. A process that is killed leaves it, so that Prometheus finds its target down.
class DiscoveryFile {
 public:
  /// Writes `directory`/`id`.json, in a directory that it makes where it is not there (also a file:// URI).
  /// `record` is a file of the output directory that names that file until it is gone. Throws SpecError: one
  /// of them cannot be written.
  DiscoveryFile(const std::string& directory, const std::string& id, std::string record,
                MetricsTarget target);
  ~DiscoveryFile();
  DiscoveryFile(const DiscoveryFile&) = delete;
  DiscoveryFile& operator=(const DiscoveryFile&) = delete;

  /// The run has failed: the file stays, with the error's kind in its label `ended`.
  void leave(base::ErrorKind kind);
  /// The file is another agent's from now on.
  void disown() { left_ = true; }
  const std::string& path() const { return path_; }

 private:
  std::string path_, record_, metrics_path_;
  MetricsTarget target_;
  bool left_ = false;
};

/// Removes the files that earlier processes of an output directory left behind, of all nodes. What cannot be
/// removed is a warning.
void remove_left_discovery_files(const std::string& output);

/// The record of a node in an output directory.
std::string discovery_record(const std::string& output, std::int64_t node);

}  // namespace trainerd::core::run
