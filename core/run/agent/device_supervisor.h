#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/run/agent/device_watch.h"
#include "core/run/nodes/node_messages.h"
#include "core/run/stop/stop.h"
#include "core/run/supervise/device_judge.h"

namespace trainerd::core::run {

class Run;

/// Makes events of what is found of the ranks' GPUs, and does what supervise.devices says. Every node has
/// one, which judges its own devices; the leader's reports and acts for all.
class DeviceSupervisor {
 public:
  explicit DeviceSupervisor(Run& run) : run_(run) {}

  /// What was taken of this node's devices; `ranks` and `devices` (PCI bus ids) in the order of the watch.
  void on_taken(const DeviceWatch::Taken& taken, const std::vector<std::int64_t>& ranks,
                const std::vector<std::string>& devices);
  /// As if the driver had reported it (faults.inject).
  void on_xid(std::int64_t rank, int number);
  /// Of another node, on the leader.
  void on_found(const DeviceFound& found);

  /// The run stops with its next checkpoint, and why.
  const std::optional<StopRequest>& draining() const { return draining_; }

 private:
  void report(std::int64_t rank, const DeviceFinding& finding);

  Run& run_;
  std::map<std::string, DeviceJudge> judges_;  ///< by PCI bus id
  std::optional<StopRequest> draining_;        ///< the leader's
  bool stopped_ = false;                       ///< the leader's: the run ends because of a device
};

}  // namespace trainerd::core::run
