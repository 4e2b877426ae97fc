#pragma once

#include <prometheus/collectable.h>

#include <mutex>
#include <string>
#include <vector>

namespace trainerd::io {

/// Joules that this machine's CPUs and their memory have taken since this began, by the kernel's counters
/// (RAPL, /sys/class/powercap): zones `package-N`, and `dram` inside them. The core and uncore zones are
/// parts of a package, and psys is more than the CPUs. A zone that this user may not read is absent.
class CpuEnergy final : public prometheus::Collectable {
 public:
  explicit CpuEnergy(const std::string& powercap);
  /// Reads them, unless they were read within `seconds`. A counter begins anew after some minutes at full
  /// power, so it must be read more often than that.
  void read_within(double seconds);
  /// Reads them first.
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  struct Zone {
    std::string name;  ///< "package-0", "dram-0"
    std::string file;
    double range = 0;   ///< of its counter, in microjoules; 0: not known
    double before = 0;  ///< the last reading
    double joules = 0;  ///< since the first
  };
  void read() const;
  mutable std::mutex mutex_;  // scrapes come from other threads
  mutable std::vector<Zone> zones_;
  mutable double read_at_ = 0;
};

}  // namespace trainerd::io
