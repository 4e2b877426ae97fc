#pragma once

#include <memory>
#include <optional>
#include <string>

namespace trainerd::kernels {

/// What a GPU's management library says of it at one moment; what it does not know is absent.
struct DeviceReading {
  std::string pci_bus_id;  ///< as it was asked for
  std::string name, uuid;
  std::optional<double> memory_used_bytes, memory_total_bytes;  ///< by all processes
  std::optional<double> power_watts, sm_clock_hertz, temperature_celsius;
  std::optional<double> energy_joules;  ///< since the driver was loaded
  std::optional<double> ecc_errors;     ///< uncorrected, since the driver was loaded
};

/// NVML, opened at run time: neither its header nor its library need be there. It makes no CUDA context. One
/// thread at a time.
class Nvml {
 public:
  /// Throws DeviceError when the library is not there or does not start.
  explicit Nvml(const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  /// Of the device with this PCI bus id ("0000:65:00.0"). Throws DeviceError when there is none.
  DeviceReading read(const std::string& pci_bus_id) const;
  int device_count() const;

 private:
  struct Functions;
  std::unique_ptr<Functions> f_;
};

/// How many GPUs the machine has by its management library; 0 when the library is not there or does not
/// start.
int count_gpus(const std::string& library = "libnvidia-ml.so.1");

}  // namespace trainerd::kernels
