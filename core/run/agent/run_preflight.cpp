#include <utility>

#include "core/run/agent/run.h"

// Part of the run (run.h): checks of nodes and ranks before the first step of each attempt.

namespace trainerd::core::run {

/// Starts the storage probe, which runs while the ranks start.
void Run::begin_preflight() {
  if (!job_.supervise.preflight) return;
  storage_probe_.emplace(
      output_.path(), [path = output_.path()] { return io::open_storage(path); },
      ".preflight-node-" + std::to_string(membership_.node()));
}

NodeReady Run::preflight(NodeReady ready) {
  if (!job_.supervise.preflight) return ready;
  if (storage_probe_) ready.storage = storage_probe_->finding();
  storage_probe_.reset();
  ready.wall_seconds = base::wall_seconds();
  ready.clock_ahead = membership_.clock_ahead();
  return ready;
}

/// On the leader: reports each finding once, as a warning. The run goes on.
void Run::judge_preflight(const ReadyRanks& ready) {
  if (!membership_.leads() || !job_.supervise.preflight) return;
  const auto report = [&](const char* part, const std::string& place, const std::string& what) {
    const std::string text = "pre-flight: " + place + ": " + what;
    if (what.empty() || !preflight_reported_.insert(text).second) return;
    notify(io::NoticeKind::warning, text);
    sinks_.each(&io::MetricsSink::on_preflight, io::PreflightRecord{part});
  };
  if (storage_probe_) report("storage", membership_.name_of(0), storage_probe_->finding());
  storage_probe_.reset();
  for (const auto& [node, said] : ready.nodes()) report("storage", membership_.name_of(node), said.storage);
  for (const auto& [node, ahead] : ready.clocks())
    report("clock", membership_.name_of(node), clock_finding(ahead));
  const PlannedWorld& world = attempt_->plan();
  const bool cpu = topology_.device.kind == kernels::DeviceKind::cpu;
  for (const SlowDevice& slow : slow_devices(ready.rates(), cpu ? kSlowCpu : kSlowGpu))
    report("device", place_of(slow.rank, slow.rank / world.here.count, !membership_.alone(), world.layout),
           slow.text);
}

}  // namespace trainerd::core::run
