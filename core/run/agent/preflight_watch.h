#pragma once

#include <optional>
#include <set>
#include <string>

#include "core/run/nodes/node_messages.h"
#include "core/run/preflight/storage_probe.h"

namespace trainerd::core::run {

class ReadyRanks;
class Run;

/// Looks at nodes and ranks before the first step of each attempt.
class PreflightWatch {
 public:
  explicit PreflightWatch(Run& run) : run_(run) {}

  /// The storage is tried while the ranks start.
  void begin();
  /// The summary of this node's ranks, with the findings on the node itself.
  NodeReady add_findings(NodeReady ready);
  /// On the leader. Throws DeviceError where replicas do not make the same of the step before the first.
  void require_alike(const ReadyRanks& ready) const;
  /// Findings that are no errors: each is a warning once, and the run goes on. On the leader.
  void judge(const ReadyRanks& ready);

 private:
  void report(const char* part, const std::string& place, const std::string& what);

  Run& run_;
  std::optional<StorageProbe> storage_;  ///< until all ranks are ready
  std::set<std::string> reported_;
};

}  // namespace trainerd::core::run
