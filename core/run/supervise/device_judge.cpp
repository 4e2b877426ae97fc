#include "core/run/supervise/device_judge.h"

#include <fmt/format.h>

#include "kernels/nvml/xid.h"

namespace trainerd::core::run {

std::vector<DeviceFinding> DeviceJudge::add(const kernels::DeviceReading& reading) {
  std::vector<DeviceFinding> found;
  if (reading.lost) {
    if (!lost_) found.push_back({"lost", "the driver does not reach it any more", true});
    lost_ = true;
    return found;
  }
  if (reading.ecc_errors) {
    // What was there before the run is for the operator of the machine.
    const double before = ecc_errors_.value_or(*reading.ecc_errors), more = *reading.ecc_errors - before;
    if (more > 0)
      found.push_back(
          {"ecc",
           fmt::format("{:.0f} uncorrected memory error{} (ECC); {:.0f} since its driver was loaded", more,
                       more == 1 ? "" : "s", *reading.ecc_errors),
           true});
    ecc_errors_ = reading.ecc_errors;
  }
  for (const auto& [link, errors] : reading.nvlink_errors) {
    const double since = errors - nvlink_errors_.emplace(link, errors).first->second;
    double& reported = nvlink_reported_[link];
    // Corrected by the hardware: told again when there are twice as many.
    if (since <= 0 || since < 2 * reported) continue;
    reported = since;
    found.push_back(
        {"nvlink", fmt::format("NVLink {}: {:.0f} error{} since the run watches it (replays, recoveries, "
                               "failed checksums), corrected by the hardware",
                               link, since, since == 1 ? "" : "s")});
  }
  if (reading.throttle_reasons) {
    const std::uint64_t reasons = *reading.throttle_reasons;
    const bool thermal = (reasons & kernels::throttle::kThermal) != 0;
    const bool power = (reasons & kernels::throttle::kPowerBrake) != 0 ||
                       (!thermal && (reasons & kernels::throttle::kHardware) != 0);
    const std::string at = reading.temperature_celsius
                               ? fmt::format(", at {:.0f} degrees Celsius", *reading.temperature_celsius)
                               : "";
    judge_slowdown(thermal_, thermal, "thermal", "its temperature" + at, found);
    judge_slowdown(power_, power, "power", "its power supply (power brake)", found);
  }
  return found;
}

void DeviceJudge::judge_slowdown(Slowdown& slowdown, bool slowed, const char* kind, const std::string& why,
                                 std::vector<DeviceFinding>& found) {
  slowdown.readings = slowed == slowdown.reported ? 0 : slowdown.readings + 1;
  if (slowdown.readings < kThrottledReadings) return;
  slowdown = {.readings = 0, .reported = slowed};
  found.push_back({kind, slowed ? "its clocks are lowered because of " + why
                                : "its clocks are not lowered any more because of " + why});
}

DeviceFinding DeviceJudge::finding_of(int number) {
  const kernels::Xid xid = kernels::xid_of(number);
  std::string text = kernels::text_of(xid);
  if (xid.whose == kernels::XidClass::program) text += "; of the program that ran on it, not of the device";
  const bool error = xid.whose == kernels::XidClass::device;
  return {error ? "xid" : "note", std::move(text), error};
}

}  // namespace trainerd::core::run
