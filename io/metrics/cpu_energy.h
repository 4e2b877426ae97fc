#pragma once

#include <prometheus/collectable.h>

#include <mutex>
#include <string>
#include <vector>

namespace trainerd::io {

/// Joules used by this machine's CPUs and their memory since construction, from the kernel's counters (RAPL,
/// /sys/class/powercap): zones `package-N` and the `dram` inside them. Core and uncore zones are parts of a
/// package, and psys covers more than the CPUs, so these are not used. Zones that this user may not read are
/// absent.
class CpuEnergy final : public prometheus::Collectable {
 public:
  explicit CpuEnergy(const std::string& powercap);
  /// Reads the counters unless they were read within the last `seconds`. A counter wraps around after some
  /// minutes at full power, so it must be read more often than that.
  void read_within(double seconds);
  /// Reads the counters first.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Zone {
    std::string name;  ///< "package-0", "dram-0"
    std::string file;
    double range = 0;   ///< at which its counter wraps, in microjoules; 0: not known
    double before = 0;  ///< previous reading
    double joules = 0;  ///< since the first reading
  };
  void read() const;
  mutable std::mutex mutex_;  // scrapes come from other threads
  mutable std::vector<Zone> zones_;
  mutable double read_at_ = 0;
};

}  // namespace trainerd::io
