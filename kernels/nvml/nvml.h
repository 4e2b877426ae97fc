#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trainerd::kernels {

/// One reading of a GPU by its management library; values that it cannot report are absent.
struct DeviceReading {
  std::string pci_bus_id;  ///< as passed to `read`
  std::string name, uuid;
  std::optional<double> memory_used_bytes, memory_total_bytes;  ///< by all processes
  std::optional<double> power_watts, sm_clock_hertz, temperature_celsius;
  std::optional<double> energy_joules;  ///< since the driver was loaded
  std::optional<double> ecc_errors;     ///< uncorrected, since the driver was loaded
  /// Why its clocks are lower than they could be: bits of `throttle`.
  std::optional<std::uint64_t> throttle_reasons = {};
  /// By number of an active link: replays, recoveries and failed checksums, since its counters were reset.
  std::map<int, double> nvlink_errors = {};
  bool lost = false;  ///< the driver does not reach it any more; then nothing else is known
};

/// Bits of DeviceReading::throttle_reasons (NVML API reference, NvmlClocksEventReasons).
namespace throttle {
inline constexpr std::uint64_t kPowerCap = 0x4, kHardware = 0x8, kSoftwareThermal = 0x20,
                               kHardwareThermal = 0x40, kPowerBrake = 0x80;
inline constexpr std::uint64_t kThermal = kSoftwareThermal | kHardwareThermal;
}  // namespace throttle

/// An error that the driver reports of a device (xid.h).
struct DeviceXid {
  std::string pci_bus_id;  ///< as it was asked for
  int number = 0;
};

/// NVML, loaded at run time: neither its header nor its library is needed to build. It creates no CUDA
/// context. One thread at a time.
class Nvml {
 public:
  /// Throws DeviceError if the library is missing or does not initialise.
  explicit Nvml(const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  /// Reads the device with this PCI bus id ("0000:65:00.0"). Throws DeviceError if there is none.
  DeviceReading read(const std::string& pci_bus_id) const;
  /// From now on the XIDs of these devices are kept for `next_xid`. False: the library or all of the devices
  /// cannot.
  bool listen(const std::vector<std::string>& pci_bus_ids);
  /// Waits for one, up to about `seconds`; it may return sooner without one. None unless it listens.
  std::optional<DeviceXid> next_xid(double seconds) const;
  int device_count() const;

 private:
  struct Functions;
  std::unique_ptr<Functions> f_;
  void* events_ = nullptr;                      ///< the event set, while it listens
  std::map<const void*, std::string> watched_;  ///< by NVML's handle of a device: its PCI bus id
};

/// Number of GPUs of the machine, according to NVML; 0 if the library is missing or does not initialise.
int count_gpus(const std::string& library = "libnvidia-ml.so.1");

}  // namespace trainerd::kernels
