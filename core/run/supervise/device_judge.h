#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/nvml/nvml.h"

namespace trainerd::core::run {

/// What a GPU's management library says that an operator wants to know.
struct DeviceFinding {
  /// "ecc", "xid", "lost": errors of the device; "nvlink", "thermal", "power"; "note": an XID of the program
  /// or a mere record of the driver.
  std::string kind;
  std::string text;    ///< one line, without the device's name
  bool error = false;  ///< of the device itself: the job's policy (supervise.devices) applies
};

/// Judges the readings of one GPU, in their order. It outlives restarts of the workers: an error that ends a
/// rank between two readings is found by the first reading after it.
class DeviceJudge {
 public:
  /// Readings in a row that a device is slowed down in before it is reported, and until that is over.
  static constexpr int kThrottledReadings = 3;

  std::vector<DeviceFinding> add(const kernels::DeviceReading& reading);
  static DeviceFinding finding_of(int xid);

 private:
  struct Slowdown {
    int readings = 0;  ///< in a row that differ from `reported`
    bool reported = false;
  };
  void judge_slowdown(Slowdown& slowdown, bool slowed, const char* kind, const std::string& why,
                      std::vector<DeviceFinding>& found);

  std::optional<double> ecc_errors_;
  std::map<int, double> nvlink_errors_, nvlink_reported_;  ///< by link: of the first reading; since then
  Slowdown thermal_, power_;
  bool lost_ = false;
};

}  // namespace trainerd::core::run
