#pragma once

#include <cstdint>
#include <string>

#include "core/run/agent/metrics_file.h"
#include "kernels/base/error.h"

namespace trainerd::core::run {

/// Name of this process, unique among the writers of a discovery directory: "run-node0-host-123".
std::string discovery_id(const std::string& run, std::int64_t node);
/// Second path at which the process with this name serves its metrics, besides /metrics. The file of a killed
/// process names it, so that Prometheus does not scrape another process on the same port.
std::string discovery_metrics_path(const std::string& id);

/// A running agent's file in the job's `metrics.discovery` directory: a target for Prometheus. It is removed
/// when the run is done or stopped. A killed process leaves it, so that Prometheus sees its target down.
class DiscoveryFile {
 public:
  /// Writes `directory`/`id`.json and creates the directory if needed (also a file:// URI). `record` is a
  /// file in the output directory that holds the written path until the file is removed. Throws SpecError if
  /// one of them cannot be written.
  DiscoveryFile(const std::string& directory, const std::string& id, std::string record,
                MetricsTarget target);
  ~DiscoveryFile();
  DiscoveryFile(const DiscoveryFile&) = delete;
  DiscoveryFile& operator=(const DiscoveryFile&) = delete;

  /// The run has failed: keeps the file, with the error's kind in its label `ended`.
  void leave(base::ErrorKind kind);
  /// Does not remove the file at the end: it belongs to another agent now.
  void disown() { left_ = true; }
  const std::string& path() const { return path_; }

 private:
  std::string path_, record_, metrics_path_;
  MetricsTarget target_;
  bool left_ = false;
};

/// Removes the files that earlier processes of an output directory left, for all nodes. A file that cannot be
/// removed is a warning.
void remove_left_discovery_files(const std::string& output);

/// Path of a node's record in an output directory.
std::string discovery_record(const std::string& output, std::int64_t node);

}  // namespace trainerd::core::run
