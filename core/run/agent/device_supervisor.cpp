#include "core/run/agent/device_supervisor.h"

#include <algorithm>

#include "core/run/agent/run.h"
#include "core/run/log/log.h"

namespace trainerd::core::run {

void DeviceSupervisor::on_taken(const DeviceWatch::Taken& taken, const std::vector<std::int64_t>& ranks,
                                const std::vector<std::string>& devices) {
  if (!taken.problem.empty()) log::warn("{}", taken.problem);
  for (const kernels::DeviceXid& xid : taken.xids) {
    const auto at = std::find(devices.begin(), devices.end(), xid.pci_bus_id);
    // The driver names no device that it has lost: it is the node's.
    on_xid(at == devices.end() ? ranks.front() : ranks.at(static_cast<std::size_t>(at - devices.begin())),
           xid.number);
  }
  for (std::size_t i = 0; i < taken.readings.size(); ++i) {
    const kernels::DeviceReading& reading = taken.readings[i];
    if (!reading.lost && reading.name.empty() && reading.uuid.empty()) continue;  // it could not be read
    run_.sinks().each(&io::MetricsSink::on_device, io::DeviceRecord{ranks.at(i), reading});
    for (const DeviceFinding& finding : judges_[reading.pci_bus_id].add(reading))
      report(ranks.at(i), finding);
  }
}

void DeviceSupervisor::on_xid(std::int64_t rank, int number) {
  report(rank, DeviceJudge::finding_of(number));
}

void DeviceSupervisor::report(std::int64_t rank, const DeviceFinding& finding) {
  const DeviceFound found{.rank = rank, .finding = finding};
  if (run_.membership().leads()) on_found(found);
  else run_.membership().send(found);
}

void DeviceSupervisor::on_found(const DeviceFound& found) {
  const PlannedWorld& world = run_.world();
  const bool several = !run_.membership().alone();
  const std::string text =
      "GPU of " + place_of(found.rank, found.rank / run_.topology().devices_per_node, several, world.layout) +
      ": " + found.finding.text;
  run_.sinks().each(&io::MetricsSink::on_device_finding,
                    io::DeviceFindingRecord{found.rank, found.finding.kind});
  const job::DevicePolicy policy = run_.job().supervise.devices;
  const bool acts = found.finding.error && policy != job::DevicePolicy::log && !stopped_ && !draining_;
  if (!acts || run_.stopping()) return run_.notify(io::NoticeKind::device, text);
  if (policy == job::DevicePolicy::stop) {
    stopped_ = true;
    run_.notify(io::NoticeKind::device, text, {"the run ends now (supervise.devices: stop)"});
    return run_.end_by_device(text + "; supervise.devices: stop ends the run: take the device out of use");
  }
  draining_ = StopRequest{.reason = text + " (supervise.devices: drain)"};
  run_.notify(io::NoticeKind::device, text,
              {"the run stops with its next checkpoint (supervise.devices: drain)"});
  run_.drain();
}

}  // namespace trainerd::core::run
