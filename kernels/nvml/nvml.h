#pragma once

#include <memory>
#include <optional>
#include <string>

namespace trainerd::kernels {

/// One reading of a GPU by its management library; values that it cannot report are absent.
struct DeviceReading {
  std::string pci_bus_id;  ///< as passed to `read`
  std::string name, uuid;
  std::optional<double> memory_used_bytes, memory_total_bytes;  ///< by all processes
  std::optional<double> power_watts, sm_clock_hertz, temperature_celsius;
  std::optional<double> energy_joules;  ///< since the driver was loaded
  std::optional<double> ecc_errors;     ///< uncorrected, since the driver was loaded
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
  int device_count() const;

 private:
  struct Functions;
  std::unique_ptr<Functions> f_;
};

/// Number of GPUs of the machine, according to NVML; 0 if the library is missing or does not initialise.
int count_gpus(const std::string& library = "libnvidia-ml.so.1");

}  // namespace trainerd::kernels
